"""Owns which class computes which architecture. No torch until a class is asked for.

To add a model, write its file beside llama.py and add one line to `_MODELS`.

Upstream: vllm/model_executor/models/registry.py.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Protocol, cast

from minivllm.models.config import LlamaConfig
from minivllm.models.errors import ModelError

if TYPE_CHECKING:
    import torch

    from minivllm.attention.backend import AttentionBackend

_MODELS = {
    "LlamaForCausalLM": ("minivllm.models.llama", "Llama"),
}


class CausalLM(Protocol):
    """What the runner and the loader need of a model."""

    config: LlamaConfig

    def __init__(self, config: LlamaConfig, device: torch.device, dtype: torch.dtype) -> None: ...

    def weight_slots(self) -> dict[str, torch.Tensor]:
        """Where each tensor of a checkpoint goes, by its Hugging Face name: views into the model's parameters."""
        ...

    def forward(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        kv_caches: list[torch.Tensor],
        attention: AttentionBackend[Any],
        metadata: Any,
    ) -> torch.Tensor:
        """Hidden states of every token of the batch."""
        ...

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Scores over the vocabulary for the given hidden states."""
        ...


def resolve(architecture: str) -> type[CausalLM]:
    """The class for an architecture's name. Raises ModelError if there is none."""
    if architecture not in _MODELS:
        raise ModelError(f"architecture {architecture!r} is not supported; supported are {', '.join(_MODELS)}")
    module, name = _MODELS[architecture]
    return cast(type[CausalLM], getattr(importlib.import_module(module), name))
