"""Owns what is told about one model: its sizes, what is special about it, and what it costs in memory.

Read from the headers of its files; no weights are loaded.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import torch

from minivllm.models.config import DecoderConfig, RopeConfig
from minivllm.models.loader import ModelLoader
from minivllm.models.model_zoo import ModelFiles

_TOLD_OTHERWISE = ("rope", "full_attention_layers", "attention_bias", "mlp_bias")
_DTYPES = (torch.float32, torch.bfloat16)


def describe(files: ModelFiles) -> dict[str, Any]:
    """Facts by name, in plain values. Raises ModelError if the model's files are damaged or not supported."""
    loader = ModelLoader(files)
    config = loader.config
    sizes = {key: value for key, value in asdict(config).items() if key not in _TOLD_OTHERWISE}
    kv_numbers = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim
    return {
        "name": files.name,
        "path": str(files.path),
        **sizes,
        "eos_token_ids": list(config.eos_token_ids),
        "layers_with_window": _layers_with_window(config),
        "biases": loader.biases(),
        "rope": _rope(config.rope),
        "parameters": loader.weight_bytes(torch.float32) // torch.float32.itemsize,
        "weight_bytes": {_name(dtype): loader.weight_bytes(dtype) for dtype in _DTYPES},
        "kv_bytes_per_token": {_name(dtype): kv_numbers * dtype.itemsize for dtype in _DTYPES},
        "quantisations": loader.quantisations(),
    }


def _layers_with_window(config: DecoderConfig) -> list[int]:
    return [layer for layer in range(config.num_hidden_layers) if config.window_of(layer) is not None]


def _rope(rope: RopeConfig) -> dict[str, Any]:
    """Only what its kind uses."""
    unused = {
        "default": {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings", "factors"},
        "linear": {"low_freq_factor", "high_freq_factor", "original_max_position_embeddings", "factors"},
        "llama3": {"factors"},
        "factors": {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"},
    }[rope.kind]
    return {key: value for key, value in asdict(rope).items() if key not in unused}


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
