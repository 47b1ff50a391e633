"""Decodes on a Hopper GPU, whose contexts are cut into ranges. Elsewhere the plan is checked, and that nobody takes the
kernel."""

from __future__ import annotations

import itertools
import random

import torch

from minivllm.kernels.hopper_decode import (
    BLOCK_SIZES,
    HEAD_DIMS,
    HEADS,
    LEAST_REQUESTS,
    TILE,
    RangesPlan,
    hopper_decode,
    is_for,
    plan_ranges,
)
from minivllm.kernels.launch import gpu_of
from minivllm.kernels.paged_decode import paged_decode_reference
from tests.kernels.grids.setup import Setup, assert_near, fill_pages, poisoned

GROUPS = [1, 2, 3, 7, 16]
WINDOWS = [None, 1, 16, 100]
# Around tiles and pages; 0 is a padding row. One request, few, and more than there are ranges.
LENGTHS = [
    [5], [16] * 3, [0, 17, 2500, 1, 0], [0, 1, 15, 16, 17, 63, 64, 65, 0, 127, 128, 129, 200] * 2,
    [40, 3, 900] * 30, [33] * 300,
]  # fmt: skip


def run(setup: Setup) -> int:
    count = check_plans(setup)
    if setup.device.type != "cuda" or gpu_of(setup.device).capability != 90:
        query, kv_cache = torch.zeros(64, 16, 128), torch.zeros(2, 1, 16, 8, 128)
        assert not is_for(query.bfloat16(), kv_cache.bfloat16())
        return count + 1
    dtypes = [torch.bfloat16, torch.float16]
    cases = list(itertools.product(LENGTHS, BLOCK_SIZES, HEAD_DIMS, GROUPS, WINDOWS, dtypes, [HEADS, 2 * HEADS]))
    chosen = [(LENGTHS[3], 16, 128, 2, None, torch.bfloat16, 8), (LENGTHS[4], 32, 64, 4, 100, torch.float16, 4)]
    chosen += setup.choose(cases, 4, 60)
    for case in chosen:
        compare(setup, *case)
    again_and_again(setup)
    return count + len(chosen) + 1


def check_plans(setup: Setup) -> int:
    rng = random.Random(setup.seed)
    for _ in range(100 if setup.full else 25):
        lengths = [
            rng.choice([0, 1, 15, 16, 17, rng.randint(1, 3000)]) for _ in range(rng.choice([1, 2, 3, 7, 40, 65]))
        ]
        check_plan(setup, lengths, rng.choice([None, None, *WINDOWS]), rng.choice([1, 2, 5, 132]))
    return 1


def check_plan(setup: Setup, lengths: list[int], window: int | None, num_ranges: int) -> None:
    """Each tile is in one range, ranges are equally long, and a request's parts are numbered one after the other."""
    what = f"{lengths=} {window=} {num_ranges=}"
    query, kv_cache = torch.zeros(len(lengths), 8, 64), torch.zeros(2, 1, 16, 2 * HEADS, 64)
    on_device = (tensor.to(setup.device) for tensor in (query, kv_cache, torch.tensor(lengths, dtype=torch.int32)))
    plan = RangesPlan(
        *(of.cpu() if isinstance(of, torch.Tensor) else of for of in plan_ranges(*on_device, window, num_ranges))
    )
    first = [max(0, length - window) // TILE * TILE if window else 0 for length in lengths]
    tiles = [max(1, -(-(length - start) // TILE)) for length, start in zip(lengths, first, strict=True)]
    found: list[list[int]] = [[] for _ in lengths]
    parts: list[list[int]] = [[] for _ in lengths]
    sizes = []
    for index, (begin, tile, of_first, end, of_last, of_all, *_) in enumerate(plan.ranges.tolist()):
        size = 0
        for request in range(begin, end + 1):
            start = tile if request == begin else 0
            count = of_first if request == begin else of_last if request == end else tiles[request]
            found[request] += range(start, start + count)
            parts[request].append(index + request)
            size += count
        assert size == of_all, what
        sizes.append(size)
    assert [sorted(of) for of in found] == [list(range(count)) for count in tiles], what
    used = [size for size in sizes if size]
    assert len(used) == min(num_ranges, sum(tiles)), what
    assert max(used) - min(used) <= 1, what
    for (number, count), own in zip(plan.of_request.tolist(), parts, strict=True):
        assert own == list(range(number, number + count)), what
    assert not plan.arrived.any(), what


def compare(setup: Setup, lengths, block_size, head_dim, group, window, dtype, kv_heads) -> None:
    what = f"{len(lengths)=} {block_size=} {head_dim=} {group=} {window=} {dtype=} {kv_heads=}"
    pages = fill_pages(lengths, block_size, kv_heads, head_dim, dtype)
    heads = kv_heads * group
    query = torch.randn(len(lengths), heads + 2, head_dim).to(dtype)[:, :heads]  # of a fused projection
    # What nobody wrote is multiplied with 0 here.
    kv_cache = pages.kv_cache.nan_to_num()
    double = query.double(), kv_cache.double()
    expected = paged_decode_reference(*double, pages.block_table, pages.seq_lens, window)
    query, kv_cache, table, seq_lens = (
        tensor.to(setup.device) for tensor in (query, kv_cache, pages.block_table, pages.seq_lens)
    )
    assert is_for(query, kv_cache) == (len(lengths) >= LEAST_REQUESTS), what
    plan = plan_ranges(query, kv_cache, seq_lens, window)
    for layer in range(4):  # layers with one plan; a race would show now and then
        out = poisoned(query.shape, dtype, setup.device)
        hopper_decode(query, kv_cache, table, seq_lens, plan, out=out, is_alone=layer > 0)
        assert not plan.arrived.any(), f"{what}: counters are 0 again for the next layer"
        assert not out[seq_lens == 0].any(), f"{what}: a request without tokens puts out zeros"
        assert_near(out, expected, what)


def again_and_again(setup: Setup) -> None:
    """As layers do it: launch after launch without a wait, each early, recorded, with other lengths in each replay."""
    device, dtype = setup.device, torch.bfloat16
    most = [500] * 20
    pages = fill_pages(most, 16, 8, 128, dtype)
    kv_cache, table = pages.kv_cache.nan_to_num().to(device), pages.block_table.to(device)
    query = torch.randn(20, 16, 128, dtype=dtype, device=device)
    seq_lens = torch.zeros(20, dtype=torch.int32, device=device)
    outs = [poisoned(query.shape, dtype, device) for _ in range(8)]

    def launch() -> None:
        plan = plan_ranges(query, kv_cache, seq_lens)
        for layer, out in enumerate(outs):
            hopper_decode(query, kv_cache, table, seq_lens, plan, out=out, is_alone=layer > 0)

    launch()  # nobody has tokens: what a recording begins with
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch()
    rng = random.Random(setup.seed)
    for lengths in ([500] * 20, [1] * 20, [0] * 20, [rng.randint(0, 500) for _ in most]):
        seq_lens.copy_(torch.tensor(lengths, dtype=torch.int32))
        graph.replay()
        cpu = query.cpu().double(), kv_cache.cpu().double(), pages.block_table
        expected = paged_decode_reference(*cpu, torch.tensor(lengths, dtype=torch.int32))
        for out in outs:
            assert_near(out, expected, f"replayed, {lengths=}")
