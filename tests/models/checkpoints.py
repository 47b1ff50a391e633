"""Makes small checkpoints with random weights, so that tests need no download."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PretrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

VOCAB_SIZE = 96


_CLASSES: dict[str, tuple[type[PretrainedConfig], type[PreTrainedModel]]] = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "mistral": (MistralConfig, MistralForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
}
# What transformers would otherwise assume of a model of a few billion parameters.
_OWN_SIZES: dict[str, dict[str, Any]] = {"mistral": {"sliding_window": None}, "qwen3": {"head_dim": 8}}


def save_model(
    kind: str, folder: Path, *, max_shard_size: str = "1GB", dtype: torch.dtype = torch.float32, **overrides: Any
) -> PreTrainedModel:
    """Save a random model of a kind in Hugging Face layout. Returns transformers' model: the reference."""
    sizes = {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 256,
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "initializer_range": 0.3,
        **_OWN_SIZES.get(kind, {}),
    }
    torch.manual_seed(0)
    config_class, model_class = _CLASSES[kind]
    model = model_class(config_class(**{**sizes, **overrides})).to(dtype).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:  # all ones would hide a norm that forgets its weight
                parameter.copy_(1 + 0.2 * torch.randn_like(parameter))
            if name.endswith("bias"):  # and all zeros a bias that is never added
                parameter.copy_(0.2 * torch.randn_like(parameter))
    model.save_pretrained(folder, max_shard_size=max_shard_size)
    return model


def save_llama(folder: Path, **options: Any) -> PreTrainedModel:
    """Save a random Llama in Hugging Face layout. Returns transformers' model: the reference."""
    return save_model("llama", folder, **options)


@torch.no_grad()
def reference_logits(model: PreTrainedModel, token_ids: list[int]) -> torch.Tensor:
    """Teacher-forced logits of every position: (tokens, vocab_size)."""
    logits: torch.Tensor = model(torch.tensor([token_ids])).logits[0]
    return logits
