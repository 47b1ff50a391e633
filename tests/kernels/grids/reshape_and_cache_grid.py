"""Writing keys and values into pages, bit for bit."""

from __future__ import annotations

import itertools

import torch

from minivllm.kernels.launch import KVScales
from minivllm.kernels.reshape_and_cache import reshape_and_cache, reshape_and_cache_reference
from tests.kernels.grids.rotary_and_cache_grid import representable
from tests.kernels.grids.setup import HEAD_DIMS, Setup

PAGE_SIZES = [1, 3, 8, 16, 20, 128]
KV_HEADS = [1, 3, 8]
POISON = float("nan")


def compare(key: torch.Tensor, value: torch.Tensor, slots: torch.Tensor, shape: tuple[int, ...], what: str) -> None:
    """Run both on caches full of NaN; whatever the kernel should not touch must still be NaN afterwards."""
    caches = torch.full((2, *shape), POISON, dtype=key.dtype)
    expected = caches.clone()
    reshape_and_cache(key, value, caches[0], caches[1], slots)
    reshape_and_cache_reference(key, value, expected[0], expected[1], slots)
    for got, want, name in ((caches[0], expected[0], "keys"), (caches[1], expected[1], "values")):
        assert torch.equal(got.view(torch.int16), want.view(torch.int16)), f"{what}: {name} differ"


def random_slots(num_tokens: int, num_slots: int, share_of_padding: float) -> torch.Tensor:
    """Different slots in random order, some of them -1."""
    slots = torch.randperm(num_slots)[:num_tokens]
    slots[torch.rand(num_tokens) < share_of_padding] = -1
    return slots


def run(setup: Setup) -> int:
    torch.set_default_device(setup.device)
    try:
        return run_on_default_device(setup)
    finally:
        torch.set_default_device("cpu")


def run_on_default_device(setup: Setup) -> int:
    cases = setup.choose(list(itertools.product(PAGE_SIZES, HEAD_DIMS, KV_HEADS)), 20, 1000)
    for block_size, head_dim, kv_heads in cases:
        num_blocks = 2 + 20 // block_size
        shape = (num_blocks, block_size, kv_heads, head_dim)
        what = f"block_size {block_size}, head_dim {head_dim}, kv_heads {kv_heads}"
        # A slice of a fused projection, so that tokens are further apart than they are long.
        fused = torch.randn(7, 3, kv_heads, head_dim, dtype=torch.bfloat16)
        slots = random_slots(7, num_blocks * block_size, share_of_padding=0.3)
        compare(fused[:, 1], fused[:, 2], slots, shape, what)
    shape = (4, 16, 2, 64)
    one = torch.randn(1, 2, 64, dtype=torch.float16)
    compare(one, -one, torch.tensor([63]), shape, "one token, last slot")
    compare(one[:0], one[:0], torch.empty(0, dtype=torch.int64), shape, "no token")
    compare(one.expand(5, 2, 64), one.expand(5, 2, 64), torch.full((5,), -1), shape, "padding only")
    for fp8 in setup.fp8_dtypes:
        new = representable(torch.randn(3, 2, 64), fp8)
        new[:, :, ::7] = 60_000
        caches = torch.full((2, *shape), POISON).to(fp8)
        expected = caches.clone()
        slots, scales = torch.tensor([5, -1, 62]), KVScales(0.5, 0.25)
        reshape_and_cache(new, -new, caches[0], caches[1], slots, scales)
        reshape_and_cache_reference(new, -new, expected[0], expected[1], slots, scales)
        assert torch.equal(caches.view(torch.uint8), expected.view(torch.uint8)), f"{fp8=}"
        assert caches[0].float().nan_to_num().max() == torch.finfo(fp8).max, "what is too large is clamped"
    return len(cases) + 5
