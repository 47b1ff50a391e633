"""Owns what a machine allows at best: how fast it reads and multiplies, and what follows for a model."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from minivllm.layers.linear import Linear
from minivllm.models.loader import ModelLoader
from minivllm.models.model_zoo import find_model

_BYTES = 2**28  # more than any cache holds


def floor(model: str, dtypes: list[str], prompt_tokens: int, output_tokens: int) -> list[dict[str, Any]]:
    """For each precision: one stream reads every weight once a token; a batch multiplies every weight with every token.

    Args:
        model: Name or folder.
        dtypes: Precisions.
        prompt_tokens: Of the batch workload.
        output_tokens: Of the batch workload.
    """
    loader = ModelLoader(find_model(model))
    bandwidth = read_bytes_per_s()
    floors = []
    for name in dtypes:
        dtype = getattr(torch, name)
        # Every token goes through the layers, and the head sees those that are sampled from. An embedding is looked up.
        config = loader.config
        head = config.vocab_size * config.hidden_size
        tables = head if config.tie_word_embeddings else 2 * head
        layers = loader.weight_bytes(dtype) // dtype.itemsize - tables
        read_bytes = (layers + head) * dtype.itemsize
        flops = multiply_flops(dtype)
        seconds = 2 * (layers * (prompt_tokens + output_tokens) + head * output_tokens) / flops
        floors.append(
            {
                "dtype": name,
                "weight_bytes_read_per_step": read_bytes,
                "read_gb_per_s": bandwidth / 1e9,
                "multiply_gflops": flops / 1e9,
                "decode_tokens_per_s": bandwidth / read_bytes,
                "output_tokens_per_s": output_tokens / seconds,
            }
        )
    return floors


def read_bytes_per_s() -> float:
    """Bytes a second that are read of memory, by a sum."""
    numbers = torch.ones(_BYTES // 4)
    return _BYTES / _best(numbers.sum)


def multiply_flops(dtype: torch.dtype) -> float:
    """Operations a second of one large product with packed weights: 512 rows, so that they stay in the cache."""
    layer = Linear(1024, 4096, torch.device("cpu"), dtype, bias=False)
    layer.weight.fill_(0.01)
    layer.pack()
    x = torch.full((512, 1024), 0.01, dtype=dtype)
    return 2 * 512 * 1024 * 4096 / _best(lambda: layer.forward(x))


def _best(call: Callable[[], Any], repeats: int = 20) -> float:
    """Noise only ever adds time, so the floor is the best of several; the first runs, which warm up, never are."""
    times = []
    with torch.inference_mode():
        for _ in range(repeats):
            start = time.perf_counter()
            call()
            times.append(time.perf_counter() - start)
    return min(times)
