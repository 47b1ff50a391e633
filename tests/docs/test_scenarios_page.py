"""The page of scenarios is what their definitions and their recorded runs say."""

from __future__ import annotations

import importlib.util
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_page_of_scenarios_is_up_to_date() -> None:
    spec = importlib.util.spec_from_file_location("generate_scenarios", ROOT / "docs" / "generate_scenarios.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    page = (ROOT / "docs" / "scenarios.md").read_text(encoding="utf-8")
    assert page == module.render(), "run: python docs/generate_scenarios.py"
