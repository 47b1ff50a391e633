"""Prefill attention: whole prompts, chunks and decodes in one batch, from pages and from the step's own tensors."""

from __future__ import annotations

import itertools
from unittest.mock import patch

import torch

from minivllm.kernels import paged_prefill as paged_prefill_module
from minivllm.kernels.launch import UNSCALED, KVScales
from minivllm.kernels.paged_prefill import paged_prefill, paged_prefill_reference
from tests.kernels.grids.setup import GROUPS, HEAD_DIMS, NAN, PAGE_SIZES, Setup, assert_near, fill_pages, poisoned

WINDOWS = [None, 1, 40]
# (tokens before this step, tokens of it) of each request
MIXED = [(0, 33), (5, 0), (100, 1), (0, 0), (63, 33), (5, 3), (0, 1), (62, 4)]
SHORT = [(40, 1), (0, 2), (129, 1)]
CHUNKS = [(64, 64), (16, 17), (128, 70)]
WHOLE = [(0, 31), (0, 0), (0, 64), (0, 1), (0, 70)]
BATCHES = [MIXED, SHORT, CHUNKS, WHOLE]


def run(setup: Setup) -> int:
    cases = list(itertools.product(PAGE_SIZES, HEAD_DIMS, GROUPS, WINDOWS, range(len(BATCHES))))
    chosen = [(16, 128, 2, None, 0), (1, 80, 3, None, 0), (128, 256, 7, 40, 2), (16, 64, 8, 1, 3)]
    chosen += setup.choose(cases, 1, 120)
    for index, (block_size, head_dim, group, window, batch) in enumerate(chosen):
        dtype = setup.dtype(index)
        what = f"{block_size=} {head_dim=} {group=} {window=} batch={BATCHES[batch]} {dtype=}"
        compare(setup, BATCHES[batch], block_size, 1 + index % 2, head_dim, group, window, dtype, dtype, what)
    behind_decodes(setup)
    with patch.object(paged_prefill_module, "LEAST_TOKENS_IN_BOXES", 1):
        boxes = [(128, 3, 40), (128, 2, None), (256, 1, None)]
        for head_dim, group, window in boxes if setup.is_gpu else boxes[:1]:
            dtype = setup.dtypes[0] if setup.is_gpu else torch.float16
            what = f"in boxes, {head_dim=} {group=} {window=}"
            compare(setup, WHOLE, 16, 2, head_dim, group, window, dtype, dtype, what)
    for fp8 in setup.fp8_dtypes:
        compare(setup, MIXED, 16, 2, 64, 2, None, setup.dtypes[0], fp8, f"{fp8=}", KVScales(0.5, 2.0))
    return len(chosen) + 4


def compare(
    setup: Setup, batch, block_size, kv_heads, head_dim, group, window, dtype, kv_dtype, what, scales=UNSCALED
) -> None:
    device = setup.device
    pages = fill_pages([context + new for context, new in batch], block_size, kv_heads, head_dim, kv_dtype)
    starts = torch.tensor([0, *(new for _, new in batch)]).cumsum(0).int()
    total, longest = int(starts[-1]), max(new for _, new in batch)
    query = torch.full((total + 3, kv_heads * group, head_dim), NAN).to(dtype)  # the last 3 are padding
    query[:total] = torch.randn(total, kv_heads * group, head_dim).to(dtype)
    cpu = (pages.block_table, starts, pages.seq_lens)
    expected = paged_prefill_reference(query.double(), pages.kv_cache.float().double(), *cpu, window, scales)
    on_device = tuple(tensor.to(device) for tensor in cpu)
    kv_cache = pages.kv_cache.to(device)
    sources = {"pages": None}
    if kv_dtype == dtype and not any(context for context, _ in batch):
        # Keys and values of the flat batch, in one tensor, with padding behind them.
        new = torch.cat([*pages.tokens, torch.full((2, 3, kv_heads, head_dim), NAN).to(dtype)], dim=1)
        sources["step"] = tuple(new.to(device).transpose(0, 1).contiguous().unbind(1))
        assert len(sources["step"][0]) == total + 3
    for source, fresh in sources.items():
        out = poisoned(query.shape, dtype, device)
        got = paged_prefill(query.to(device), kv_cache, *on_device, longest, window, scales, fresh, out)
        assert got is out
        assert got[total:].isnan().all(), f"{what}: tokens of no request are left as they are"
        assert_near(got[:total], expected[:total], f"{what} from {source}")


def behind_decodes(setup: Setup) -> None:
    """The kernel gets the end of the tables of a mixed step, and leaves the tokens before it alone."""
    dtype, device, decodes = setup.dtypes[0], setup.device, 150
    batch = [(3, 1)] * decodes + [(0, 33), (62, 4)]
    pages = fill_pages([context + new for context, new in batch], 16, 2, 64, dtype)
    starts = torch.tensor([0, *(new for _, new in batch)]).cumsum(0).int()
    query = torch.randn(int(starts[-1]), 4, 64).to(dtype)
    cpu = (pages.block_table, starts, pages.seq_lens)
    expected = paged_prefill_reference(query.double(), pages.kv_cache.float().double(), *cpu)
    out = poisoned(query.shape, dtype, device)
    tables = (tensor.to(device)[decodes:] for tensor in cpu)
    paged_prefill(query.to(device), pages.kv_cache.to(device), *tables, 33, out=out)
    assert out[:decodes].isnan().all(), "tokens before the first request's are left as they are"
    assert_near(out[decodes:], expected[decodes:], "behind decodes")
