"""Owns guessing what a symbol is called now, by its name and by what it takes or contains."""

from __future__ import annotations

import re
from difflib import SequenceMatcher

from minivllm.sourcemap.resolve import Found, bases_of, find
from minivllm.sourcemap.signatures import owner_of, pinned_signatures, signature, was_pinned
from minivllm.sourcemap.vllm_source import VllmSource

Signature = tuple[str, frozenset[str]]

# Names and signatures weigh about the same. Below the limit a candidate misleads more than it helps.
_NAME_WEIGHT = 0.55
_LIMIT = 0.6
_NUM_CANDIDATES = 3
# Names as close as "InputProcessor" and "Processor" are enough.
_SURE = 0.75
# Fewer parameters or members than these are shared by chance.
TELLING = 3


def similar_symbols(source: VllmSource, symbol: str, homes: dict[str, list[str]]) -> list[str]:
    """Symbols that may be a missing one, the likeliest first.

    A member is looked for among the members of its class (wherever that is now, or whatever it is called now) and
    among the names of its file; anything else in its file and folder. What vLLM 0.27.1 had beside it is no new name.

    Args:
        source: The tree.
        symbol: What is not there.
        homes: Files that define what symbols begin with.
    """
    path, _, qualname = symbol.partition("::")
    owner, _, name = qualname.rpartition(".")
    pool = _members_pool(source, path, owner, name, homes) if owner else _folder_pool(source, path)
    pinned = pinned_signatures()
    _, siblings = pinned.get(owner_of(symbol), ("", frozenset()))
    scored = [
        (score, candidate)
        for candidate in pool
        if candidate.qualname.rpartition(".")[2] not in siblings - {name} and not was_pinned(candidate.symbol)
        if (score := _score(source, candidate, name, pinned.get(symbol))) >= _LIMIT
    ]
    best = sorted(scored, key=lambda pair: (-pair[0], pair[1].path != path, pair[1].symbol))
    return list(dict.fromkeys(candidate.symbol for _, candidate in best))[:_NUM_CANDIDATES]


def name_similarity(left: str, right: str) -> float:
    """0 to 1: by letters, or by words ("_try_promote_blocked" and "handle_blocked" share one of four)."""
    a, b = left.strip("_").lower(), right.strip("_").lower()
    words_a, words_b = _words(left), _words(right)
    by_words = 2 * len(words_a & words_b) / (len(words_a) + len(words_b)) if words_a and words_b else 0.0
    return max(SequenceMatcher(None, a, b).ratio(), by_words)


def _words(name: str) -> set[str]:
    return {word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name)}


def _score(source: VllmSource, candidate: Found, name: str, pinned: Signature | None) -> float:
    kind, names = signature(source, candidate.path, candidate.qualname)
    by_name = name_similarity(name, candidate.qualname.rpartition(".")[2])
    if pinned is None:
        return by_name
    pinned_kind, pinned_names = pinned
    if kind != pinned_kind and by_name < 1:
        return 0.0
    if kind == "value" or len(pinned_names) < TELLING:
        return by_name
    weighed = _NAME_WEIGHT * by_name + (1 - _NAME_WEIGHT) * overlap(names, pinned_names)
    return max(weighed, by_name) if by_name > _SURE else weighed


def overlap(left: frozenset[str], right: frozenset[str]) -> float:
    """Which share of all names two sets have in common."""
    return len(left & right) / max(len(left | right), 1)


def _members_pool(source: VllmSource, path: str, owner: str, name: str, homes: dict[str, list[str]]) -> list[Found]:
    """Members of every class that may be the owner, its bases included, and a function of the name in the file."""
    owners = [found for home in (path, *homes.get(owner.partition(".")[0], ())) if (found := find(source, home, owner))]
    if not owners:
        names = [found for found in _folder_pool(source, path) if name_similarity(owner, found.qualname) >= _LIMIT]
        owners = [found for found in names if source.definitions(found.path).names[found.qualname].kind == "class"]
    classes = list(owners)
    for found in classes:
        if source.definitions(found.path).names[found.qualname].kind == "class":
            classes += [base for base in bases_of(source, found) if base not in classes]
    pool = [
        Found(found.path, f"{found.qualname}.{member}", 0)
        for found in classes
        for member in source.definitions(found.path).members(found.qualname)
    ]
    defined_here = source.definitions(path).names.items()
    return pool + [
        Found(path, other, 0)
        for other, defined in defined_here
        if "." not in other and defined.kind != "import" and name_similarity(name, other) == 1
    ]


def _folder_pool(source: VllmSource, path: str) -> list[Found]:
    """What the files of a folder define at their top level. If the folder is gone: the nearest one above it."""
    folder = path.rpartition("/")[0]
    while folder and not source.has_folder(f"{folder}/"):
        folder = folder.rpartition("/")[0]
    files = [file for file in source.paths if file.rpartition("/")[0] == folder]
    return [
        Found(file, name, found.line)
        for file in sorted(files)
        for name, found in source.definitions(file).names.items()
        if "." not in name and found.kind != "import"
    ]
