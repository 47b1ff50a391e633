"""Owns what a log's header says of the model: its sizes, what its weights take, and where each tensor of it went.

Read from the headers of the model's files, and from the parameters' own memory: a tensor of the checkpoint belongs to
the rows of the parameter that it would be copied into. No weights are read.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import asdict
from typing import Any

import torch
from torch import nn

from minivllm.config import VllmConfig
from minivllm.models.config import DecoderConfig
from minivllm.models.loader import ModelLoader
from minivllm.models.model_zoo import find_model
from minivllm.worker.kv_cache_sizing import KVCacheSizing, size_kv_cache
from minivllm.worker.worker import resolve_dtype

_SIZES = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "tie_word_embeddings",
)


def model_shape(vllm_config: VllmConfig, device: str) -> dict[str, Any]:
    """The shape of the model that a run uses.

    Args:
        vllm_config: The run's settings.
        device: "cpu" or "cuda".

    Returns:
        `architecture`, the sizes by config.json's names, `dtype` and `bytes_per_number` of the run, `weight_bytes`,
        `windows` ([tokens that a query sees or null for all, layers]) and `tensors`: one row for all layers that have
        the same, [checkpoint's name, type in the file (null: random), our parameter, first row, rows, columns (null: a
        vector), how many times].
    """
    name = vllm_config.model_config.model
    loader = ModelLoader(find_model(name))
    config = loader.config
    dtype = resolve_dtype(vllm_config.model_config.dtype, torch.device(device), config.dtype)
    windows = Counter(config.window_of(layer) for layer in range(config.num_hidden_layers))
    stored = {} if vllm_config.model_config.load_format == "dummy" else loader.stored()
    return {
        "architecture": config.architecture,
        **{size: getattr(config, size) for size in _SIZES},
        "dtype": str(dtype).removeprefix("torch."),
        "bytes_per_number": dtype.itemsize,
        "weight_bytes": loader.weight_bytes(dtype),
        "windows": [[window, layers] for window, layers in windows.items()],
        "tensors": _tensors(loader, stored),
    }


def kv_cache_facts(vllm_config: VllmConfig, device: str, sizing: KVCacheSizing | str) -> dict[str, Any]:
    """How large the KV cache is, and why: `KVCacheSizing` in plain values.

    Args:
        vllm_config: The run's settings; the number of blocks is known.
        device: "cpu" or "cuda".
        sizing: The worker's report; of one in another process, where the number of blocks comes from.
    """
    if isinstance(sizing, str):
        config: DecoderConfig = ModelLoader(find_model(vllm_config.model_config.model)).config
        dtype = resolve_dtype(vllm_config.model_config.dtype, torch.device(device), config.dtype)
        if vllm_config.cache_config.cache_dtype != "auto":
            dtype = torch.float8_e4m3fn  # both formats have 8 bits
        return {**asdict(size_kv_cache(vllm_config, config, dtype, torch.device(device))), "reason": sizing}
    return asdict(sizing)


def _tensors(loader: ModelLoader, stored: dict[str, tuple[str, str]]) -> list[list[Any]]:
    model = loader.skeleton()
    assert isinstance(model, nn.Module), "a model keeps its parameters as a module"
    parameters = {parameter.untyped_storage().data_ptr(): (name, parameter) for name, parameter in _named(model)}
    rows: Counter[tuple[Any, ...]] = Counter()
    for name, slot in model.weight_slots().items():
        own_name, parameter = parameters[slot.untyped_storage().data_ptr()]
        columns = parameter.shape[1] if parameter.dim() > 1 else None
        first = slot.storage_offset() // math.prod(parameter.shape[1:])
        in_file, kind = stored.get(name, (name, None))
        rows[(_any_layer(in_file), kind, _any_layer(own_name), first, slot.shape[0], columns)] += 1
    return [[*row, times] for row, times in rows.items()]


def _named(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    return list(model.named_parameters())


def _any_layer(name: str) -> str:
    """ "model.layers.3.mlp.up_proj.weight" and "blk.3.ffn_up.weight" without the number of the layer."""
    return re.sub(r"(?<=\.)\d+(?=\.)", "*", name)
