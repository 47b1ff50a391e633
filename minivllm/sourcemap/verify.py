"""Owns holding the source map against a vLLM: each symbol is ok, moved, renamed or gone.

Files are read, nothing is imported, so any version can be asked about on any machine.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from difflib import SequenceMatcher
from typing import Any

from minivllm.sourcemap.resolve import Found, find, resolve
from minivllm.sourcemap.rows import NEWER, PINNED, not_built, rows
from minivllm.sourcemap.signatures import pinned_signatures, pinned_symbols, signature, was_pinned
from minivllm.sourcemap.similar import TELLING, overlap, similar_symbols
from minivllm.sourcemap.vllm_source import VllmSource

# Two classes or functions of one name that share less than this are not the same.
_NAMESAKE = 0.2

STATUSES = ("ok", "moved", "renamed", "gone")


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one symbol.

    Attributes:
        symbol: As the map names it.
        named_in: The version that the map names it for.
        concepts: What it stands for.
        status: "ok", "moved" (same name in another file), "renamed" (candidates), or "gone".
        found: Where it is now, "path::qualname:line"; None if it is renamed or gone.
        candidates: Symbols that may be it, the likeliest first.
    """

    symbol: str
    named_in: str
    concepts: tuple[str, ...]
    status: str
    found: str | None = None
    candidates: tuple[str, ...] = ()


def verify(source: VllmSource) -> dict[str, Any]:
    """Look for every symbol of the map.

    A version that the map has a column of its own for (0.32.0) is asked for that column's symbols, too.

    Args:
        source: A tree of vLLM's files.

    Returns:
        {"version", "source", "pinned", "ok", "moved", "renamed", "gone", "rows"}: counts, and one row a symbol.
    """
    named = [(symbol, PINNED, tuple(concepts)) for symbol, concepts in pinned_symbols().items()]
    successors: dict[str, str | None] = {}
    if source.version == NEWER:
        successors = {row.vllm[PINNED] or "": row.vllm[NEWER] for row in (*rows(), *not_built())}
        known = {symbol for symbol, _, _ in named}
        newer = {row.vllm[NEWER]: (row.concept,) for row in (*rows(), *not_built())}
        named += [(symbol, NEWER, concepts) for symbol, concepts in newer.items() if symbol and symbol not in known]
    missing = [symbol for symbol, _, _ in named if not _is_ok(resolve(source, symbol))]
    homes = _homes(source, missing)
    verdicts = [_verdict(source, *entry, homes, successors) for entry in named]
    counts = {status: sum(verdict.status == status for verdict in verdicts) for status in STATUSES}
    return {
        "version": source.version,
        "source": source.name,
        "pinned": PINNED,
        **counts,
        "rows": [asdict(verdict) for verdict in verdicts],
    }


def _is_ok(found: Found | None) -> bool:
    return found is not None and not found.is_imported


def _verdict(
    source: VllmSource,
    symbol: str,
    named_in: str,
    concepts: tuple[str, ...],
    homes: dict[str, list[str]],
    successors: dict[str, str | None],
) -> Verdict:
    found = resolve(source, symbol)
    if _is_ok(found):
        assert found is not None
        return Verdict(symbol, named_in, concepts, "ok", f"{found.symbol}:{found.line}")
    path, _, qualname = symbol.partition("::")
    if found is not None:
        return Verdict(symbol, named_in, concepts, "moved", f"{found.symbol}:{found.line}")
    if not qualname:
        return Verdict(symbol, named_in, concepts, "gone")
    if elsewhere := _elsewhere(source, symbol, homes):
        best, *others = sorted(elsewhere, key=lambda there: _nearness(path, there.path), reverse=True)
        others_named = tuple(there.symbol for there in others)
        return Verdict(symbol, named_in, concepts, "moved", f"{best.symbol}:{best.line}", others_named)
    candidates = similar_symbols(source, symbol, homes)
    successor = successors.get(symbol)
    if successor and resolve(source, successor):
        candidates = [successor, *(candidate for candidate in candidates if candidate != successor)]
    status = "renamed" if candidates else "gone"
    return Verdict(symbol, named_in, concepts, status, candidates=tuple(candidates))


def _homes(source: VllmSource, symbols: Iterable[str]) -> dict[str, list[str]]:
    """Files that define the classes, functions and constants that some symbols begin with. Every file is read once."""
    heads = {symbol.partition("::")[2].partition(".")[0] for symbol in symbols} - {""}
    homes: dict[str, list[str]] = {head: [] for head in heads}
    if not heads:
        return homes
    names = "|".join(sorted(map(re.escape, heads)))
    pattern = re.compile(rf"^[ \t]*(?:class|def|async def)[ ]+({names})\b|^({names})[ ]*[:=]", re.MULTILINE)
    for path in sorted(source.paths):
        for name in {by_word or by_value for by_word, by_value in pattern.findall(source.text(path))}:
            if name in source.definitions(path).names:
                homes[name].append(path)
    return homes


def _elsewhere(source: VllmSource, symbol: str, homes: dict[str, list[str]]) -> list[Found]:
    """The same name in other files; not a namesake that 0.27.1 had, too, or that has little in common with it."""
    qualname = symbol.partition("::")[2]
    kind, names = pinned_signatures().get(symbol, ("", frozenset()))
    found = [find(source, home, qualname) for home in homes.get(qualname.partition(".")[0], ())]
    same = []
    for there in found:
        if there is None or there.is_imported or was_pinned(there.symbol):
            continue
        new_kind, new_names = signature(source, there.path, there.qualname)
        if new_kind == kind and min(len(names), len(new_names)) >= TELLING and overlap(names, new_names) < _NAMESAKE:
            continue
        same.append(there)
    return same


def _nearness(old: str, new: str) -> float:
    """How much two paths have in common: folders in their order, and the file's name."""
    return SequenceMatcher(None, old.split("/"), new.split("/")).ratio()
