"""Writes a model as a .gguf file, as llama.cpp's converter does: its names, its row order of query and key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Kind
from gguf.quants import dequantize, quantize
from transformers import PreTrainedModel

_NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_NUMBERS = {Kind.F32: np.float32, Kind.F16: np.float16}


@torch.no_grad()
def save_gguf(
    file: Path,
    model: PreTrainedModel,
    kind: Kind = Kind.F32,
    *,
    without: str = "",
    metadata: dict[str, Any] | None = None,
    extra_tensors: dict[str, np.ndarray] | None = None,
) -> None:
    """Write a model with its matrices in one type. The model itself gets the weights that the file then holds."""
    config = model.config
    architecture = {"mistral": "llama"}.get(config.model_type, config.model_type)
    writer = gguf.GGUFWriter(file, architecture)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    if getattr(config, "head_dim", None) is not None:
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
    if config.model_type == "mistral" and config.sliding_window is not None:
        writer.add_sliding_window(config.sliding_window)
    writer.add_uint32("tokenizer.ggml.eos_token_id", 2)
    for key, value in (metadata or {}).items():
        (writer.add_string if isinstance(value, str) else writer.add_uint32)(key, value)
    for name, array in (extra_tensors or {}).items():
        writer.add_tensor(name, array)
    for name, tensor in model.state_dict().items():
        target = gguf_name(name)
        if (name == "lm_head.weight" and config.tie_word_embeddings) or target == without:
            continue
        chosen = kind if tensor.dim() == 2 else Kind.F32
        rows = _encode(tensor.float().numpy(), chosen)
        tensor.copy_(torch.from_numpy(dequantize(rows, chosen)))
        heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}.get(name.split(".")[-2])
        if heads and architecture == "llama":
            rows = _pairs_from_halves(rows, heads)
        writer.add_tensor(target, rows, raw_dtype=chosen)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _encode(weight: np.ndarray, kind: Kind) -> np.ndarray:
    """A matrix in a type: rounded if the package can do that, otherwise any rows of that type."""
    try:
        return quantize(weight, kind)
    except NotImplementedError:
        return _any_rows(weight.shape, kind)


def _any_rows(shape: tuple[int, ...], kind: Kind) -> np.ndarray:
    """Random bytes, without the groups whose scale happens to be NaN or large."""
    numbers, size = gguf.GGML_QUANT_SIZES[kind]
    generator, usable, needed = np.random.default_rng(0), np.empty((0, size), np.uint8), shape[0] * shape[1] // numbers
    while len(usable) < needed:
        groups = generator.integers(0, 256, (1024, size), np.uint8)
        with np.errstate(all="ignore"):
            magnitude = np.abs(dequantize(groups, kind)).max(axis=1)
        usable = np.concatenate((usable, groups[magnitude < 0.5]))  # NaN is not below anything
    return usable[:needed].reshape(shape[0], -1)


def gguf_name(name: str) -> str:
    """A tensor's name in such files, from its Hugging Face name."""
    top = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    stem, _, suffix = name.rpartition(".")
    if stem in top:
        return f"{top[stem]}.{suffix}"
    _, _, layer, inner = stem.split(".", 3)
    return f"blk.{layer}.{_NAMES[inner]}.{suffix}"


def _pairs_from_halves(rows: np.ndarray, heads: int) -> np.ndarray:
    """The converter's order, also for rows that are encoded already: whole rows change places."""
    return rows.reshape(heads, 2, len(rows) // heads // 2, -1).swapaxes(1, 2).reshape(rows.shape)
