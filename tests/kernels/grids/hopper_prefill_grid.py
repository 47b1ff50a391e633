"""Attention of prompts on a Hopper GPU. Elsewhere one thing is checked: that nobody takes the kernel."""

from __future__ import annotations

import itertools

import torch

from minivllm.kernels.hopper_prefill import BLOCK_SIZES, HEAD_DIMS, LOW, TALL, Plan, hopper_prefill, is_for
from minivllm.kernels.launch import gpu_of
from minivllm.kernels.paged_prefill import paged_prefill_reference
from tests.kernels.grids.setup import GROUPS, Setup, assert_near, fill_pages, poisoned

# (tokens before this step, tokens of it) of each request, at the edges of tiles of 64 and of 128; and how many tokens
# of other requests stand before them.
PROMPTS = [
    ([(0, 1025)], 0), ([(0, n) for n in (128, 129, 127, 1, 0, 64, 1300)], 0), ([(0, 2048), (0, 511)], 300),
    ([(0, 65)] * 9, 128), ([(0, 4096)], 7),
]  # fmt: skip
CHUNKS = [
    ([(0, 300), (128, 128), (77, 200), (500, 1), (63, 64), (1000, 129), (13, 700), (90, 0)], 0),
    ([(1, 17), (127, 33), (3001, 250)], 5), ([(64, 64)], 0), ([(0, 1300), (1792, 256)], 200), ([(1, 1)] * 300, 0),
]  # fmt: skip


def run(setup: Setup) -> int:
    if setup.device.type != "cuda" or gpu_of(setup.device).capability != 90:
        query, kv_cache = torch.zeros(4096, 16, 128), torch.zeros(2, 1, 16, 1, 128)
        assert not is_for(query.bfloat16(), kv_cache.bfloat16(), 1, 4096, None, is_fresh=True)
        return 1
    dtypes = [torch.bfloat16, torch.float16]
    prompts = itertools.product(PROMPTS, HEAD_DIMS, GROUPS, dtypes, [None], [TALL, LOW])
    chunks = itertools.product(CHUNKS, HEAD_DIMS, GROUPS, dtypes, BLOCK_SIZES, [TALL])
    chosen = [(PROMPTS[1], 128, 2, torch.bfloat16, None, TALL), (PROMPTS[2], 64, 3, torch.float16, None, LOW)]
    chosen += [(CHUNKS[0], 128, 2, torch.bfloat16, 16, TALL), (CHUNKS[1], 64, 4, torch.float16, 64, TALL)]
    chosen += setup.choose(list(prompts), 1, 40) + setup.choose(list(chunks), 1, 60)
    for case in chosen:
        compare(setup, *case)
    again_and_again(setup)
    return len(chosen) + 1


def compare(setup: Setup, batch, head_dim: int, group: int, dtype, block_size: int | None, plan: Plan) -> None:
    (requests, before), device, kv_heads = batch, setup.device, 2
    what = f"{requests=} {before=} {head_dim=} {group=} {dtype=} {block_size=} {plan=}"
    pages = fill_pages([old + new for old, new in requests], block_size or 16, kv_heads, head_dim, dtype)
    starts = torch.tensor([0, *(new for _, new in requests)]).cumsum(0).int()
    total = before + int(starts[-1]) + 3
    # As a projection puts them out: queries, keys and values of a token behind each other.
    qkv = torch.randn(total, (group + 2) * kv_heads, head_dim).to(dtype)
    if block_size is None:
        qkv[before:-3, group * kv_heads :] = torch.cat([*pages.tokens], dim=1).transpose(0, 1).flatten(1, 2)
    query, key, value = qkv.to(device).split((group * kv_heads, kv_heads, kv_heads), dim=1)
    # What nobody wrote is multiplied with 0 here.
    kv_cache, tables = pages.kv_cache.nan_to_num(), (pages.block_table, starts, pages.seq_lens)
    expected = paged_prefill_reference(qkv[before:-3, : group * kv_heads].double(), kv_cache.double(), *tables)
    table, _, seq_lens = (tensor.to(device) for tensor in tables)
    kv_cache, fresh, longest = kv_cache.to(device), (key, value) if block_size is None else None, max(requests)[1]
    for _ in range(3):  # a race would show now and then, and counters that were not reset the second time
        out = poisoned(query.shape, dtype, device)
        hopper_prefill(query, kv_cache, table, (starts + before).to(device), seq_lens, longest, fresh, out, plan)
        assert out[:before].isnan().all(), f"{what}: tokens of other requests are left as they are"
        assert out[-3:].isnan().all(), f"{what}: padding is left as it is"
        assert_near(out[before:-3], expected, what)


def again_and_again(setup: Setup) -> None:
    """As layers do it: launch after launch without a wait, recorded, with other lengths in each replay."""
    device, dtype = setup.device, torch.bfloat16
    requests = [(1000, 300), (0, 512), (70, 212)]
    pages = fill_pages([old + new for old, new in requests], 16, 2, 128, dtype)
    kv_cache, table = pages.kv_cache.nan_to_num().to(device), pages.block_table.to(device)
    query = torch.randn(1024, 4, 128, dtype=dtype, device=device)
    starts, seq_lens = (
        torch.zeros(4, dtype=torch.int32, device=device),
        torch.zeros(3, dtype=torch.int32, device=device),
    )
    outs = [poisoned(query.shape, dtype, device) for _ in range(8)]

    def launch() -> None:
        for out in outs:
            hopper_prefill(query, kv_cache, table, starts, seq_lens, 1024, None, out)

    launch()  # nobody has tokens: what a recording begins with
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch()
    for news in ((300, 512, 212), (1, 0, 0), (17, 200, 64), (0, 0, 0)):
        now = torch.tensor([0, *news]).cumsum(0).int()
        lens = torch.tensor([old + new for (old, _), new in zip(requests, news, strict=True)]).int()
        starts.copy_(now)
        seq_lens.copy_(lens)
        graph.replay()
        cpu = query[: now[-1]].cpu().double(), kv_cache.cpu().double(), pages.block_table
        expected = paged_prefill_reference(*cpu, now, lens)
        for out in outs:
            assert_near(out[: now[-1]], expected, f"replayed, {news=}")
