"""The pictures and blocks of docs/maps.md are what their commands print."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "maps.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate_maps", ROOT / "docs" / "generate_maps.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def without_line_numbers(text: str) -> str:
    """Source places without their lines, and without the blanks that keep columns behind them straight."""
    return re.sub(r"\.py:\d+ *", ".py ", text)


def text_of(svg: str) -> str:
    return without_line_numbers(re.sub(r"<[^>]*>", "", svg))


def test_every_block_is_what_its_command_prints(generator: ModuleType) -> None:
    assert PAGE.count("$ minivllm map ") >= 6
    assert without_line_numbers(generator.filled(PAGE)) == without_line_numbers(PAGE), (
        "run: python docs/generate_maps.py"
    )


def test_every_picture_is_what_its_command_draws(generator: ModuleType) -> None:
    drawn = generator.pictures(PAGE)
    assert [path.name for path in drawn] == ["map-process.svg", "map-hot.svg"]
    for path, svg in drawn.items():
        assert text_of(path.read_text(encoding="utf-8")) == text_of(svg), "run: python docs/generate_maps.py"
        assert f"](assets/{path.name})" in PAGE
