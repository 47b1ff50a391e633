"""Owns attention of long fresh prompts on a Hopper GPU, where arithmetic is the limit and every idle cycle shows.

The formula is that of `paged_prefill` for whole prompts (context 0, keys and values contiguous). What differs is who
works when. A program is three groups of warps that talk through barriers in shared memory:

    producer    1 warp    Q | K n   V n | K n-1   V n-1 | ...                  asks the copy engine for tiles
    consumer 0  4 warps       QK n  softmax n . QK n-1 | PV n  softmax n-1 ... rows  0 to  63 of the tile
    consumer 1  4 warps       the same                                         rows 64 to 127

Nobody computes addresses of numbers: the copy engine (TMA) fetches a box by its coordinates. In a consumer the matrix
unit runs ahead: the next tile's scores are asked for before this tile's weights are multiplied with its values, and the
softmax of those scores happens while that product runs.

A tile of keys is as long as a tile of queries, so exactly one of them crosses the diagonal: the last, which is taken
first. All others are seen whole, and no mask is computed for them.

A program takes one tile after the other; the producer begins with the next while the consumers still finish this one.

Upstream: FlashAttention 3, which vLLM takes here (vllm/v1/attention/backends/flash_attn.py).
"""

from __future__ import annotations

import torch

from minivllm.kernels.gluon_guard import HAS_GLUON, fetch_box, gl, gluon_jit, gluon_jit_for_any, hopper, tensor_in_boxes
from minivllm.kernels.launch import UNSCALED, gpu_of

# Rows of a tile of queries, shared by two consumers, and of a tile of keys.
ROWS = 128
HALF = 64
# Tiles of keys, and of values, under way at a time. With 32 KB each and a tile of queries: 160 KB of 227.
STAGES = 2
# Registers of a thread. The accumulators of the matrix unit need most of a consumer's: the producer gives up its own.
CONSUMER_REGISTERS, PRODUCER_REGISTERS = 240, 24
# What every thread has at the start: 65,536 over 3 groups of 128.
ENTRY_REGISTERS = 168
CONSUMER_WARPS = 4
HEAD_DIMS = (64, 128)
# Shorter prompts are faster with smaller tiles.
LEAST_TOKENS = 1024


