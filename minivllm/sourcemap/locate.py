"""Owns finding where a symbol of ours stands, by reading source files. Imports none of them."""

from __future__ import annotations

import ast
from functools import lru_cache
from pathlib import Path

_PACKAGE = Path(__file__).parent.parent


def locate(symbol: str) -> tuple[Path, int] | None:
    """File and line of "minivllm.core.scheduler:Scheduler.schedule"; None if it is not there."""
    module, _, qualname = symbol.partition(":")
    path = _PACKAGE.parent / Path(*module.split(".")).with_suffix(".py")
    if not path.exists():
        return None
    line = _lines(path).get(qualname)
    return None if line is None else (path, line)


def shown(symbol: str) -> str:
    """The place of a symbol for a screen, below the package: "core/scheduler.py:142"."""
    place = locate(symbol)
    return f"{place[0].relative_to(_PACKAGE)}:{place[1]}" if place else symbol


@lru_cache(maxsize=64)
def _lines(path: Path) -> dict[str, int]:
    lines: dict[str, int] = {}

    def visit(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                lines[prefix + child.name] = child.lineno
                visit(child, f"{prefix}{child.name}.")

    visit(ast.parse(path.read_text(encoding="utf-8")), "")
    return lines
