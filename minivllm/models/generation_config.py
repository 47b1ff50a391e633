"""Owns which sampling parameters a model's files recommend (`generation_config.json`). No torch."""

from __future__ import annotations

from typing import Any

from minivllm.models.config import read_json
from minivllm.models.errors import ModelError
from minivllm.models.model_zoo import find_model

# Theirs on the left, ours on the right.
_NAMES = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "max_new_tokens": "max_tokens",
}


def recommended_sampling(model: str) -> dict[str, Any]:
    """The parameters that a model's files set; none for a .gguf file, which has no place for them.

    Raises:
        ModelError: One of them is no number.

    Upstream: vllm/config/model.py::ModelConfig.get_diff_sampling_param.
    """
    files = find_model(model)
    file = files.path / "generation_config.json"
    if files.kind != "folder" or not file.exists():
        return {}
    given = read_json(file)
    for name in _NAMES:
        if not isinstance(given.get(name), int | float | None) or isinstance(given.get(name), bool):
            raise ModelError(f"{file}: {name} must be a number, got {given[name]!r:.60}")
    return {ours: given[theirs] for theirs, ours in _NAMES.items() if given.get(theirs) is not None}
