"""The pages of the site are what the lessons and their runs give."""

from __future__ import annotations

import importlib.util
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_pages_are_up_to_date() -> None:
    spec = importlib.util.spec_from_file_location("generate_lessons", ROOT / "docs/generate_lessons.py")
    assert spec is not None
    assert spec.loader is not None
    generator = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generator)
    pages = generator.pages()
    there = [*(ROOT / "docs/lessons").glob("*.md"), *(ROOT / "docs/zh/lessons").glob("*.md")]
    assert sorted(pages) == sorted(there), "run: python docs/generate_lessons.py"
    for path, text in pages.items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name}: run: python docs/generate_lessons.py"


def test_every_page_is_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    for path in (ROOT / "docs/lessons").glob("*.md"):
        assert f"lessons/{path.name}" in navigation
