"""Owns the directory map: every folder and file of the package, its process, and what it owns."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from minivllm.sourcemap.locate import PACKAGE
from minivllm.sourcemap.places import place_of

# The first docstring of a file, without parsing the rest.
_DOC = re.compile(r'^(?:#[^\n]*\n)*\s*"""(.+?)"""', re.DOTALL)


@dataclass(frozen=True, slots=True)
class Entry:
    """A folder or a file.

    Attributes:
        path: Below the folder of the package: "minivllm/core/scheduler.py".
        is_folder: Whether it is a folder.
        layer, process: See `places.Place`.
        owns: The first sentences of its docstring: what it owns.
        upstream: vLLM's file or folder of the same work, if the docstring names one.
    """

    path: str
    is_folder: bool
    layer: str
    process: str
    owns: str
    upstream: str = ""


def directory_map() -> list[Entry]:
    """Folders and files in reading order: a folder, its files, then its folders."""
    return list(_entries(PACKAGE))


def _entries(folder: Path) -> list[Entry]:
    entries = [_entry(folder, folder / "__init__.py")]
    entries += [_entry(file, file) for file in sorted(folder.glob("*.py")) if not file.name.startswith("__")]
    for below in sorted(folder.iterdir()):
        if below.is_dir() and (below / "__init__.py").exists():
            entries += _entries(below)
    return entries


def _entry(path: Path, documented: Path) -> Entry:
    below = path.relative_to(PACKAGE.parent)
    place = place_of(".".join(below.with_suffix("").parts))
    found = _DOC.match(documented.read_text(encoding="utf-8"))
    text = found[1] if found else ""
    upstream = re.search(
        r"Upstream: (?:the end of |the first loop of |the second loop of )?(vllm/[\w/]+(?:\.py)?)", text
    )
    owns = " ".join(text.partition("\n\n")[0].split())
    return Entry(below.as_posix(), path.is_dir(), place.layer, place.process, owns, upstream[1] if upstream else "")
