"""README's first screen is the output of a real run."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[2]


def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate_readme", ROOT / "docs" / "generate_readme.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def without_line_numbers(text: str) -> str:
    return re.sub(r"\.py:\d+", ".py", text)


def test_the_trace_in_readme_is_the_recorded_run() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert without_line_numbers(generator().filled(readme)) == without_line_numbers(readme), (
        "run: python docs/generate_readme.py"
    )
    assert "query_start_loc [0, 1, 257, 260]" in readme
