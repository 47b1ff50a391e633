"""Owns what the launches of several kernels have in common: checks of arguments, and numbers about the GPU."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

import torch

from minivllm.kernels.triton_guard import next_power_of_2

# The matrix units multiply in steps of 16 numbers.
_LEAST_DIM = 16
FP8_DTYPES = (torch.float8_e4m3fn, torch.float8_e5m2)
_REQUESTS_PADDED = (64, 512, 4096, 32768)
MOST_REQUESTS = _REQUESTS_PADDED[-1]


@dataclass(frozen=True, slots=True)
class KVScales:
    """What the numbers of a cache stand for: number * scale. Only an FP8 cache needs other scales than 1."""

    key: float = 1.0
    value: float = 1.0

    def score_scale(self, head_dim: int) -> float:
        """What query . key is multiplied with, so that a softmax over powers of 2 is the softmax over powers of e."""
        return self.key * head_dim**-0.5 * math.log2(math.e)


UNSCALED = KVScales()


def padded_size(size: int) -> int:
    """A tile's side: the next power of two."""
    return max(_LEAST_DIM, next_power_of_2(size))


def padded_requests(num_requests: int) -> int:
    """How many a program looks at that looks at all requests: one of few sizes, so that a kernel compiled for one batch
    serves the next."""
    return next(size for size in _REQUESTS_PADDED if size >= num_requests)


class Gpu(NamedTuple):
    """What decides the sizes of tiles.

    Attributes:
        processors: Multiprocessors.
        capability: 80 is Ampere, 90 Hopper; 0 if it is not NVIDIA's.
        stages: Buffers of a pipelined loop. A gfx942 has 64 KB of shared memory where an sm_80 has 163.
        launches_early: Whether kernels are launched before those in front of them have ended, see `early_launch.py`.
    """

    processors: int
    capability: int
    stages: int
    launches_early: bool = False


# Stands in for a GPU where kernels are interpreted: few processors, so that tests split contexts as a GPU does.
INTERPRETER = Gpu(processors=2, capability=90, stages=3)


@cache
def gpu_of(device: torch.device) -> Gpu:
    """The facts of a device."""
    if device.type != "cuda":
        return INTERPRETER
    facts = torch.cuda.get_device_properties(device)
    if torch.version.hip is not None:
        return Gpu(facts.multi_processor_count, capability=0, stages=2)
    capability = facts.major * 10 + facts.minor
    launches_early = capability >= 90 and os.environ.get("MINIVLLM_PDL") != "0"
    return Gpu(facts.multi_processor_count, capability, stages=3, launches_early=launches_early)


class LayerTensors(NamedTuple):
    """What the launches of attention have anew in each layer. All else a step's layers have in common.

    Attributes:
        query: (tokens, num_heads, head_dim).
        key, value: (tokens, num_kv_heads, head_dim), the step's own.
        key_pages, value_pages: (num_blocks, block_size, num_kv_heads, head_dim).
        out: As the query.
    """

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    key_pages: torch.Tensor
    value_pages: torch.Tensor
    out: torch.Tensor


NO_LAYER = (None,) * len(LayerTensors._fields)


class LayerLaunch:
    """A launch that every layer of a step repeats, each with tensors of its own, which lie in memory alike.

    Triton looks at each argument of a launch to find the program that was compiled for such arguments. Making these
    arguments and looking at them takes the host far longer than the launch itself, and all layers come to the same
    program: it is kept, with everything that is no layer's own.

    Args:
        kernel: Compiled by Triton, or interpreted: then nothing is kept but the arguments.
        grid: Of programs.
        own: Which parameters of the kernel are a layer's own, and what they are. A descriptor gets the tensor as base.
        arguments: Of the first layer, in order; then the named ones, and options of the launch.
    """

    __slots__ = ("_arguments", "_boxes", "_grid", "_kernel", "_options", "_program", "_tensors")

    def __init__(self, kernel: Any, grid: tuple[int, ...], own: dict[str, str], *arguments: Any, **named: Any) -> None:
        self._kernel, self._grid = kernel, (*grid, 1, 1)[:3]
        self._program = kernel[self._grid](*arguments, **named)
        given = dict(zip(kernel.arg_names, arguments, strict=False)) | named
        self._arguments = {name: given.pop(name) for name in kernel.arg_names}
        self._options = given
        places = [(name, LayerTensors._fields.index(what)) for name, what in own.items()]
        self._tensors = [place for place in places if isinstance(self._arguments[place[0]], torch.Tensor)]
        self._boxes = [(self._arguments[name], which) for name, which in places if (name, which) not in self._tensors]
        self._take(NO_LAYER)

    def again(self, layer: LayerTensors) -> None:
        """Launch it for another layer."""
        self._take(layer)
        if self._program is None:
            self._kernel[self._grid](**self._arguments, **self._options)
        else:
            self._program[self._grid](*self._arguments.values())
        self._take(NO_LAYER)  # its memory serves the next layer

    def _take(self, layer: Sequence[Any]) -> None:
        for name, which in self._tensors:
            self._arguments[name] = layer[which]
        for box, which in self._boxes:
            box.base = layer[which]


def check_paged(query: torch.Tensor, kv_cache: torch.Tensor, block_table: torch.Tensor, seq_lens: torch.Tensor) -> None:
    """Refuse arguments of paged attention that do not belong together.

    Raises:
        ValueError: Says which.
    """
    heads, kv_heads = query.shape[1], kv_cache.shape[3]
    if heads % kv_heads:
        raise ValueError(f"{heads} query heads cannot share {kv_heads} KV heads")
    if kv_cache.shape[4] != query.shape[2]:
        raise ValueError(f"kv_cache has head size {kv_cache.shape[4]}, query {query.shape[2]}")
    if kv_cache.dtype != query.dtype and kv_cache.dtype not in FP8_DTYPES:
        raise ValueError(f"kv_cache is {kv_cache.dtype}, and must be {query.dtype} like the query, or FP8")
    for name, tensor, rank in (("block_table", block_table, 2), ("seq_lens", seq_lens, 1)):
        if tensor.dtype != torch.int32 or tensor.dim() != rank or (tensor.numel() and tensor.stride(-1) != 1):
            raise ValueError(f"{name} must be contiguous int32 of {rank} dimensions, got {tensor.dtype}")
    if query.numel() and query.stride()[1:] != (query.shape[2], 1):
        raise ValueError(f"the heads of one token of query must be contiguous, got strides {query.stride()}")
    if kv_cache.numel() and kv_cache.stride()[3:] != (kv_cache.shape[4], 1):
        raise ValueError(f"the heads of one token of kv_cache must be contiguous, got strides {kv_cache.stride()}")
