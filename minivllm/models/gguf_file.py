"""Owns GGUF files (llama.cpp's format): the model's sizes in our terms, its tensors under Hugging Face's names.

Quantised tensors are dequantised on the way in, a few rows at a time. Two things differ from a Hugging Face folder:
names, and the row order of query and key, because llama.cpp rotates neighbouring pairs where we rotate halves.

Upstream: vllm/model_executor/model_loader/gguf_loader.py.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch

from minivllm.models.config import DecoderConfig, from_dict
from minivllm.models.errors import ModelError
from minivllm.models.gguf_header import GGUFTensor, read_header

_ARCHITECTURES = {"llama": "LlamaForCausalLM"}
_ROWS_AT_ONCE = 2048

# Their metadata keys, after the architecture's name, and config.json's.
_KEYS = {
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
}
_TOP_LEVEL = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_IN_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


class GGUFFile:
    """One .gguf file: configuration and weights."""

    def __init__(self, path: Path) -> None:
        self.path = path
        header = read_header(path)
        self._metadata = header.metadata
        self._tensors = {_hugging_face_name(tensor.name): tensor for tensor in header.tensors}
        self.config = self._config()

    def _config(self) -> DecoderConfig:
        kind = self._metadata.get("general.architecture")
        if kind not in _ARCHITECTURES:
            known = ", ".join(_ARCHITECTURES)
            raise ModelError(f"{self.path}: architecture {kind!r} is not supported; supported are {known}")
        embedding = self._tensors.get("model.embed_tokens.weight")
        raw = {ours: self._metadata.get(f"{kind}.{theirs}") for theirs, ours in _KEYS.items()}
        raw |= {
            "architectures": [_ARCHITECTURES[kind]],
            "vocab_size": embedding.shape[0] if embedding else self._metadata.get(f"{kind}.vocab_size"),
            "rope_parameters": self._rope(kind),
            "tie_word_embeddings": "lm_head.weight" not in self._tensors,
            "eos_token_id": self._metadata.get("tokenizer.ggml.eos_token_id"),
            "dtype": "bfloat16",
        }
        try:
            config = from_dict(raw)
        except ModelError as error:
            raise ModelError(f"{self.path}: {error}") from None
        if self._metadata.get(f"{kind}.rope.dimension_count", config.head_dim) != config.head_dim:
            raise ModelError(f"{self.path}: rotating only a part of each head is not supported")
        return config

    def _rope(self, kind: str) -> dict[str, Any]:
        if "rope_freqs.weight" in self._tensors:
            raise ModelError(f"{self.path}: rope scaling by rope_freqs.weight is not supported")
        scaling = self._metadata.get(f"{kind}.rope.scaling.type", "none")
        return {
            "rope_type": "default" if scaling == "none" else scaling,
            "rope_theta": self._metadata.get(f"{kind}.rope.freq_base", 10000.0),
            "factor": self._metadata.get(f"{kind}.rope.scaling.factor"),
        }

    def shapes(self) -> dict[str, tuple[int, ...]]:
        self._check_size()
        return {name: tensor.shape for name, tensor in self._tensors.items()}

    def file_of(self, name: str) -> Path:
        return self.path

    def copy_into(self, name: str, slot: torch.Tensor) -> None:
        heads = {"q_proj": self.config.num_attention_heads, "k_proj": self.config.num_key_value_heads}
        kind = name.split(".")[-2]
        tensor = self._tensors[name]
        if kind in heads:
            slot.copy_(_halves_from_pairs(self._rows(tensor, 0, len(slot)), heads[kind]))
        elif slot.dim() == 1:
            slot.copy_(self._rows(tensor, 0, 1).squeeze(0))
        else:
            for start in range(0, len(slot), _ROWS_AT_ONCE):
                part = slot[start : start + _ROWS_AT_ONCE]
                part.copy_(self._rows(tensor, start, len(part)))

    def _rows(self, tensor: GGUFTensor, start: int, count: int) -> torch.Tensor:
        """Some rows, dequantised: (count, columns) float32. A vector is one row."""
        from gguf.quants import dequantize

        kind, row_bytes = _layout(self.path, tensor)
        with self.path.open("rb") as file:
            raw = np.fromfile(file, np.uint8, count * row_bytes, offset=tensor.offset + start * row_bytes)
        rows = raw.reshape(count, row_bytes)
        return torch.from_numpy(dequantize(rows.view(_NUMBERS.get(kind.name, np.uint8)), kind))

    def _check_size(self) -> None:
        size = self.path.stat().st_size
        for tensor in self._tensors.values():
            end = tensor.offset + math.prod(tensor.shape[:-1]) * _layout(self.path, tensor)[1]
            if end > size:
                raise ModelError(
                    f"{self.path}: tensor {tensor.name}: expected to end at byte {end}, got a file of {size} bytes; "
                    "it is cut off: download it again"
                )


# What `dequantize` expects of tensors that are plain numbers; the others are bytes to it.
_NUMBERS: dict[str, type[np.generic]] = {"F32": np.float32, "F16": np.float16}


def _layout(path: Path, tensor: GGUFTensor) -> tuple[Any, int]:
    """A tensor's quantisation type, and the bytes of one row of it."""
    try:
        from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
    except ImportError:
        raise ModelError(f"{path}: reading GGUF weights needs the package gguf; run: pip install gguf") from None
    try:
        kind = GGMLQuantizationType(tensor.type)
    except ValueError:
        raise ModelError(
            f"{path}: tensor {tensor.name} has unknown type {tensor.type}; update the package gguf"
        ) from None
    numbers_per_group, bytes_per_group = GGML_QUANT_SIZES[kind]
    return kind, tensor.shape[-1] // numbers_per_group * bytes_per_group


def _hugging_face_name(name: str) -> str:
    parts = name.split(".")
    if len(parts) == 4 and parts[0] == "blk" and parts[2] in _IN_LAYER:
        return f"model.layers.{parts[1]}.{_IN_LAYER[parts[2]]}.{parts[3]}"
    return _TOP_LEVEL.get(name, name)


def _halves_from_pairs(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Row order of rotation: from (x0, y0, x1, y1, ...) of each head to (x0, x1, ..., y0, y1, ...)."""
    rows, columns = weight.shape
    return weight.view(heads, rows // heads // 2, 2, columns).transpose(1, 2).reshape(rows, columns)
