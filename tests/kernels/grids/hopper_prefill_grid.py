"""Attention of long new prompts on a Hopper GPU. Elsewhere one thing is checked: that nobody takes the kernel."""

from __future__ import annotations

import itertools

import torch

from minivllm.kernels.hopper_prefill import HEAD_DIMS, hopper_prefill, is_for
from minivllm.kernels.launch import gpu_of
from minivllm.kernels.paged_prefill import paged_prefill_reference
from tests.kernels.grids.setup import GROUPS, Setup, assert_near, fill_pages, poisoned

# Tokens of each prompt, at the edges of tiles of 128; and how many tokens of other requests stand before them.
BATCHES = [([1025], 0), ([128, 129, 127, 1, 0, 64, 1300], 0), ([2048, 511], 300), ([65] * 9, 128), ([4096], 7)]


def run(setup: Setup) -> int:
    if setup.device.type != "cuda" or gpu_of(setup.device).capability != 90:
        assert not is_for(torch.zeros(4096, 1, 128, dtype=torch.bfloat16), 4096, None)
        return 1
    cases = list(itertools.product(range(len(BATCHES)), HEAD_DIMS, GROUPS, [torch.bfloat16, torch.float16]))
    chosen = [(1, 128, 2, torch.bfloat16), (2, 128, 4, torch.bfloat16), (0, 64, 3, torch.float16)]
    chosen += setup.choose(cases, 1, 40)
    for batch, head_dim, group, dtype in chosen:
        lengths, before = BATCHES[batch]
        compare(setup, lengths, before, head_dim, group, dtype, f"{lengths=} {before=} {head_dim=} {group=} {dtype=}")
    return len(chosen)


def compare(setup: Setup, lengths, before, head_dim, group, dtype, what) -> None:
    device, kv_heads = setup.device, 2
    pages = fill_pages(lengths, 16, kv_heads, head_dim, dtype)
    starts = torch.tensor([0, *lengths]).cumsum(0).int()
    total = before + int(starts[-1]) + 3
    # As a projection puts them out: queries, keys and values of a token behind each other.
    qkv = torch.randn(total, (group + 2) * kv_heads, head_dim).to(dtype)
    qkv[before:-3, group * kv_heads :] = torch.cat([*pages.tokens], dim=1).transpose(0, 1).flatten(1, 2)
    query, key, value = qkv.to(device).split((group * kv_heads, kv_heads, kv_heads), dim=1)
    expected = paged_prefill_reference(
        qkv[before:-3, : group * kv_heads].double(), pages.kv_cache.double().nan_to_num(), pages.block_table, starts,
        pages.seq_lens,
    )  # fmt: skip
    for _ in range(3):  # a race would show now and then
        out = poisoned(query.shape, dtype, device)
        hopper_prefill(query, key, value, (starts + before).to(device), out)
        assert out[:before].isnan().all(), f"{what}: tokens of other requests are left as they are"
        assert out[-3:].isnan().all(), f"{what}: padding is left as it is"
        assert_near(out[before:-3], expected, what)
