"""Makes small checkpoints with random weights, so that tests need no download."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
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


_GGUF_NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def save_gguf(
    file: Path,
    model: PreTrainedModel,
    kind: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    *,
    without: str = "",
    metadata: dict[str, Any] | None = None,
) -> None:
    """Write a model as llama.cpp's converter does: its names, its row order of query and key."""
    config = model.config
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_uint32("tokenizer.ggml.eos_token_id", 2)
    for key, value in (metadata or {}).items():
        writer.add_string(key, value)
    for name, tensor in model.state_dict().items():
        target = _gguf_name(name)
        if (name == "lm_head.weight" and config.tie_word_embeddings) or target == without:
            continue
        weight = tensor.float().numpy()
        if name.endswith("q_proj.weight"):
            weight = _pairs_from_halves(weight, config.num_attention_heads)
        if name.endswith("k_proj.weight"):
            weight = _pairs_from_halves(weight, config.num_key_value_heads)
        chosen = kind if weight.ndim == 2 else gguf.GGMLQuantizationType.F32
        writer.add_tensor(target, gguf.quants.quantize(weight, chosen), raw_dtype=chosen)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _gguf_name(name: str) -> str:
    top = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    stem = name.removesuffix(".weight")
    if stem in top:
        return f"{top[stem]}.weight"
    _, _, layer, inner = stem.split(".", 3)
    return f"blk.{layer}.{_GGUF_NAMES[inner]}.weight"


def _pairs_from_halves(weight: np.ndarray, heads: int) -> np.ndarray:
    rows, columns = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)
