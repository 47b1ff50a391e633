"""Owns the 8-bit KV cache: which format a GPU can read, and how a number gets into it.

    stored = round(clamp(number / scale, -limit, limit))        number ~ stored * scale

Half the bytes of bfloat16, so half the time of a long decode and twice the tokens in the same memory. Both formats have
8 bits: e4m3 spends 3 of them on precision and ends at 448, e5m2 spends 2 and ends at 57344. Past the end there is
infinity or NaN, which one token would spread over all its successors: hence the clamp.

Upstream: vllm/model_executor/layers/quantization/kv_cache.py.
"""

from __future__ import annotations

import torch

from minivllm.kernels.triton_guard import jit, tl

# Compute capability from which NVIDIA's GPUs convert e4m3.
_FIRST_WITH_E4M3 = 89


def fp8_kv_dtype(name: str, capability: int) -> torch.dtype:
    """The dtype of an FP8 cache.

    Args:
        name: "fp8" takes the best that the GPU can read; "fp8_e4m3" or "fp8_e5m2" asks for one.
        capability: 90 for compute capability 9.0; 0 for a GPU that is not NVIDIA's.

    Raises:
        ValueError: The GPU cannot read that format.
    """
    if name not in ("fp8", "fp8_e4m3", "fp8_e5m2"):
        raise ValueError(f"unknown FP8 format {name!r}; known are fp8, fp8_e4m3, fp8_e5m2")
    if capability == 0:
        raise ValueError(
            "an FP8 KV cache needs an NVIDIA GPU: AMD's have an e4m3 of their own; leave kv_cache_dtype at auto"
        )
    if name == "fp8_e5m2" or (name == "fp8" and capability < _FIRST_WITH_E4M3):
        return torch.float8_e5m2
    if capability < _FIRST_WITH_E4M3:
        major, minor = divmod(capability, 10)
        raise ValueError(
            f"this GPU (compute capability {major}.{minor}) cannot convert e4m3, which needs 8.9; take fp8_e5m2 or fp8"
        )
    return torch.float8_e4m3fn


def into_cache_reference(numbers: torch.Tensor, dtype: torch.dtype, scale: float) -> torch.Tensor:
    """Numbers as a cache of some dtype holds them."""
    if dtype.itemsize > 1:
        return numbers.to(dtype)
    limit = torch.finfo(dtype).max
    return (numbers.float() / scale).clamp(-limit, limit).to(dtype)


@jit
def into_cache(numbers, dtype: tl.constexpr, inverse_scale, limit: tl.constexpr):
    """The same in a kernel. A limit of 0 says that the cache holds the model's own numbers."""
    if limit == 0:
        return numbers.to(dtype)
    scaled = numbers.to(tl.float32) * inverse_scale
    return tl.minimum(tl.maximum(scaled, -limit), limit).to(dtype)


def cache_limit(dtype: torch.dtype) -> float:
    """The largest number of an FP8 format; 0 for a dtype that needs no clamp."""
    return torch.finfo(dtype).max if dtype.itemsize == 1 else 0.0
