"""Owns models that are shapes only: a config.json of a real model, to be filled with random weights. No torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

_FOLDER = Path(__file__).with_name("shapes")


def shape_names() -> list[str]:
    """Every shape that is here."""
    return sorted(path.name for path in _FOLDER.iterdir() if (path / "config.json").exists())


def model_arguments(name: str) -> dict[str, Any]:
    """What an engine needs to have a model: a shape of that name with random weights, or any model at hand.

    A shape has no tokenizer: prompts are token ids.
    """
    if name in shape_names():
        return {"model": str(_FOLDER / name), "load_format": "dummy", "skip_tokenizer_init": True}
    from minivllm.models.model_zoo import find_model

    return {"model": str(find_model(name).path)}
