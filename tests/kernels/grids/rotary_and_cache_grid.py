"""Norm, rotation and KV write in one: against each page size, head size and cache dtype."""

from __future__ import annotations

import itertools

import torch

from minivllm.kernels.launch import UNSCALED, KVScales
from minivllm.kernels.rotary_and_cache import rotary_and_cache, rotary_and_cache_reference
from tests.kernels.grids.setup import HEAD_DIMS, NAN, PAGE_SIZES, TOLERANCE, Setup, assert_near

HEADS = [(1, 1), (6, 2), (9, 3), (16, 8), (7, 1)]
NUM_BLOCKS, TOKENS = 5, 6


def run(setup: Setup) -> int:
    cases = list(itertools.product(PAGE_SIZES, HEAD_DIMS, HEADS, [False, True], ["model", "e4m3", "e5m2"]))
    chosen = [(16, 128, (16, 8), True, "model"), (3, 80, (9, 3), False, "e4m3"), *setup.choose(cases, 10, 120)]
    for index, (block_size, head_dim, (heads, kv_heads), has_norm, cache) in enumerate(chosen):
        dtype = setup.dtype(index)
        kv_dtype = {"model": dtype, "e4m3": setup.fp8_dtypes[-1], "e5m2": torch.float8_e5m2}[cache]
        what = f"{block_size=} {head_dim=} {heads=} {kv_heads=} {has_norm=} {cache=} {dtype=}"
        shape = (2, NUM_BLOCKS, max(block_size, 2), kv_heads, head_dim)
        compare(setup, shape, heads, has_norm, dtype, kv_dtype, what)
    return len(chosen)


def representable(numbers: torch.Tensor, kv_dtype: torch.dtype) -> torch.Tensor:
    """Numbers that an FP8 cache holds exactly, with scales of 1/2, 1/4, ..."""
    return numbers.to(kv_dtype).to(numbers.dtype)


def compare(setup: Setup, shape, heads: int, has_norm: bool, dtype, kv_dtype, what: str) -> None:
    _, num_blocks, block_size, kv_heads, head_dim = shape
    row = (heads + 2 * kv_heads) * head_dim
    qkv = torch.randn(TOKENS, row + 8).to(dtype)[:, :row]  # rows further apart than they are long
    positions = torch.tensor([0, 5, 1000, 3, 3, 2])
    if kv_dtype.itemsize == 1 and not setup.is_gpu:
        # Triton's interpreter loses the carry where rounding to 8 bits ends in the next power of two (1.99 becomes 1),
        # so it is given numbers that need no rounding: neither turned nor normed.
        qkv, positions, has_norm = representable(qkv, kv_dtype), torch.zeros_like(positions), False
    slots = torch.randperm(num_blocks * block_size)[:TOKENS]
    slots[[1, 4]] = -1
    qkv[[1, 4]] = NAN
    angles = torch.outer(torch.arange(1001.0), 10000.0 ** -torch.linspace(0, 1, head_dim // 2))
    cos_sin = torch.cat((angles.cos(), angles.sin()), dim=1)
    norms = (torch.randn(head_dim).to(dtype), torch.randn(head_dim).to(dtype)) if has_norm else None
    scales = KVScales(0.5, 0.25) if kv_dtype.itemsize == 1 else UNSCALED
    cache = torch.full(shape, NAN).to(kv_dtype)

    wide, wide_cache = qkv.double(), cache.clone()
    rotary_and_cache_reference(
        wide,
        cos_sin.double(),
        positions,
        slots,
        wide_cache,
        heads,
        norms and tuple(w.double() for w in norms),
        scales=scales,
    )
    device = setup.device
    got, got_cache = qkv.clone().to(device), cache.to(device)
    on_device = (cos_sin.to(device), positions.to(device), slots.to(device))
    weights = tuple(weight.to(device) for weight in norms) if norms else None
    rotary_and_cache(got, *on_device, got_cache, heads, weights, scales=scales)

    real = slots >= 0
    assert got[~real.to(device)].isnan().all(), f"{what}: padding is left as it is"
    assert_near(got[real.to(device)], wide[real], what)
    assert torch.equal(got_cache.float().isnan().cpu(), wide_cache.float().isnan()), f"{what}: the written slots differ"
    # A number of 8 bits may be rounded to either neighbour where the kernel's float32 and float64 lie around a half.
    tolerance = {2: TOLERANCE.get(dtype), 4: TOLERANCE[torch.float32], 1: 0.02}[kv_dtype.itemsize]
    assert_near(got_cache.float().nan_to_num(7.0), wide_cache.float().nan_to_num(7.0), what, tolerance)
    slot_values = got_cache[1].flatten(0, 1)[slots[real].to(device)].float()
    own = qkv[real].view(-1, heads + 2 * kv_heads, head_dim)[:, heads + kv_heads :]
    if kv_dtype == dtype:
        assert torch.equal(slot_values.cpu(), own.float()), f"{what}: values are copied as they are"
