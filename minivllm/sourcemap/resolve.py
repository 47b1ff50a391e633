"""Owns finding one symbol of vLLM, "vllm/v1/engine/core.py::EngineCore.step", in a tree of vLLM's files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from minivllm.sourcemap.definitions import Definition
from minivllm.sourcemap.vllm_source import VllmSource

# A chain of re-exports or base classes longer than this is a circle.
_MAX_STEPS = 12


@dataclass(frozen=True, slots=True)
class Found:
    """Where a name is defined.

    Attributes:
        path: The file.
        qualname: The name there. Of an inherited member: that of the base class.
        line: The line.
        is_imported: The file that was asked only imports it.
    """

    path: str
    qualname: str
    line: int
    is_imported: bool = False

    @property
    def symbol(self) -> str:
        return f"{self.path}::{self.qualname}" if self.qualname else self.path


def resolve(source: VllmSource, symbol: str) -> Found | None:
    """Find a symbol where it says it is. A member that a base class in the tree defines counts as found.

    Args:
        source: The tree.
        symbol: "path::qualname", a file, or a folder with a slash at its end.
    """
    path, _, qualname = symbol.partition("::")
    if not qualname:
        is_there = source.has_folder(path) if path.endswith("/") else path in source.paths
        return Found(path, "", 1) if is_there else None
    return find(source, path, qualname)


def find(source: VllmSource, path: str, qualname: str, steps: int = _MAX_STEPS) -> Found | None:
    """Find a name in a file: defined there, inherited by its class, or imported from elsewhere in the tree."""
    if steps == 0:
        return None
    names = source.definitions(path).names
    if (direct := names.get(qualname)) is not None:
        return _follow(source, path, direct, steps) if direct.kind == "import" else Found(path, qualname, direct.line)
    owner, _, member = qualname.rpartition(".")
    if not owner:
        return None
    owner_found = find(source, path, owner, steps - 1)
    if owner_found is None:
        return None
    inherited = _find_member(source, owner_found, member, steps)
    if inherited is not None and owner_found.is_imported:
        return Found(inherited.path, inherited.qualname, inherited.line, is_imported=True)
    return inherited


def bases_of(source: VllmSource, found: Found, steps: int = _MAX_STEPS) -> Iterator[Found]:
    """The base classes of a class that are in the tree."""
    definition = source.definitions(found.path).names[found.qualname]
    for base in definition.bases:
        head, _, rest = base.partition(".")
        target = find(source, found.path, head if not rest else base, steps - 1)
        if target is not None:
            yield Found(target.path, target.qualname, target.line)


def _find_member(source: VllmSource, owner: Found, member: str, steps: int) -> Found | None:
    own = source.definitions(owner.path).names.get(f"{owner.qualname}.{member}")
    if own is not None:
        return Found(owner.path, f"{owner.qualname}.{member}", own.line)
    if steps == 0 or source.definitions(owner.path).names[owner.qualname].kind != "class":
        return None
    members = (_find_member(source, base, member, steps - 1) for base in bases_of(source, owner, steps))
    return next((found for found in members if found is not None), None)


def _follow(source: VllmSource, path: str, imported: Definition, steps: int) -> Found | None:
    """Where an imported name is defined; None if that is outside of the tree."""
    assert imported.origin is not None
    module, name = imported.origin
    if not name:
        return None
    for file in _files_of(_absolute(module, path)):
        if file in source.paths and (target := find(source, file, name, steps - 1)) is not None:
            return Found(target.path, target.qualname, target.line, is_imported=True)
    return None


def _absolute(module: str, path: str) -> str:
    """A module's full name; dots in front of it count from the package of the file that imports it."""
    below = module.lstrip(".")
    level = len(module) - len(below)
    if level == 0:
        return module
    package = path.split("/")[:-1]
    return ".".join(filter(None, [*package[: len(package) - level + 1], below]))


def _files_of(module: str) -> tuple[str, str]:
    below = module.replace(".", "/")
    return f"{below}.py", f"{below}/__init__.py"
