"""Owns how a sentence is put together from numbers, in English and in Chinese.

A template names its values in braces. `{count:block|blocks}` is a number with the noun that fits it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from minivllm.maps import words_en, words_zh

LANGUAGES = {"en": words_en.TEMPLATES, "zh": words_zh.TEMPLATES}


class _Number(int):
    """A whole number that can be said with its noun."""

    def __format__(self, spec: str) -> str:
        singular, bar, plural = spec.partition("|")
        if not bar:
            return super().__format__(spec)
        return f"{int(self)} {singular if self == 1 else plural}"


class Words:
    """The templates of one language.

    Args:
        lang: One of LANGUAGES.
        languages: By language, the templates; default: those of the story of an iteration.
    """

    def __init__(self, lang: str, languages: Mapping[str, Mapping[str, str]] = LANGUAGES) -> None:
        self.lang = lang
        self._templates = languages[lang]

    def __call__(self, key: str, **values: Any) -> str:
        """Fill in a template."""
        numbers = {k: _Number(v) if isinstance(v, int) else v for k, v in values.items()}
        return self._templates[key].format(**numbers)

    def sentence(self, clauses: list[str], rest: str = "") -> str:
        """Clauses with commas between them; behind a semicolon, what follows from them."""
        text = self("comma").join(clauses)
        return text + (self("semicolon") + rest if rest else "") + self("full_stop")

    def names(self, names: list[str]) -> str:
        """Several requests in a row."""
        return self("and_so_on").join(names)

    def listed(self, names: Sequence[str]) -> str:
        """Several things in a sentence: "R0, R1 and R2"."""
        return self("and").join(part for part in (self.names([*names[:-1]]), names[-1]) if part)


def quoted(text: str) -> str:
    """A text between the quotes that are not likely to be in it."""
    return f"“{text}”"
