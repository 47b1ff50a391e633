"""Owns finding rows of the source map by what someone types: a concept (English or Chinese), a symbol (anyone's)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from difflib import SequenceMatcher, get_close_matches
from functools import lru_cache
from math import log

from minivllm.sourcemap.rows import NEWER, PINNED, Row, not_built, rows

# Scores of a hit that is not exact. An exact one has 80 to 102, see `_names`.
_PART, _WORDS, _IN_NAME, _LIKE = 66.0, 60.0, 18.0, 50.0
_LIMIT = 36.0
_LIKENESS = 0.8
# The share of a query's words that must be known, weighed by how rare they are.
_MOST = 0.6
_MAX_HITS = 20
# A hit this much worse than the best one is noise.
_KEEP = 0.6
# Shorter names, such as "A" or "LM", hit by accident.
_SHORT = 2


def search(query: str) -> list[Row]:
    """Rows that a query means, best first. A concept that is not built yet is found, too (`ours` is None).

    Args:
        query: "token budget", "调度", "Scheduler.schedule", "gpu_model_runner", "vllm/v1/request.py::Request", ...
    """
    wanted = _normal(query)
    if not wanted:
        return []
    rarity = _rarity(wanted)
    scored = [(_score(wanted, row, rarity), row) for row in (*rows(), *not_built())]
    best = max(score for score, _ in scored)
    kept = [pair for pair in scored if pair[0] >= max(_LIMIT, best * _KEEP)]
    return [row for _, row in sorted(kept, key=lambda pair: (-pair[0], len(pair[1].concept)))[:_MAX_HITS]]


def suggestions(query: str, limit: int = 5) -> list[str]:
    """The names on the map that look most like a query that nothing was found for."""
    wanted = _normal(query)
    names: dict[str, str] = {}
    for row in (*rows(), *not_built()):
        for name in (row.concept, row.chinese, (row.ours or "").rpartition(":")[2]):
            if name and name.isascii() == query.isascii():
                names.setdefault(_normal(name), name)
    return [names[normal] for normal in get_close_matches(wanted, names, n=limit, cutoff=0)]


def _score(wanted: str, row: Row, rarity: dict[str, float]) -> float:
    """How well a row fits; 0 if not at all."""
    # What is worth more comes first, and holds.
    exact = {name: weight for weight, names in reversed(list(_names(row))) for name in names}
    name_score = max(_name_score(wanted, name, weight) for name, weight in exact.items())
    text = _text(row)
    known = sum(weight for word, weight in rarity.items() if _has_word(text, word)) / sum(rarity.values())
    word_score = _WORDS * known if known >= _MOST else 0.0
    if known == 1:
        word_score += _IN_NAME * all(
            _has_word(_normal(f"{row.concept} {row.chinese} {row.also}"), word) for word in rarity
        )
    return max(name_score, word_score)


def _names(row: Row) -> Iterator[tuple[float, list[str]]]:
    """What a row answers to, and what an exact hit is worth: the row that is about the symbol itself goes first."""
    yield 102, [_normal(row.concept)]
    yield 100, [_normal(row.chinese), *map(_normal, row.also.split(";"))]
    for weight, symbol in ((97.0, row.ours), (94.0, row.vllm[PINNED]), (93.0, row.vllm[NEWER])):
        if symbol is not None:
            place, _, qualname = symbol.replace("::", ":").partition(":")
            path = place if "/" in place else f"{place.replace('.', '/')}.py"
            file = path.rstrip("/").rpartition("/")[2]
            stem = file.removesuffix(".py").lower()
            # A file is the class that is named after it. Among equals the function that a trace follows goes first.
            is_namesake = "." not in qualname and qualname.lower().endswith(stem.replace("_", ""))
            yield (
                weight + row.is_registered * 0.5,
                [_normal(symbol), qualname.lower(), qualname.rpartition(".")[2].lower()],
            )
            yield weight - 10 + is_namesake * 3, [file.lower(), stem, path.lower()]


def _name_score(wanted: str, name: str, weight: float) -> float:
    if wanted == name:
        return weight
    if len(name) < _SHORT:
        return 0.0
    if name.endswith((f".{wanted}", f":{wanted}", f"/{wanted}")):
        return weight - 8
    if wanted.strip("_") == name.strip("_"):
        return weight - 2
    if len(wanted) >= _SHORT and wanted in name:
        return _PART + 15 * len(wanted) / len(name)
    likeness = _ratio(wanted, name)
    return _LIKE + 20 * likeness if likeness >= _LIKENESS else 0.0


def _rarity(wanted: str) -> dict[str, float]:
    """The words of a query, and how telling each is: one that every row has says nothing."""
    texts = [_text(row) for row in (*rows(), *not_built())]
    return {word: log(len(texts) / (1 + sum(_has_word(text, word) for text in texts))) + 0.1 for word in _split(wanted)}


@lru_cache(maxsize=1024)
def _text(row: Row) -> str:
    symbols = " ".join(filter(None, (row.ours, *row.vllm.values())))
    return _normal(f"{row.concept} {row.chinese} {row.also} {row.says} {row.layer} {symbols}")


def _ratio(wanted: str, name: str) -> float:
    # Lengths alone rule most names out, which is much cheaper than comparing letters.
    if 2 * min(len(wanted), len(name)) < _LIKENESS * (len(wanted) + len(name)):
        return 0.0
    matcher = SequenceMatcher(None, wanted, name, autojunk=False)
    return matcher.ratio() if matcher.quick_ratio() >= _LIKENESS else 0.0


def _normal(text: str) -> str:
    """Lower case, one space between words; what people put around names is dropped."""
    text = text.replace("::", ":").replace("()", "").replace("`", "").lower()
    return " ".join(re.sub(r"[\s\-?!,;，。？、（）()]+", " ", text).split())


def _split(text: str) -> list[str]:
    words = [word for word in re.split(r"[\s:/.=+]+", _normal(text)) if word and word not in _FILLERS]
    return words or [_normal(text)]


def _has_word(text: str, word: str) -> bool:
    """Whether a text has a word, or one that begins like it: "blocks" for "block". Chinese has no gaps to go by."""
    if not word.isascii():
        return word in text
    stem = word[:-1] if len(word) > 4 and word.endswith("s") else word
    return re.search(rf"(?<![a-z0-9]){re.escape(stem)}", text) is not None


_FILLERS = frozenset(
    ("the", "a", "an", "of", "to", "in", "is", "and", "vs", "not", "for", "by", "how", "where", "does", "do")
)
