"""Owns the words for a reason: each decision of the scheduler as a clause, with the numbers of this run put in."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from minivllm.maps.wording import Words

Numbers = Mapping[str, int]

# Reasons whose words depend on the numbers, or stand under another name.
_MEMORY = ("no_free_blocks", "full_sequence_does_not_fit")
_KEYS = {"preempted": "preempted_blocks"}


@lru_cache
def _words(lang: str) -> Words:
    return Words(lang)


def detail(reason: str, numbers: Numbers, lang: str = "en") -> str:
    """Say a reason with its arithmetic, e.g. "needs 4 blocks, 2 free".

    Args:
        reason: A `Reason` of the scheduler, as text.
        numbers: What the rule compared.
        lang: "en" or "zh".
    """
    words = _words(lang)
    if reason == "token_budget":
        if "asked" in numbers:
            return words("token_budget_left", **numbers)
        return words("token_budget_spent", used=numbers["budget"] - numbers["left"], budget=numbers["budget"])
    text = words(_KEYS.get(reason, reason), **numbers)
    if reason in _MEMORY:
        text += "".join(words(key, **numbers) for key in ("watermark", "reserved") if numbers.get(key))
    return text


def behind(request: str, lang: str = "en") -> str:
    """Say of a request that nobody looked at it, since the loop had stopped at another one."""
    return _words(lang)("behind", request=request)
