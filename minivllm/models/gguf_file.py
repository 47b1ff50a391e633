"""Owns GGUF files (llama.cpp's format): the model's sizes in our terms, its tensors under Hugging Face's names.

Quantised tensors are dequantised on the way in, a few rows at a time. Two things differ from a Hugging Face folder:
names, and for some architectures the row order of query and key, because llama.cpp rotates neighbouring pairs there
where we rotate halves.

Upstream: vllm/model_executor/model_loader/gguf_loader.py.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import torch

from minivllm.models.config import DecoderConfig, from_dict
from minivllm.models.errors import ModelError
from minivllm.models.gguf_header import GGUFTensor, read_header
from minivllm.models.registry import ARCHITECTURES, architecture_of
from minivllm.models.weights import check_finite

_ARCHITECTURES = {entry.gguf: entry.name for entry in ARCHITECTURES.values() if entry.gguf}
_NUMBERS_AT_ONCE = 2**18
_ROPE_FACTORS = "rope_freqs.weight"

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
    "attention.sliding_window": "sliding_window",
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
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
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
        self._rope_factors = self._tensors.pop(_ROPE_FACTORS, None)
        self.config = self._config()

    def _config(self) -> DecoderConfig:
        kind = self._metadata.get("general.architecture")
        if kind not in _ARCHITECTURES:
            known = ", ".join(_ARCHITECTURES)
            raise ModelError(f"{self.path}: architecture {kind!r} is not supported; supported are {known}")
        self._refuse_unsupported(kind)
        raw = {ours: self._metadata.get(f"{kind}.{theirs}") for theirs, ours in _KEYS.items()}
        # llama.cpp's converter writes Mistral as "llama"; a window is what tells them apart.
        windowed = kind == "llama" and raw["sliding_window"] is not None
        embedding = self._tensors.get("model.embed_tokens.weight")
        raw |= {
            "architectures": ["MistralForCausalLM" if windowed else _ARCHITECTURES[kind]],
            "vocab_size": embedding.shape[0] if embedding else self._metadata.get(f"{kind}.vocab_size"),
            "rope_parameters": self._rope(kind),
            "tie_word_embeddings": "lm_head.weight" not in self._tensors,
            "eos_token_id": self._metadata.get("tokenizer.ggml.eos_token_id"),
            "dtype": "bfloat16",
            "attention_bias": kind != "qwen2" and "model.layers.0.self_attn.q_proj.bias" in self._tensors,
            "mlp_bias": "model.layers.0.mlp.up_proj.bias" in self._tensors,
        }
        try:
            config = from_dict(raw)
        except ModelError as error:
            raise ModelError(f"{self.path}: {error}") from None
        for key in ("rope.dimension_count", "attention.value_length"):
            value = self._metadata.get(f"{kind}.{key}", config.head_dim)
            if value != config.head_dim:
                raise ModelError(
                    f"{self.path}: {key} is {value}, and only the head size, {config.head_dim}, is supported"
                )
        return config

    def _refuse_unsupported(self, kind: str) -> None:
        parts, experts = self._metadata.get("split.count", 1), self._metadata.get(f"{kind}.expert_count", 0)
        if parts not in (0, 1):
            raise ModelError(f"{self.path}: one of {parts} parts of a model; merge them with llama-gguf-split --merge")
        if experts:
            raise ModelError(f"{self.path}: expert_count is {experts}, and mixtures of experts are not supported")

    def _rope(self, kind: str) -> dict[str, Any]:
        rope = {"rope_theta": self._metadata.get(f"{kind}.rope.freq_base", 10000.0)}
        if self._rope_factors is not None:
            factors = self._rows(self._rope_factors, 0, 1).squeeze(0)  # (head_dim / 2,)
            return rope | {"rope_type": "factors", "factors": factors.tolist()}
        scaling = self._metadata.get(f"{kind}.rope.scaling.type", "none")
        factor = self._metadata.get(f"{kind}.rope.scaling.factor")
        return rope | {"rope_type": "default" if scaling == "none" else scaling, "factor": factor}

    def shapes(self) -> dict[str, tuple[int, ...]]:
        self._check_size()
        return {name: tensor.shape for name, tensor in self._tensors.items()}

    def stored(self) -> dict[str, tuple[str, str]]:
        """Of each tensor, by its Hugging Face name: its name in the file, and its type there."""
        return {name: (tensor.name, _layout(self.path, tensor)[0].name) for name, tensor in self._tensors.items()}

    def types(self) -> dict[str, int]:
        """How many tensors are stored in each type."""
        return dict(Counter(_layout(self.path, tensor)[0].name for tensor in self._tensors.values()))

    def file_of(self, name: str) -> Path:
        return self.path

    def copy_into(self, name: str, slot: torch.Tensor) -> None:
        tensor, heads = self._tensors[name], self._heads_of_pairs(name)
        if slot.dim() == 1:
            row = self._rows(tensor, 0, 1).squeeze(0)
            slot.copy_(_halves_from_pairs(row, heads) if heads else row)
            return
        # A head's rows change places among each other only, so the pieces are whole heads.
        rows_at_once = len(slot) // heads if heads else max(1, _NUMBERS_AT_ONCE // slot.shape[1])
        for start in range(0, len(slot), rows_at_once):
            part = slot[start : start + rows_at_once]
            rows = self._rows(tensor, start, len(part))
            part.copy_(_halves_from_pairs(rows, 1) if heads else rows)

    def _heads_of_pairs(self, name: str) -> int:
        """How many heads a tensor has if its rows are in the order of pairs; 0 if they are not."""
        heads = {"q_proj": self.config.num_attention_heads, "k_proj": self.config.num_key_value_heads}
        return heads.get(name.split(".")[-2], 0) if architecture_of(self.config.architecture).gguf_pairs else 0

    def _rows(self, tensor: GGUFTensor, start: int, count: int) -> torch.Tensor:
        """Some rows, dequantised: (count, columns) float32. A vector is one row."""
        from gguf.quants import dequantize

        kind, row_bytes = _layout(self.path, tensor)
        with self.path.open("rb") as file:
            raw = np.fromfile(file, np.uint8, count * row_bytes, offset=tensor.offset + start * row_bytes)
        if len(raw) != count * row_bytes:
            raise ModelError(f"{self.path}: tensor {tensor.name}: expected {count * row_bytes} bytes, got {len(raw)}")
        rows = raw.reshape(count, row_bytes)
        with np.errstate(all="ignore"):  # damaged scales are found below
            numbers = torch.from_numpy(dequantize(rows.view(_NUMBERS.get(kind.name, np.uint8)), kind))
        check_finite(self.path, tensor.name, numbers)
        return numbers

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
    if kind.name not in quantisations():
        known = ", ".join(quantisations())
        raise ModelError(f"{path}: tensor {tensor.name} has type {kind.name}; supported are {known}")
    numbers_per_group, bytes_per_group = GGML_QUANT_SIZES[kind]
    columns = tensor.shape[-1]
    if columns % numbers_per_group:
        raise ModelError(
            f"{path}: tensor {tensor.name}: expected columns in groups of {numbers_per_group} for type {kind.name}, "
            f"got {columns}"
        )
    return kind, columns // numbers_per_group * bytes_per_group


@functools.cache
def quantisations() -> tuple[str, ...]:
    """The types that the installed package gguf can dequantise, by name."""
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
    from gguf.quants import dequantize

    names = []
    for kind in GGMLQuantizationType:
        try:
            dequantize(np.zeros(GGML_QUANT_SIZES[kind][1], np.uint8).view(_NUMBERS.get(kind.name, np.uint8)), kind)
        except NotImplementedError:
            continue
        names.append(kind.name)
    return tuple(names)


def _hugging_face_name(name: str) -> str:
    parts = name.split(".")
    if len(parts) == 4 and parts[0] == "blk" and parts[2] in _IN_LAYER:
        return f"model.layers.{parts[1]}.{_IN_LAYER[parts[2]]}.{parts[3]}"
    return _TOP_LEVEL.get(name, name)


def _halves_from_pairs(rows: torch.Tensor, heads: int) -> torch.Tensor:
    """Row order of rotation: from (x0, y0, x1, y1, ...) of each head to (x0, x1, ..., y0, y1, ...)."""
    return rows.view(heads, len(rows) // heads // 2, 2, -1).transpose(1, 2).reshape(rows.shape)
