"""The scripts that write pages, as modules, and how drawings are compared."""

from __future__ import annotations

import importlib.util
import re
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


@cache
def generator(name: str) -> ModuleType:
    """docs/generate_NAME.py, or docs/build_site.py."""
    file = "build_site" if name == "site" else f"generate_{name}"
    spec = importlib.util.spec_from_file_location(file, DOCS / f"{file}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def page(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def without_line_numbers(text: str) -> str:
    """Source places without their lines, which move with every change, and without the blanks behind them."""
    return re.sub(r"\.py:\d+ *", ".py ", text)
