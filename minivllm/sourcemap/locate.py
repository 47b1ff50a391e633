"""Owns finding where a symbol of ours stands, by reading source files. Imports none of them."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path

from minivllm.sourcemap.definitions import Definition, Definitions, read_definitions

PACKAGE = Path(__file__).parent.parent


def locate(symbol: str) -> tuple[Path, int] | None:
    """File and line of "minivllm.core.scheduler:Scheduler.schedule"; None if it is not there.

    Methods, classes, functions (nested ones too), constants, fields of a class and members of an enum have a place.
    """
    found = definition(symbol)
    return None if found is None else (file_of(symbol), found.line)


def shown(symbol: str) -> str:
    """The place of a symbol for a screen, below the package: "core/scheduler.py:142"."""
    place = locate(symbol)
    return f"{place[0].relative_to(PACKAGE)}:{place[1]}" if place else symbol


def definition(symbol: str) -> Definition | None:
    """What defines "module:qualname"; None if nothing does."""
    _, _, qualname = symbol.partition(":")
    path = file_of(symbol)
    found = definitions_of(path).names.get(qualname) if path.exists() else None
    return None if found is None or found.kind == "import" else found


def file_of(symbol: str) -> Path:
    """The file of "module:qualname", whether it is there or not."""
    below = Path(*symbol.partition(":")[0].split("."))
    file = PACKAGE.parent / below.with_suffix(".py")
    return file if file.exists() else PACKAGE.parent / below / "__init__.py"


def source_files() -> list[Path]:
    """Every Python file of the package, in order. kernels/ and walkthroughs/ are links in a checkout; they count."""
    walked = os.walk(PACKAGE, followlinks=True)
    return sorted(Path(folder, name) for folder, _, names in walked for name in names if name.endswith(".py"))


@lru_cache(maxsize=512)
def definitions_of(path: Path) -> Definitions:
    """What one of our files defines; read once."""
    return read_definitions(path.read_text(encoding="utf-8"))
