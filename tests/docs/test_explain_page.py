"""The blocks of docs/explain.md are what their commands print, and the page names every topic."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

from minivllm.analysis.explain import TOPICS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "explain.md").read_text(encoding="utf-8")


def without_line_numbers(text: str) -> str:
    """Source places without their lines, and without the blanks behind them."""
    return re.sub(r"\.py:\d+ *", ".py ", text)


def test_every_block_is_what_its_command_prints() -> None:
    spec = importlib.util.spec_from_file_location("generate_explain", ROOT / "docs" / "generate_explain.py")
    assert spec is not None
    assert spec.loader is not None
    generator = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generator)
    assert PAGE.count("$ minivllm explain ") >= 6
    hint = "run: python docs/generate_explain.py"
    assert without_line_numbers(generator.filled(PAGE)) == without_line_numbers(PAGE), hint


def test_the_page_names_every_topic() -> None:
    for topic in TOPICS:
        assert f"| `{topic}` |" in PAGE
