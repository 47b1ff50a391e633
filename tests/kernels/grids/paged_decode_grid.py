"""Decode attention: page sizes, head sizes, groups, windows, splits, and lengths at every edge."""

from __future__ import annotations

import itertools

import torch

from minivllm.kernels.launch import UNSCALED, KVScales
from minivllm.kernels.paged_decode import paged_decode, paged_decode_reference
from tests.kernels.grids.setup import GROUPS, HEAD_DIMS, PAGE_SIZES, Setup, assert_near, fill_pages, poisoned

WINDOWS = [None, 1, 40]
SPLITS = [1, 2, 8, None]
# Around pages of 16 to 128, tiles of 16 to 64, and splits of a few tiles; 0 is a padding row.
LENGTHS = [0, 1, 15, 16, 17, 63, 64, 65, 0, 127, 128, 129, 200]


def run(setup: Setup) -> int:
    cases = list(itertools.product(PAGE_SIZES, HEAD_DIMS, GROUPS, WINDOWS, SPLITS))
    chosen = [(16, 128, 2, None, 4), (1, 80, 3, None, 1), (128, 256, 7, 40, 8), *setup.choose(cases, 5, 150)]
    for index, (block_size, head_dim, group, window, splits) in enumerate(chosen):
        dtype = setup.dtype(index)
        lengths = LENGTHS if setup.full or index < 2 else [0, 16, 130, 65]
        what = f"{block_size=} {head_dim=} {group=} {window=} {splits=} {dtype=}"
        kv_heads = 1 + index % 2
        pages = fill_pages(lengths, block_size, kv_heads, head_dim, dtype)
        # A slice of a fused projection, so that tokens are further apart than they are long.
        heads = kv_heads * group
        query = torch.randn(len(lengths), heads + 2, head_dim).to(dtype)[:, :heads]
        compare(setup, query, pages, window, splits, UNSCALED, what)
    for index, fp8 in enumerate(setup.fp8_dtypes):
        pages = fill_pages([70, 0, 1], 16, 2, 64, fp8)
        query = torch.randn(3, 4, 64).to(setup.dtypes[0])
        compare(setup, query, pages, None, 1 + index, KVScales(0.5, 2.0), f"{fp8=}")
    return len(chosen) + 2


def compare(setup: Setup, query, pages, window, splits, scales, what: str) -> None:
    device = setup.device
    kv_cache, block_table, seq_lens = (tensor.to(device) for tensor in pages[:3])
    out = poisoned(query.shape, query.dtype, device)
    got = paged_decode(query.to(device), kv_cache, block_table, seq_lens, window, scales, out, splits)
    assert got is out
    kv_double = pages.kv_cache.float().double()
    expected = paged_decode_reference(query.double(), kv_double, pages.block_table, pages.seq_lens, window, scales)
    assert not got[seq_lens == 0].any(), f"{what}: a request without tokens puts out zeros"
    assert_near(got, expected, what)
