"""Attention to a shared prefix: page sizes, head sizes, groups, splits, and prefixes at every edge.

What the kernel leaves is compared with its reference, and, joined with attention to the rest, with attention to all.
"""

from __future__ import annotations

import itertools

import torch

from minivllm.kernels.launch import UNSCALED, KVScales
from minivllm.kernels.paged_decode import paged_decode, paged_decode_reference
from minivllm.kernels.prefix_attention import prefix_attention, prefix_attention_reference
from tests.kernels.grids.setup import (
    GROUPS,
    HEAD_DIMS,
    NAN,
    PAGE_SIZES,
    TOLERANCE,
    Pages,
    Setup,
    assert_near,
    fill_pages,
    poisoned,
)

SPLITS = [1, 2, 3, 8, None]
# Around pages of 16 to 128, and tiles of 16 to 64; 0 is no prefix at all.
PREFIXES = [0, 1, 15, 16, 17, 63, 64, 65, 127, 128, 130, 200]
# Tokens of each request behind the prefix; -1 is a padding row. The first has some always.
BATCHES = [[1, 9, -1, 1], [3], [1] * 20 + [-1] * 3, [2, 30, 1, 1, 17, -1, 64, 1]]


def run(setup: Setup) -> int:
    cases = list(itertools.product(PAGE_SIZES, HEAD_DIMS, GROUPS, PREFIXES, SPLITS, range(len(BATCHES))))
    chosen = [(16, 128, 2, 192, 2, 0), (1, 80, 3, 65, 1, 2), (128, 256, 8, 128, 8, 1), (16, 64, 1, 0, 2, 0)]
    chosen += [(3, 96, 4, 17, None, 3), *setup.choose(cases, 3, 150)]
    for index, (block_size, head_dim, group, prefix, splits, batch) in enumerate(chosen):
        dtype = setup.dtype(index)
        what = f"{block_size=} {head_dim=} {group=} {prefix=} {splits=} batch={BATCHES[batch]} {dtype=}"
        kv_heads = 1 + index % 2
        pages = shared_pages(BATCHES[batch], prefix, block_size, kv_heads, head_dim, dtype)
        heads = kv_heads * group
        # A slice of a fused projection, so that tokens are further apart than they are long.
        query = torch.randn(len(BATCHES[batch]), heads + 2, head_dim).to(dtype)[:, :heads]
        compare(setup, query, pages, prefix, splits, UNSCALED, what)
    for index, fp8 in enumerate(setup.fp8_dtypes):
        pages = shared_pages(BATCHES[0], 70, 16, 2, 64, fp8)
        query = torch.randn(len(BATCHES[0]), 4, 64).to(setup.dtypes[0])
        compare(setup, query, pages, 70, 1 + index, KVScales(0.5, 2.0), f"{fp8=}")
    one_grid_for_any_prefix(setup)
    return len(chosen) + 3


def shared_pages(
    own: list[int], prefix: int, block_size: int, kv_heads: int, head_dim: int, dtype: torch.dtype
) -> Pages:
    """Requests with the same pages at the start. A prefix that ends inside a page leaves that page to each of them:
    the first request's is read for all, so that nobody may rely on the others' tables."""
    pages = fill_pages([max(0, prefix + count) for count in own], block_size, kv_heads, head_dim, dtype)
    whole, rest = divmod(prefix, block_size)
    for request, count in enumerate(own):
        if count < 0:
            pages.seq_lens[request] = 0
            pages.block_table[request] = -1
        elif request:
            pages.block_table[request, :whole] = pages.block_table[0, :whole]
            if rest:
                of_first, of_own = pages.block_table[[0, request], whole].tolist()
                pages.kv_cache[:, of_own, :rest] = pages.kv_cache[:, of_first, :rest]
    return pages


def compare(setup: Setup, query, pages: Pages, prefix: int, splits, scales: KVScales, what: str) -> None:
    is_real = pages.seq_lens > 0
    query[~is_real] = NAN  # what a padding row holds is nobody's business
    num_tokens = torch.tensor([prefix], dtype=torch.int32, device=setup.device)
    on_device = [tensor.to(setup.device) for tensor in (query, *pages[:3])]
    torch.use_deterministic_algorithms(True)  # memory that nobody has written is NaN then
    got = prefix_attention(*on_device, num_tokens, scales, splits)
    torch.use_deterministic_algorithms(False)
    assert got.num_tokens is num_tokens
    out, lse = got.out.double().cpu(), got.lse.double().cpu()
    is_empty = lse == float("-inf")
    assert not out[is_empty].any(), f"{what}: a part without tokens puts out zeros"
    assert is_empty[~is_real].all(), f"{what}: a request without tokens sees no prefix"
    assert prefix or is_empty.all(), f"{what}: no prefix has no weight"
    double = query.double().nan_to_num(0.0), pages.kv_cache.float().double(), *pages[1:3]
    if prefix:
        expected = prefix_attention_reference(*double, num_tokens.cpu(), scales)
        highest = lse[is_real].amax(2, keepdim=True)
        weights = (lse[is_real] - highest).exp2()
        joined = (out[is_real] * weights[..., None]).sum(2) / weights.sum(2)[..., None]
        assert_near(joined, expected.out[is_real, :, 0], what, TOLERANCE[query.dtype])
        sums = weights.sum(2).log2() + highest[..., 0]
        assert_near(sums, expected.lse[is_real, :, 0], f"{what}, softmax sums", 1e-5)
    whole = poisoned(query.shape, query.dtype, setup.device)
    paged_decode(*on_device, None, scales, whole, prefix=got)
    assert not whole[~is_real].any(), f"{what}: a request without tokens puts out zeros"
    assert_near(whole, paged_decode_reference(*double, None, scales), f"{what}, joined with the rest")


def one_grid_for_any_prefix(setup: Setup) -> None:
    """What a captured graph relies on: one launch, with a number on the device that changes."""
    dtype, device = setup.dtypes[0], setup.device
    pages = shared_pages(BATCHES[3], 130, 16, 2, 64, dtype)
    query = torch.randn(len(BATCHES[3]), 4, 64).to(dtype)
    num_tokens = torch.zeros(5, dtype=torch.int32, device=device)[3:4]
    for prefix in (0, 16, 130, 64):
        num_tokens.fill_(prefix)
        got = prefix_attention(*(tensor.to(device) for tensor in (query, *pages[:3])), num_tokens)
        double = query.double(), pages.kv_cache.double(), *pages[1:3]
        expected = prefix_attention_reference(*double, num_tokens.cpu())
        if prefix:
            assert_near(got.lse.double().exp2().sum(2), expected.lse[:, :, 0].exp2(), f"{prefix=}", 1e-4)
        else:
            assert (got.lse == float("-inf")).all()
