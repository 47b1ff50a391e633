"""Owns which architectures there are, what each may have, and which class computes it. No torch before `resolve`.

To add a model, write its file beside llama.py and add one entry to `ARCHITECTURES`.

Upstream: vllm/model_executor/models/registry.py.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, cast

from minivllm.models.errors import ModelError

if TYPE_CHECKING:
    import torch

    from minivllm.attention.backend import AttentionBackend
    from minivllm.models.config import DecoderConfig


@dataclass(frozen=True, slots=True)
class Architecture:
    """One entry of the table.

    Attributes:
        name: What config.json calls it.
        module: Where its class is.
        class_name: The class.
        models: Models published under it, for the docs.
        features: Keys of config.json that are refused elsewhere, and that this class computes.
        defaults: What transformers assumes for keys that config.json leaves out, where it differs from Llama.
        gguf: What a .gguf file calls it; None if such files name another architecture.
        gguf_pairs: Whether .gguf files keep query and key in the row order of neighbouring pairs.
    """

    name: str
    module: str
    class_name: str
    models: str
    features: tuple[str, ...] = ()
    defaults: dict[str, Any] = field(default_factory=dict)
    gguf: str | None = None
    gguf_pairs: bool = False


ARCHITECTURES = {
    entry.name: entry
    for entry in (
        Architecture(
            "LlamaForCausalLM",
            "minivllm.models.llama",
            "Llama",
            "Llama 2, 3, 3.1, 3.2 (text), SmolLM2, TinyLlama",
            features=("attention_bias", "mlp_bias"),
            gguf="llama",
            gguf_pairs=True,
        ),
        Architecture(
            "MistralForCausalLM",
            "minivllm.models.mistral",
            "Mistral",
            "Mistral 7B",
            features=("sliding_window",),
            defaults={"sliding_window": 4096, "num_key_value_heads": 8, "max_position_embeddings": 131072},
            gguf_pairs=True,
        ),
        Architecture(
            "Qwen2ForCausalLM",
            "minivllm.models.qwen2",
            "Qwen2",
            "Qwen2, Qwen2.5",
            features=("use_sliding_window",),
            defaults={"max_position_embeddings": 32768, "sliding_window": 4096, "max_window_layers": 28},
            gguf="qwen2",
        ),
        Architecture(
            "Qwen3ForCausalLM",
            "minivllm.models.qwen3",
            "Qwen3",
            "Qwen3 0.6B to 32B (dense)",
            features=("attention_bias", "use_sliding_window"),
            defaults={
                "head_dim": 128,
                "max_position_embeddings": 32768,
                "sliding_window": 4096,
                "max_window_layers": 28,
            },
            gguf="qwen3",
        ),
    )
}


class CausalLM(Protocol):
    """What the runner and the loader need of a model."""

    config: DecoderConfig

    def __init__(self, config: DecoderConfig, device: torch.device, dtype: torch.dtype) -> None: ...

    def weight_slots(self) -> dict[str, torch.Tensor]:
        """Where each tensor of a checkpoint goes, by its Hugging Face name: views into the model's parameters."""
        ...

    def use_kernels(self) -> None:
        """Run on our kernels from now on: on a GPU, or in Triton's interpreter."""
        ...

    def forward(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        kv_caches: list[torch.Tensor],
        attention: AttentionBackend[Any],
        metadata: Any,
        wanted: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Hidden states of the tokens of a batch.

        Args:
            input_ids, positions: (tokens,) int64.
            kv_caches: One a layer.
            attention, metadata: What attends, and what it prepared for this batch.
            wanted: (requests,) the last token of each request, if nobody will look at others; None is all tokens.

        Returns:
            (tokens, hidden_size), or (requests, hidden_size).
        """
        ...

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Scores over the vocabulary for the given hidden states."""
        ...


def architecture_of(name: str) -> Architecture:
    """The entry of an architecture. Raises ModelError if there is none."""
    if name not in ARCHITECTURES:
        raise ModelError(f"architecture {name!r} is not supported; supported are {', '.join(ARCHITECTURES)}")
    return ARCHITECTURES[name]


def resolve(name: str) -> type[CausalLM]:
    """The class that computes an architecture. Raises ModelError if there is none."""
    entry = architecture_of(name)
    return cast(type[CausalLM], getattr(importlib.import_module(entry.module), entry.class_name))
