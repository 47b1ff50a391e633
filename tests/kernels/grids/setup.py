"""What every grid needs: where it runs, how much of it, random requests in random pages, and what counts as equal."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import torch

from minivllm.kernels.triton_guard import cdiv

Case = TypeVar("Case")
PAGE_SIZES = [1, 3, 16, 20, 64, 128]
HEAD_DIMS = [64, 80, 96, 128, 256]
GROUPS = [1, 2, 3, 4, 7, 8]
NAN = float("nan")
# ||got - expected|| / ||expected||. float16 and bfloat16 round each number to 2**-11 and 2**-8 of itself.
TOLERANCE = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}


@dataclass(frozen=True)
class Setup:
    """Where a grid runs, and how much of it."""

    device: torch.device
    full: bool
    seed: int
    shard: int = 0
    shards: int = 1
    capability: int = 90  # of the GPU, 90 for 9.0
    compile_only: bool = False  # for a GPU that is not here: launches compile, and results mean nothing

    @property
    def is_gpu(self) -> bool:
        return self.compile_only or self.device.type == "cuda"

    @property
    def fp8_dtypes(self) -> list[torch.dtype]:
        """The 8-bit formats that the GPU converts."""
        return [torch.float8_e5m2] if self.capability < 89 else [torch.float8_e5m2, torch.float8_e4m3fn]

    @property
    def dtypes(self) -> list[torch.dtype]:
        """What is computed in. Triton's interpreter cannot multiply bfloat16."""
        if self.is_gpu:
            return [torch.bfloat16, torch.float16, torch.float32]
        return [torch.float32, torch.float16]

    def dtype(self, index: int) -> torch.dtype:
        """One of them for each case in turn; on a GPU mostly bfloat16."""
        if self.is_gpu:
            return self.dtypes[max(0, index % 6 - 3)]
        return self.dtypes[index % 2]

    def choose(self, cases: Sequence[Case], count: int, full_count: int) -> list[Case]:
        """Some of many cases, others with another seed."""
        chosen = random.Random(self.seed).sample(cases, min(len(cases), full_count if self.full else count))
        return chosen[self.shard :: self.shards]


class Pages(NamedTuple):
    """Requests whose tokens lie in random pages. Every slot that no token was written to is NaN."""

    kv_cache: torch.Tensor  # (2, num_blocks, block_size, kv_heads, head_dim)
    block_table: torch.Tensor  # (requests, max blocks) int32, -1 past the end
    seq_lens: torch.Tensor  # (requests,) int32
    tokens: list[torch.Tensor]  # by request (2, tokens, kv_heads, head_dim)


def fill_pages(lengths: list[int], block_size: int, kv_heads: int, head_dim: int, dtype: torch.dtype) -> Pages:
    """Give each request random keys and values, and pages in random order."""
    counts = [cdiv(length, block_size) for length in lengths]
    free = torch.randperm(sum(counts) + 3).tolist()
    kv_cache = torch.full((2, len(free), block_size, kv_heads, head_dim), NAN).to(dtype)
    block_table = torch.full((len(lengths), max(1, *counts)), -1, dtype=torch.int32)
    tokens = []
    for request, (length, count) in enumerate(zip(lengths, counts, strict=True)):
        pages = torch.tensor([free.pop() for _ in range(count)], dtype=torch.int64)
        block_table[request, :count] = pages
        new = torch.randn(2, length, kv_heads, head_dim).to(dtype)
        position = torch.arange(length)
        kv_cache[:, pages[position // block_size], position % block_size] = new
        tokens.append(new)
    return Pages(kv_cache, block_table, torch.tensor(lengths, dtype=torch.int32), tokens)


def poisoned(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """An output that nobody has written yet."""
    return torch.full(tuple(shape), NAN, dtype=dtype, device=device)


def assert_near(got: torch.Tensor, expected: torch.Tensor, what: Any, tolerance: float | None = None) -> None:
    """Compare with a reference in float64. NaN never passes."""
    limit = TOLERANCE[got.dtype] if tolerance is None else tolerance
    difference = (got.double().cpu() - expected.double().cpu()).norm() / expected.double().norm().clamp_min(1e-30).cpu()
    assert difference <= limit, f"{what}: differs by {difference:.1e} of the norm, allowed is {limit:.1e}"
    worst = (got.double().cpu() - expected.double().cpu()).abs().max() if got.numel() else torch.tensor(0.0)
    scale = expected.double().abs().max().cpu() if got.numel() else torch.tensor(0.0)
    assert worst <= 30 * limit * scale, f"{what}: one number is off by {worst:.1e}, the largest is {scale:.1e}"