@gluon_jit
def find_tile(index, query_start_loc_ptr, num_requests, num_heads, num_blocks, rows: gl.constexpr):
    """Which head, and which queries of which request, the index-th tile of the step has.

    Blocks of queries are given to requests as in `paged_prefill.request_of_block`; late ones, which see the most
    tokens, come first. A block may be unused: its first query is then negative, or beyond the request's last.
    """
    head = index % num_heads
    block = num_blocks - 1 - index // num_heads
    lower = block * 0
    upper = num_requests
    while upper - lower > 1:
        middle = (lower + upper) // 2
        if gl.load(query_start_loc_ptr + middle) // rows + middle <= block:
            lower = middle
        else:
            upper = middle
    start = gl.load(query_start_loc_ptr + lower)
    num_queries = gl.load(query_start_loc_ptr + lower + 1) - start
    first_query = (block - start // rows - lower) * rows
    return head, start, num_queries, first_query


@gluon_jit
def produce(
    query_desc,
    key_desc,
    value_desc,
    query_tiles,
    key_tiles,
    value_tiles,
    query_ready,
    query_done,
    key_ready,
    key_done,
    value_ready,
    value_done,
    query_start_loc_ptr,
    num_requests,
    num_heads,
    num_blocks,
    group: gl.constexpr,
    rows: gl.constexpr,
    half: gl.constexpr,
    head_dim: gl.constexpr,
    stages: gl.constexpr,
):
    """Fetch what the consumers need, in the order in which they need it, as far ahead as there is room."""
    query_bytes: gl.constexpr = 2 * half * head_dim * 2
    tile_bytes: gl.constexpr = rows * head_dim * 2
    num_tiles = num_blocks * num_heads
    fetched = num_blocks * 0  # tiles of keys so far
    finished = num_blocks * 0  # tiles of queries so far
    for index in range(gl.program_id(0), num_tiles, gl.num_programs(0)):
        head, start, num_queries, first_query = find_tile(
            index, query_start_loc_ptr, num_requests, num_heads, num_blocks, rows
        )
        if (first_query >= 0) & (first_query < num_queries):
            hopper.mbarrier.wait(query_done, (finished & 1) ^ 1)
            hopper.mbarrier.expect(query_ready, query_bytes)
            for part in gl.static_range(2):
                place = [start + first_query + part * half, head * head_dim]
                fetch_box(query_desc, place, query_ready, query_tiles.index(part))
            kv_column = head // group * head_dim
            last = first_query // rows
            for back in range(last + 1):
                row = start + (last - back) * rows
                stage = fetched % stages
                phase = (fetched // stages & 1) ^ 1
                hopper.mbarrier.wait(key_done.index(stage), phase)
                hopper.mbarrier.expect(key_ready.index(stage), tile_bytes)
                fetch_box(key_desc, [row, kv_column], key_ready.index(stage), key_tiles.index(stage))
                hopper.mbarrier.wait(value_done.index(stage), phase)
                hopper.mbarrier.expect(value_ready.index(stage), tile_bytes)
                fetch_box(value_desc, [row, kv_column], value_ready.index(stage), value_tiles.index(stage))
                fetched += 1
            finished += 1


@gluon_jit
def consume(
    out_ptr,
    query_tiles,
    key_tiles,
    value_tiles,
    query_ready,
    query_done,
    key_ready,
    key_done,
    value_ready,
    value_done,
    query_start_loc_ptr,
    score_scale,
    num_requests,
    num_heads,
    num_blocks,
    out_token_stride,
    part: gl.constexpr,
    rows: gl.constexpr,
    half: gl.constexpr,
    head_dim: gl.constexpr,
    stages: gl.constexpr,
):
    """Attention of one half of each tile of queries."""
    # How the matrix unit hands out a product's numbers: 4 warps, 16 rows each.
    of_scores: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, rows, 16])
    of_out: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, head_dim, 16])
    of_weights: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=of_out, k_width=2)
    row_of_scores: gl.constexpr = gl.SliceLayout(1, of_scores)
    row_of_out: gl.constexpr = gl.SliceLayout(1, of_out)
    dtype: gl.constexpr = out_ptr.dtype.element_ty

    num_tiles = num_blocks * num_heads
    used = num_blocks * 0
    finished = num_blocks * 0
    query = query_tiles.index(part)
    no_scores = gl.zeros([half, rows], gl.float32, of_scores)
    for index in range(gl.program_id(0), num_tiles, gl.num_programs(0)):
        head, start, num_queries, first_query = find_tile(
            index, query_start_loc_ptr, num_requests, num_heads, num_blocks, rows
        )
        if (first_query >= 0) & (first_query < num_queries):
            # The tile at the diagonal: row i sees columns up to i.
            stage = used % stages
            hopper.mbarrier.wait(query_ready, finished & 1)
            hopper.mbarrier.wait(key_ready.index(stage), used // stages & 1)
            key = key_tiles.index(stage).permute((1, 0))  # (head_dim, rows)
            scores = hopper.warpgroup_mma(query, key, no_scores, use_acc=False, is_async=True)
            scores = hopper.warpgroup_mma_wait(0, deps=[scores])
            hopper.mbarrier.arrive(key_done.index(stage), count=1)
            row = gl.arange(0, half, layout=row_of_scores) + part * half
            column = gl.arange(0, rows, layout=gl.SliceLayout(0, of_scores))
            is_seen = gl.expand_dims(column, 0) <= gl.expand_dims(row, 1)
            scores = gl.where(is_seen, scores * score_scale, float("-inf"))
            highest = gl.max(scores, 1)
            weights = gl.exp2(scores - gl.expand_dims(highest, 1))
            total = gl.sum(weights, 1)
            weights_16 = gl.convert_layout(weights.to(dtype), of_weights)
            acc = gl.zeros([half, head_dim], gl.float32, of_out)
            # The others, seen whole, from the latest to the first.
            for _ in range(first_query // rows):
                value_stage = used % stages
                value_phase = used // stages & 1
                used += 1
                stage = used % stages
                hopper.mbarrier.wait(key_ready.index(stage), used // stages & 1)
                key = key_tiles.index(stage).permute((1, 0))
                next_scores = hopper.warpgroup_mma(query, key, no_scores, use_acc=False, is_async=True)
                hopper.mbarrier.wait(value_ready.index(value_stage), value_phase)
                next_acc = hopper.warpgroup_mma(weights_16, value_tiles.index(value_stage), acc, is_async=True)
                scores = hopper.warpgroup_mma_wait(1, deps=[next_scores])
                hopper.mbarrier.arrive(key_done.index(stage), count=1)
                new_highest = gl.maximum(highest, gl.max(scores, 1) * score_scale)
                weights = gl.exp2(scores * score_scale - gl.expand_dims(new_highest, 1))
                shrink = gl.exp2(highest - new_highest)
                total = total * shrink + gl.sum(weights, 1)
                highest = new_highest
                acc = hopper.warpgroup_mma_wait(0, deps=[next_acc])
                hopper.mbarrier.arrive(value_done.index(value_stage), count=1)
                acc = acc * gl.expand_dims(gl.convert_layout(shrink, row_of_out), 1)
                weights_16 = gl.convert_layout(weights.to(dtype), of_weights)
            hopper.mbarrier.arrive(query_done, count=1)
            stage = used % stages
            hopper.mbarrier.wait(value_ready.index(stage), used // stages & 1)
            last_acc = hopper.warpgroup_mma(weights_16, value_tiles.index(stage), acc, is_async=True)
            acc = hopper.warpgroup_mma_wait(0, deps=[last_acc])
            hopper.mbarrier.arrive(value_done.index(stage), count=1)
            used += 1
            finished += 1

            acc = acc / gl.expand_dims(gl.convert_layout(total, row_of_out), 1)
            query_of_row = first_query + part * half + gl.arange(0, half, layout=row_of_out)
            dim = gl.arange(0, head_dim, layout=gl.SliceLayout(0, of_out))
            token = gl.expand_dims((start + query_of_row).to(gl.int64) * out_token_stride, 1)
            cell = token + gl.expand_dims(head * head_dim + dim, 0)
            gl.store(out_ptr + cell, acc.to(dtype), mask=gl.expand_dims(query_of_row < num_queries, 1))


@gluon_jit_for_any("query_start_loc_ptr", "num_requests", "num_blocks")
def hopper_prefill_kernel(
    query_desc,
    key_desc,
    value_desc,
    out_ptr,
    query_start_loc_ptr,
    score_scale,
    num_requests,
    num_heads,
    num_blocks,
    out_token_stride,
    group: gl.constexpr,
    rows: gl.constexpr,
    half: gl.constexpr,
    head_dim: gl.constexpr,
    stages: gl.constexpr,
    consumer_registers: gl.constexpr,
    producer_registers: gl.constexpr,
):
    """Set up buffers and barriers, and set the three groups of warps to work."""
    dtype: gl.constexpr = query_desc.dtype
    query_tiles = gl.allocate_shared_memory(dtype, [2, half, head_dim], query_desc.layout)
    key_tiles = gl.allocate_shared_memory(dtype, [stages, rows, head_dim], key_desc.layout)
    value_tiles = gl.allocate_shared_memory(dtype, [stages, rows, head_dim], value_desc.layout)
    # `ready`: the copy engine has filled a buffer. `done`: both consumers have read it.
    of_barrier: gl.constexpr = hopper.mbarrier.MBarrierLayout()
    query_ready = gl.allocate_shared_memory(gl.int64, [1], of_barrier)
    query_done = gl.allocate_shared_memory(gl.int64, [1], of_barrier)
    key_ready = gl.allocate_shared_memory(gl.int64, [stages, 1], of_barrier)
    key_done = gl.allocate_shared_memory(gl.int64, [stages, 1], of_barrier)
    value_ready = gl.allocate_shared_memory(gl.int64, [stages, 1], of_barrier)
    value_done = gl.allocate_shared_memory(gl.int64, [stages, 1], of_barrier)
    hopper.mbarrier.init(query_ready, count=1)
    hopper.mbarrier.init(query_done, count=2)
    for stage in gl.static_range(stages):
        hopper.mbarrier.init(key_ready.index(stage), count=1)
        hopper.mbarrier.init(key_done.index(stage), count=2)
        hopper.mbarrier.init(value_ready.index(stage), count=1)
        hopper.mbarrier.init(value_done.index(stage), count=2)
    hopper.fence_async_shared()

    gl.warp_specialize(
        [
            (
                consume,
                (
                    out_ptr, query_tiles, key_tiles, value_tiles, query_ready, query_done, key_ready, key_done,
                    value_ready, value_done, query_start_loc_ptr, score_scale, num_requests, num_heads, num_blocks,
                    out_token_stride, 0, rows, half, head_dim, stages,
                ),
            ),
            (
                consume,
                (
                    out_ptr, query_tiles, key_tiles, value_tiles, query_ready, query_done, key_ready, key_done,
                    value_ready, value_done, query_start_loc_ptr, score_scale, num_requests, num_heads, num_blocks,
                    out_token_stride, 1, rows, half, head_dim, stages,
                ),
            ),
            (
                produce,
                (
                    query_desc, key_desc, value_desc, query_tiles, key_tiles, value_tiles, query_ready, query_done,
                    key_ready, key_done, value_ready, value_done, query_start_loc_ptr, num_requests, num_heads,
                    num_blocks, group, rows, half, head_dim, stages,
                ),
            ),
        ],
        [4, 1],  # warps of the second consumer and of the producer; the first is the 4 that are there already
        [consumer_registers, producer_registers],
    )  # fmt: skip


def is_for(query: torch.Tensor, max_query_len: int, window: int | None) -> bool:
    """Whether this kernel takes a step of whole new prompts, and is the faster one.

    Args:
        query: (tokens, num_heads, head_dim).
        max_query_len: Tokens of the longest prompt.
        window: See `paged_prefill`; only that kernel knows windows.
    """
    return (
        HAS_GLUON
        and gpu_of(query.device).capability == 90
        and query.is_cuda
        and query.dtype in (torch.bfloat16, torch.float16)
        and query.shape[2] in HEAD_DIMS
        and max_query_len > LEAST_TOKENS
        and window is None
    )


def hopper_prefill(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    query_start_loc: torch.Tensor,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Causal attention of whole new prompts.

    Args:
        query: (tokens, num_heads, head_dim), rotated; heads contiguous, any multiple of 16 bytes between tokens.
        key: (tokens, num_kv_heads, head_dim), likewise.
        value: Like key.
        query_start_loc: (requests + 1,) int32: where each prompt's tokens begin.
        out: Written if given. Tokens outside of query_start_loc are left as they are.

    Returns:
        (tokens, num_heads, head_dim)

    The keys and values of tokens right behind a prompt are multiplied with weights of 0: they must be numbers.
    """
    (tokens, num_heads, head_dim), num_kv_heads = query.shape, key.shape[1]
    out = torch.empty(query.shape, dtype=query.dtype, device=query.device) if out is None else out
    requests = len(query_start_loc) - 1
    if requests == 0 or tokens == 0:
        return out
    num_blocks = tokens // ROWS + requests
    programs = min(gpu_of(query.device).processors, num_blocks * num_heads)
    hopper_prefill_kernel[(programs,)](
        tensor_in_boxes(query.flatten(1), HALF, head_dim),
        tensor_in_boxes(key.flatten(1), ROWS, head_dim),
        tensor_in_boxes(value.flatten(1), ROWS, head_dim),
        out,
        query_start_loc,
        UNSCALED.score_scale(head_dim),
        requests,
        num_heads,
        num_blocks,
        out.stride(0),
        group=num_heads // num_kv_heads,
        rows=ROWS,
        half=HALF,
        head_dim=head_dim,
        stages=STAGES,
        consumer_registers=CONSUMER_REGISTERS,
        producer_registers=PRODUCER_REGISTERS,
        num_warps=CONSUMER_WARPS,
        maxnreg=ENTRY_REGISTERS,
    )
    return out
