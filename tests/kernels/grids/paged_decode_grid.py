"""Decode attention: page sizes, head sizes, groups, windows, numbers of parts, and lengths at every edge."""

from __future__ import annotations

import itertools

import torch

from minivllm.kernels.launch import UNSCALED, KVScales
from minivllm.kernels.paged_decode import paged_decode, paged_decode_reference, plan_decode
from tests.kernels.grids.setup import GROUPS, HEAD_DIMS, NAN, PAGE_SIZES, Setup, assert_near, fill_pages, poisoned

WINDOWS = [None, 1, 40]
MORE_PARTS = [1, 2, 7, 50, None]  # than requests
# Around pages of 16 to 128, tiles of 16 to 64, and shares of a few tiles; 0 is a padding row.
LENGTHS = [0, 1, 15, 16, 17, 63, 64, 65, 0, 127, 128, 129, 200]


def run(setup: Setup) -> int:
    cases = list(itertools.product(PAGE_SIZES, HEAD_DIMS, GROUPS, WINDOWS, MORE_PARTS))
    chosen = [(16, 128, 2, None, 4), (1, 80, 3, None, 1), (128, 256, 7, 40, 8), *setup.choose(cases, 5, 150)]
    for index, (block_size, head_dim, group, window, more) in enumerate(chosen):
        dtype = setup.dtype(index)
        lengths = LENGTHS if setup.full or index < 2 else [0, 16, 130, 65]
        what = f"{block_size=} {head_dim=} {group=} {window=} {more=} {dtype=}"
        kv_heads = 1 + index % 2
        pages = fill_pages(lengths, block_size, kv_heads, head_dim, dtype)
        # A slice of a fused projection, so that tokens are further apart than they are long.
        heads = kv_heads * group
        query = torch.randn(len(lengths), heads + 2, head_dim).to(dtype)[:, :heads]
        compare(setup, query, pages, window, more, UNSCALED, what)
    for index, fp8 in enumerate(setup.fp8_dtypes):
        pages = fill_pages([70, 0, 1], 16, 2, 64, fp8)
        query = torch.randn(3, 4, 64).to(setup.dtypes[0])
        compare(setup, query, pages, None, 1 + index, KVScales(0.5, 2.0), f"{fp8=}")
    return len(chosen) + 2


def compare(setup: Setup, query, pages, window, more, scales, what: str) -> None:
    device = setup.device
    kv_cache, block_table, seq_lens = (tensor.to(device) for tensor in pages[:3])
    out = poisoned(query.shape, query.dtype, device)
    query = query.to(device)
    plan = plan_decode(query, kv_cache, seq_lens, window, most_parts=more and len(query) + more)
    for _ in range(2):  # two layers with one plan
        got = paged_decode(query, kv_cache, block_table, seq_lens, window, scales, out.fill_(NAN), plan=plan)
    assert got is out
    assert not plan.arrived.any(), f"{what}: counters are 0 again for the next layer"
    double = query.double().cpu(), pages.kv_cache.float().double()
    expected = paged_decode_reference(*double, pages.block_table, pages.seq_lens, window, scales)
    assert not got[seq_lens == 0].any(), f"{what}: a request without tokens puts out zeros"
    assert_near(got, expected, what)
