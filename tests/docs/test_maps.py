"""The pictures and blocks of docs/maps.md, and of its twin in Chinese, are what their commands print."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
PAGES = {name: (ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("maps.md", "zh/maps.md")}


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


@pytest.mark.parametrize("name", PAGES)
def test_every_block_is_what_its_command_prints(generator: ModuleType, name: str) -> None:
    text = PAGES[name]
    assert text.count("$ minivllm map ") >= 6
    assert without_line_numbers(generator.filled(text)) == without_line_numbers(text), (
        "run: python docs/generate_maps.py"
    )


@pytest.mark.parametrize("name", PAGES)
def test_every_picture_is_what_its_command_draws(generator: ModuleType, name: str) -> None:
    drawn = generator.pictures(PAGES[name])
    assert [path.name for path in drawn] == ["map-process.svg", "map-hot.svg"]
    for path, svg in drawn.items():
        assert text_of(path.read_text(encoding="utf-8")) == text_of(svg), "run: python docs/generate_maps.py"
        assert f"](assets/{path.name})" in PAGES[name]
