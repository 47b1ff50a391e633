"""Owns what the pinned vLLM's symbols looked like: parameters of functions, members of classes. Names only.

With these a symbol that another version has renamed is recognised by more than its name.

python -m minivllm.sourcemap.signatures WHERE    writes signatures.tsv from vLLM 0.27.1
"""

from __future__ import annotations

import sys
from functools import lru_cache
from pathlib import Path

from minivllm.sourcemap.resolve import resolve
from minivllm.sourcemap.rows import PINNED, not_built, rows
from minivllm.sourcemap.vllm_source import VllmSource, open_vllm

_FILE = Path(__file__).with_name("signatures.tsv")


def signature(source: VllmSource, path: str, qualname: str) -> tuple[str, frozenset[str]]:
    """Kind of a definition ("class", "function", "value"), and its parameters or members."""
    definitions = source.definitions(path)
    found = definitions.names[qualname]
    names = definitions.members(qualname) if found.kind == "class" else found.parameters
    return found.kind, frozenset(names)


@lru_cache(maxsize=1)
def pinned_signatures() -> dict[str, tuple[str, frozenset[str]]]:
    """Of every symbol that the source map names in vLLM 0.27.1, and of the classes that these are members of."""
    lines = (line.split("\t") for line in _FILE.read_text(encoding="utf-8").splitlines())
    return {symbol: (kind, frozenset(names.split())) for symbol, kind, names in lines}


def pinned_symbols() -> dict[str, list[str]]:
    """Every symbol of vLLM 0.27.1 on the map, with the concepts that it stands for."""
    concepts: dict[str, list[str]] = {}
    for row in (*rows(), *not_built()):
        if symbol := row.vllm[PINNED]:
            concepts.setdefault(symbol, []).append(row.concept)
    return concepts


def owner_of(symbol: str) -> str:
    """The class of a member; "" for anything else."""
    path, _, qualname = symbol.partition("::")
    owner = qualname.rpartition(".")[0]
    return f"{path}::{owner}" if owner else ""


def was_pinned(symbol: str) -> bool:
    """Whether vLLM 0.27.1 is known to have had this symbol: such a name is nobody's new one."""
    _, names = pinned_signatures().get(owner_of(symbol), ("", frozenset()))
    return symbol in pinned_signatures() or symbol.rpartition(".")[2] in names


def render(source: VllmSource) -> str:
    """The file's text.

    Raises:
        ValueError: A symbol is not there.
    """
    lines = []
    for symbol in sorted({*pinned_symbols(), *map(owner_of, pinned_symbols())} - {""}):
        found = resolve(source, symbol)
        if found is None:
            raise ValueError(f"{symbol} is not in {source.name} ({source.version})")
        if found.qualname:
            kind, names = signature(source, found.path, found.qualname)
            lines.append("\t".join([symbol, kind, " ".join(sorted(names))]))
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    _FILE.write_text(render(open_vllm(sys.argv[1])), encoding="utf-8")
