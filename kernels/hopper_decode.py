"""Owns attention of one new token per request on a Hopper GPU, for many contexts of any lengths at once.

The formula is that of `paged_decode`, and memory is the limit there as here. What differs is how the work is dealt out.
There a program has a part of one context and one KV head. Programs differ in length, and the last ones leave most of
the GPU idle: 45 contexts of 900 to 2,000 tokens took 86 us where their bytes need 61. Here the contexts of all requests
are laid end to end, and cut into ranges of equal length, wherever that may be:

    request      0                  1           2                         3
    tiles      | 0  1  2  3  4  5 | 0  1  2  3 | 0  1  2  3  4  5  6  7 | 0  1 |          a tile: 16 tokens
    range      |    0      |    1      |    2      |    3      |    4          |
    part         0           1    2      3  4        5           6        7               one request in one range

A request inside of one range has its output there. Of the others each part leaves its own normalised output and the
logarithm of its softmax sum, and they are joined as in `paged_decode`. The part of request r in range i has the number
i + r: the next part is either in the next range or of the next request.

A program has a range and four KV heads, and stays on its multiprocessor from the beginning to the end. Its two groups
of warps meet only at barriers in shared memory:

    producer     tile 0 | tile 1 | tile 2 |         | tile 3 ...          1 warp, asks the copy engine, as far ahead
    consumers             tile 0 | tile 1 | tile 2 | ...                  as there is room; 4 warps, one KV head each

So nothing stops at the end of a request: the copy engine is tiles ahead, in the next one. A tile of keys is one or two
boxes: tokens of a page lie behind each other with all their heads. No warp waits for another's numbers, since each has
a head for itself, and all of its queries. Two programs share a multiprocessor: while one ends with a request, the other
reads.

Upstream: FlashAttention 3's decode with its scheduler's metadata, which vllm/v1/attention/backends/flash_attn.py calls.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from minivllm.kernels.early_launch import AFTER_ITS_WAIT, early_launch, wait_for_earlier, wait_in_front
from minivllm.kernels.early_launch import MOST_EARLY_ROWS as FEW_ROWS
from minivllm.kernels.gluon_guard import (
    HAS_GLUON,
    barrier_of_threads,
    fetch_box,
    gl,
    gluon_jit,
    gluon_jit_for_any,
    heads_in_boxes,
    hopper,
)
from minivllm.kernels.launch import MOST_REQUESTS, UNSCALED, KVScales, LayerLaunch, gpu_of, padded_requests
from minivllm.kernels.paged_decode import launch_join
from minivllm.kernels.triton_guard import jit_for_any, next_power_of_2, tl

# Tokens of a tile: what the matrix unit takes as the inner side of a product. Each page is whole tiles.
TILE = 16
# Rows of a product: a group of query heads that share a KV head fills some of them.
ROWS = 16
# KV heads of a program, one warp each.
HEADS = 4
# Of a multiprocessor: while one ends with a request, the other reads.
PROGRAMS_PER_PROCESSOR = 2
# Columns of a panel: the 128 bytes in which shared memory is swizzled.
PANEL = 64
# Shared memory of a program for tiles under way, of a multiprocessor's 227 KB.
RING_BYTES = 96 * 1024
# Of a thread: a multiprocessor's 65,536, shared by all threads, in multiples of 8. Threads are counted by 128, and the
# producer's one warp as four.
REGISTERS = 65536 // (PROGRAMS_PER_PROCESSOR * 32 * (HEADS + 4)) // 8 * 8
# The producer gives up its own for the consumers'.
PRODUCER_REGISTERS = 40
HEAD_DIMS = (64, 128)
BLOCK_SIZES = (16, 32, 64, 128)
# int32 numbers in a range's row of the plan. Six are used (`plan_ranges_kernel`); 8 make 32 bytes. Kernels write the 8.
RANGE_COLUMNS = 8
# With more the kernels in front are not launched early.
MOST_EARLY_ROWS = 256
# With fewer requests `paged_decode` was faster: its programs begin sooner.
LEAST_REQUESTS = 17
assert LEAST_REQUESTS > FEW_ROWS, "what is read ahead must be there: no kernel in front may lie ready several deep"
# With as many requests or fewer, contexts have many parts, and a kernel of its own joins them.
MOST_JOINED_APART = 32


class RangesPlan(NamedTuple):
    """How the contexts of a batch are cut into ranges, and what their parts leave.

    Attributes:
        ranges: (ranges, RANGE_COLUMNS) int32.
        of_request: (requests, 2) int32, number of its first part, and how many it has.
        arrived: (requests, num_kv_heads / HEADS) int32, parts that are ready; 0 before and after each layer.
        partial_out: (ranges + requests, num_heads, head_dim) float32.
        partial_lse: (ranges + requests, num_heads) float32.
        is_joined_apart: Whether a kernel of its own joins the parts.
        window: Of tokens that was planned for; 0 is all.
    """

    ranges: torch.Tensor
    of_request: torch.Tensor
    arrived: torch.Tensor
    partial_out: torch.Tensor
    partial_lse: torch.Tensor
    is_joined_apart: bool
    window: int


@jit_for_any("window", "num_requests", "num_ranges")
def plan_ranges_kernel(
    ranges_ptr,
    of_request_ptr,
    arrived_ptr,
    seq_lens_ptr,
    window,
    num_requests,
    num_ranges,
    sections: tl.constexpr,
    requests_padded: tl.constexpr,
    tile: tl.constexpr,
):
    """Range i of n has the tiles from i * all // n to (i + 1) * all // n.

        a range's row     its first request, the tile of it, tiles of it; its last request, tiles of it; all its tiles

    A request without tokens has a tile, too: its output, zeros, must be written. With fewer tiles than ranges, the
    ranges that are left over get none. One program.
    """
    request = tl.arange(0, requests_padded)
    is_real = request < num_requests
    seq_len = tl.load(seq_lens_ptr + request, mask=is_real, other=0)
    first = tl.where(window > 0, tl.maximum(seq_len - window, 0), 0) // tile * tile
    tiles = tl.where(is_real, tl.maximum((seq_len - first + tile - 1) // tile, 1), 0)
    behind = tl.cumsum(tiles, 0)
    before = behind - tiles
    all_tiles = tl.sum(tiles, 0)
    ranges = tl.minimum(num_ranges, all_tiles)
    # Range i begins at or behind a tile t from i = ceil(t * ranges / all) on.
    begins = (before * ranges + all_tiles - 1) // all_tiles
    behind_begins = (behind * ranges + all_tiles - 1) // all_tiles
    ends = ((before + 1) * ranges + all_tiles - 1) // all_tiles - 1
    behind_ends = ((behind + 1) * ranges + all_tiles - 1) // all_tiles - 1
    # The range that a request's first tile is in is the first that ends behind it.
    tl.store(of_request_ptr + request * 2, ends + request, mask=is_real)
    tl.store(of_request_ptr + request * 2 + 1, behind_begins - ends, mask=is_real)
    for section in tl.static_range(sections):
        tl.store(arrived_ptr + request * sections + section, 0, mask=is_real)
    for step in range(tl.max(behind_begins - begins, 0)):
        index = begins + step
        begin = index * all_tiles // ranges
        row = ranges_ptr + index * 8
        is_begun = is_real & (index < behind_begins)
        tl.store(row, request, mask=is_begun)
        tl.store(row + 1, begin - before, mask=is_begun)
        end = (index + 1) * all_tiles // ranges
        tl.store(row + 2, tl.minimum(end, behind) - begin, mask=is_begun)
        tl.store(row + 5, end - begin, mask=is_begun)
    for step in range(tl.max(behind_ends - ends, 0)):
        index = ends + step
        end = (index + 1) * all_tiles // ranges
        row = ranges_ptr + index * 8
        is_ended = is_real & (index < behind_ends)
        tl.store(row + 3, request, mask=is_ended)
        tl.store(row + 4, end - tl.maximum(index * all_tiles // ranges, before), mask=is_ended)
    for start in range(ranges, num_ranges, requests_padded):
        unused = start + request
        tl.store(ranges_ptr + unused * 8, 0, mask=unused < num_ranges)
        tl.store(ranges_ptr + unused * 8 + 3, -1, mask=unused < num_ranges)
        tl.store(ranges_ptr + unused * 8 + 5, 0, mask=unused < num_ranges)


@gluon_jit
def tiles_of(seq_len, window, tile: gl.constexpr):
    """The first token that is read of a context, rounded down to a tile, and how many tiles there are from it on."""
    first = gl.maximum(seq_len - gl.where(window > 0, window, seq_len), 0) // tile * tile
    return first, gl.maximum((seq_len - first + tile - 1) // tile, 1)


@gluon_jit
def request_of(step, first_request, last_request):
    """A range begins with the requests that it shares with others: the first, the last, then those between. To join
    their parts takes a while, in which the copy engine goes on."""
    return gl.where(step == 0, first_request, gl.where(step == 1, last_request, first_request + step - 1))


@gluon_jit
def produce(
    key_desc,
    value_desc,
    key_tiles,
    value_tiles,
    ready,
    done,
    ranges_ptr,
    seq_lens_ptr,
    block_table_ptr,
    table_stride,
    window,
    heads: gl.constexpr,
    stages: gl.constexpr,
    panels: gl.constexpr,
    panel_size: gl.constexpr,
    tile: gl.constexpr,
    tile_bytes: gl.constexpr,
    block_size: gl.constexpr,
    early: gl.constexpr,
):
    """Fetch all tiles of a range, as far ahead as there is room.

    A cursor runs four tiles ahead of what is fetched, so that nobody waits for the number of a page:

        cursor    row + 4: asked for        row + 3, row + 2, row + 1: on their way        row: fetched now

    Before what the kernels in front have written is there, only tiles of old tokens are fetched, as many as there is
    room for. What this step writes of a request is in its last tile; that no other request reads it in the same step is
    for the runner to see to (`CapturedModelRunner`).
    """
    first_head = gl.program_id(0) * heads
    row_ptr = ranges_ptr + gl.program_id(1) * 8
    first_request = gl.load(row_ptr)
    first_tile = gl.load(row_ptr + 1)
    tiles_of_first = gl.load(row_ptr + 2)
    last_request = gl.load(row_ptr + 3)
    tiles_of_last = gl.load(row_ptr + 4)
    all_tiles = gl.load(row_ptr + 5)
    num_segments = last_request - first_request + 1
    # Of the segment that the cursor is in.
    step = num_segments * 0
    seq_len = gl.load(seq_lens_ptr + first_request, mask=num_segments > 0, other=0)
    next_request = request_of(step + 1, first_request, last_request)
    next_seq_len = gl.load(seq_lens_ptr + next_request, mask=num_segments > 1, other=0)
    first, tiles = tiles_of(seq_len, window, tile)
    token = first + first_tile * tile
    left = tiles_of_first
    table_row = first_request.to(gl.int64) * table_stride
    # Row of the cache that a tile begins with, and whether it is old. "* 0" makes each a number of its own: a name that
    # is given the first value of another looks to the compiler as if it did not change.
    row_1 = step * 0
    row_2 = step * 0
    row_3 = step * 0
    row_4 = step * 0
    is_old_1 = step * 0
    is_old_2 = step * 0
    is_old_3 = step * 0
    is_old_4 = step * 0
    for ahead in range(all_tiles + 4):
        row = row_1
        is_old = is_old_1
        row_1 = row_2
        is_old_1 = is_old_2
        row_2 = row_3
        is_old_2 = is_old_3
        row_3 = row_4
        is_old_3 = is_old_4
        if ahead < all_tiles:
            if left == 0:
                step += 1
                seq_len = next_seq_len
                first, tiles = tiles_of(seq_len, window, tile)
                token = first
                left = gl.where(step == 1, tiles_of_last, tiles)
                table_row = next_request.to(gl.int64) * table_stride
                next_request = request_of(step + 1, first_request, last_request)
                next_seq_len = gl.load(seq_lens_ptr + next_request, mask=step + 1 < num_segments, other=0)
            # A request without tokens has no page, and gets block 0.
            page_id = gl.load(block_table_ptr + table_row + token // block_size, mask=seq_len > 0, other=0)
            row_4 = page_id * block_size + token % block_size
            token += tile
            is_old_4 = (token < seq_len).to(gl.int32)
            left -= 1
        fetched = ahead - 4
        if fetched >= 0:
            if (fetched >= stages) | (is_old == 0):
                wait_in_front(early)
            stage = fetched % stages
            # The first round waits for nobody: ^ 1 names the phase before.
            hopper.mbarrier.wait(done.index(stage), (fetched // stages & 1) ^ 1)
            bar = ready.index(stage)
            hopper.mbarrier.expect(bar, 2 * tile_bytes)
            for panel in gl.static_range(panels):
                fetch_box(key_desc, [first_head, row, panel * panel_size], bar, key_tiles.index(stage * panels + panel))
            for panel in gl.static_range(panels):
                fetch_box(
                    value_desc, [first_head, row, panel * panel_size], bar, value_tiles.index(stage * panels + panel)
                )


@gluon_jit
def count_along(size: gl.constexpr, axis: gl.constexpr, layout: gl.constexpr):
    """0 ... size - 1 along one axis of three."""
    if axis == 0:
        numbers = gl.arange(0, size, layout=gl.SliceLayout(1, gl.SliceLayout(2, layout)))
        return gl.expand_dims(gl.expand_dims(numbers, 1), 2)
    elif axis == 1:
        numbers = gl.arange(0, size, layout=gl.SliceLayout(0, gl.SliceLayout(2, layout)))
        return gl.expand_dims(gl.expand_dims(numbers, 0), 2)
    else:
        numbers = gl.arange(0, size, layout=gl.SliceLayout(0, gl.SliceLayout(1, layout)))
        return gl.expand_dims(gl.expand_dims(numbers, 0), 1)


@gluon_jit
def score(query_0, query_1, keys, stage, panels: gl.constexpr, no_scores, of_right: gl.constexpr):
    """query @ keys^T of a tile: (heads, rows, tile)"""
    key = keys.index(stage * panels).permute((0, 2, 1)).load(of_right)
    scores = hopper.mma_v2(query_0, key, no_scores)
    if panels == 2:
        key = keys.index(stage * panels + 1).permute((0, 2, 1)).load(of_right)
        scores = scores + hopper.mma_v2(query_1, key, no_scores)
    return scores


@gluon_jit
def weigh(scores, is_seen, score_scale, highest, totals):
    """One step of the softmax. Sums are kept by the place in a tile, and added up when the range leaves the request."""
    scores = gl.where(is_seen, scores * score_scale, float("-inf"))
    new = gl.maximum(highest, gl.max(scores, 2))
    shrink = gl.expand_dims(gl.exp2(highest - new), 2)
    weights = gl.exp2(scores - gl.expand_dims(new, 2))
    return weights, shrink, new, totals * shrink + weights


@gluon_jit
def consume(
    out_ptr,
    partial_out_ptr,
    partial_lse_ptr,
    arrived_ptr,
    query_ptr,
    key_tiles,
    value_tiles,
    ready,
    done,
    ranges_ptr,
    of_request_ptr,
    seq_lens_ptr,
    score_scale,
    value_scale,
    window,
    query_token_stride,
    out_token_stride,
    heads: gl.constexpr,
    num_kv_heads: gl.constexpr,
    group: gl.constexpr,
    heads_padded: gl.constexpr,
    head_dim: gl.constexpr,
    stages: gl.constexpr,
    panels: gl.constexpr,
    panel_size: gl.constexpr,
    tile: gl.constexpr,
    rows: gl.constexpr,
    is_joined_apart: gl.constexpr,
    early: gl.constexpr,
):
    """Attention of all query heads to one range. Warp h has KV head h, and the query heads of its group are rows:

        query (heads, rows, head_dim) @ keys^T  ->  scores (heads, rows, tile)
        weights @ values                        ->  acc    (heads, rows, head_dim)

    Dimensions come in panels of 64, one or two. The next tile's scores are taken before this one's weights are used:
    two chains of operations, each of which waits for itself, fill each other's gaps.
    """
    num_heads: gl.constexpr = num_kv_heads * group
    dtype: gl.constexpr = query_ptr.dtype.element_ty
    # Each warp a product of its own, of 16 x 8 at a time.
    of_acc: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [heads, 1, 1], [1, 16, 8])
    of_left: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=of_acc, k_width=2)
    of_right: gl.constexpr = gl.DotOperandLayout(operand_index=1, parent=of_acc, k_width=2)
    of_row: gl.constexpr = gl.SliceLayout(2, of_acc)
    of_join: gl.constexpr = gl.BlockedLayout([1, 4], [128 // head_dim, head_dim // 4], [heads, 1], [1, 0])

    section = gl.program_id(0)
    sections: gl.constexpr = num_kv_heads // heads
    first_head = section * heads * group
    query_row = count_along(rows, 1, of_left)
    query_head = count_along(heads, 0, of_left) * group + query_row
    query_cell = query_head * head_dim + count_along(panel_size, 2, of_left)
    is_query = (query_row < group) & (query_cell >= 0)
    lane = count_along(tile, 2, of_acc)
    row = count_along(rows, 1, of_acc)
    head = count_along(heads, 0, of_acc) * group + row  # (heads, rows, 1), counted from the program's first
    cell = head * head_dim + count_along(panel_size, 2, of_acc)
    is_cell = (row < group) & (cell >= 0)
    no_scores = gl.zeros([heads, rows, tile], gl.float32, of_acc)
    nothing = gl.zeros([heads, rows, panel_size], gl.float32, of_acc)
    # Not -inf: a row of padding sees nothing.
    lowest = gl.full([heads, rows], -1.0e30, gl.float32, of_row)

    index = gl.program_id(1)
    row_ptr = ranges_ptr + index * 8
    first_request = gl.load(row_ptr)
    first_tile = gl.load(row_ptr + 1)
    tiles_of_first = gl.load(row_ptr + 2)
    last_request = gl.load(row_ptr + 3)
    tiles_of_last = gl.load(row_ptr + 4)
    num_segments = last_request - first_request + 1
    used = num_segments * 0
    wait_for_earlier(early)
    for step in range(num_segments):
        request = request_of(step, first_request, last_request)
        seq_len = gl.load(seq_lens_ptr + request)
        request_query_ptr = query_ptr + request.to(gl.int64) * query_token_stride + first_head * head_dim
        query_0 = gl.load(request_query_ptr + query_cell, mask=is_query, other=0.0)
        query_1 = query_0
        if panels == 2:
            query_1 = gl.load(request_query_ptr + panel_size + query_cell, mask=is_query, other=0.0)
        first_part = gl.load(of_request_ptr + request * 2)
        parts = gl.load(of_request_ptr + request * 2 + 1)
        first, tiles = tiles_of(seq_len, window, tile)
        count = gl.where(step == 0, tiles_of_first, gl.where(step == 1, tiles_of_last, tiles))
        seen_from = gl.where(window > 0, seq_len - window, 0)
        token = first + gl.where(step == 0, first_tile, 0) * tile
        highest = lowest
        totals = no_scores
        acc_0 = nothing
        acc_1 = nothing
        stage = used % stages
        hopper.mbarrier.wait(ready.index(stage), used // stages & 1)
        scores = score(query_0, query_1, key_tiles, stage, panels, no_scores, of_right)
        for left in range(count, 0, -1):
            value_0 = value_tiles.index(stage * panels).load(of_right)
            value_1 = value_0
            if panels == 2:
                value_1 = value_tiles.index(stage * panels + 1).load(of_right)
            barrier_of_threads()  # all have read before one says so
            hopper.mbarrier.arrive(done.index(stage), count=1)
            used += 1
            is_seen = (token + lane < seq_len) & (token + lane >= seen_from)
            token += tile
            next_scores = no_scores
            if left > 1:
                stage = used % stages
                hopper.mbarrier.wait(ready.index(stage), used // stages & 1)
                next_scores = score(query_0, query_1, key_tiles, stage, panels, no_scores, of_right)
            weights, shrink, highest, totals = weigh(scores, is_seen, score_scale, highest, totals)
            weights_16 = gl.convert_layout(weights.to(dtype), of_left)
            acc_0 = hopper.mma_v2(weights_16, value_0, acc_0 * shrink)
            if panels == 2:
                acc_1 = hopper.mma_v2(weights_16, value_1, acc_1 * shrink)
            scores = next_scores

        total = gl.expand_dims(gl.sum(totals, 2), 2)
        scale = value_scale / gl.where(total == 0.0, 1.0, total)
        request_out_ptr = out_ptr + request.to(gl.int64) * out_token_stride + first_head * head_dim
        if count == tiles:
            gl.store(request_out_ptr + cell, (acc_0 * scale).to(dtype), mask=is_cell)
            if panels == 2:
                gl.store(request_out_ptr + panel_size + cell, (acc_1 * scale).to(dtype), mask=is_cell)
        else:
            part = (index + request).to(gl.int64) * num_heads + first_head
            gl.store(partial_out_ptr + part * head_dim + cell, acc_0 * scale, mask=is_cell)
            if panels == 2:
                gl.store(partial_out_ptr + part * head_dim + panel_size + cell, acc_1 * scale, mask=is_cell)
            lse = gl.expand_dims(highest, 2) + gl.log2(total)
            gl.store(partial_lse_ptr + part + head, lse, mask=row < group)
            if not is_joined_apart:
                barrier_of_threads()  # all have written before one says so
                ticket = gl.atomic_add(arrived_ptr + request * sections + section, 1, sem="acq_rel")
                if ticket == parts - 1:  # all others are ready
                    gl.atomic_xchg(arrived_ptr + request * sections + section, 0, sem="relaxed")
                    barrier_of_threads()
                    join(
                        request_out_ptr, partial_out_ptr, partial_lse_ptr, first_part, parts, first_head,
                        heads * group, num_heads, heads_padded, head_dim, dtype, of_join,
                    )  # fmt: skip


@gluon_jit
def join(
    request_out_ptr,
    partial_out_ptr,
    partial_lse_ptr,
    first_part,
    parts,
    first_head,
    joined_heads: gl.constexpr,
    num_heads: gl.constexpr,
    heads_padded: gl.constexpr,
    head_dim: gl.constexpr,
    dtype: gl.constexpr,
    layout: gl.constexpr,
):
    """Join the parts of a request, in the order of its tokens. They are read past the first-level cache, which may hold
    what stood there in another layer."""
    head = gl.arange(0, heads_padded, layout=gl.SliceLayout(1, layout))
    dim = gl.arange(0, head_dim, layout=gl.SliceLayout(0, layout))
    is_head = head < joined_heads
    cell = gl.expand_dims(head * head_dim, 1) + gl.expand_dims(dim, 0)
    is_cell = gl.expand_dims(is_head, 1) & (cell >= 0)
    highest = gl.full([heads_padded], -1.0e30, gl.float32, gl.SliceLayout(1, layout))
    total = gl.zeros([heads_padded], gl.float32, gl.SliceLayout(1, layout))
    acc = gl.zeros([heads_padded, head_dim], gl.float32, layout)
    place = first_part.to(gl.int64) * num_heads + first_head
    for part in range(0, parts, 2):  # two at once: each load takes as long as several
        is_pair = part + 1 < parts
        lse = gl.load(partial_lse_ptr + place + head, mask=is_head, other=0.0, cache_modifier=".cg")
        outputs = gl.load(partial_out_ptr + place * head_dim + cell, mask=is_cell, other=0.0, cache_modifier=".cg")
        place += num_heads
        lse_2 = gl.load(
            partial_lse_ptr + place + head, mask=is_head & is_pair, other=float("-inf"), cache_modifier=".cg"
        )
        outputs_2 = gl.load(
            partial_out_ptr + place * head_dim + cell, mask=is_cell & is_pair, other=0.0, cache_modifier=".cg"
        )
        place += num_heads
        new = gl.maximum(highest, gl.maximum(lse, lse_2))
        shrink = gl.exp2(highest - new)
        weight = gl.exp2(lse - new)
        weight_2 = gl.exp2(lse_2 - new)
        total = total * shrink + weight + weight_2
        acc = acc * gl.expand_dims(shrink, 1) + outputs * gl.expand_dims(weight, 1)
        acc = acc + outputs_2 * gl.expand_dims(weight_2, 1)
        highest = new
    gl.store(request_out_ptr + cell, (acc * gl.expand_dims(1.0 / total, 1)).to(dtype), mask=is_cell)


@gluon_jit_for_any("table_stride", "window", "query_token_stride", "out_token_stride")
def hopper_decode_kernel(
    out_ptr,
    partial_out_ptr,
    partial_lse_ptr,
    arrived_ptr,
    ranges_ptr,
    of_request_ptr,
    query_ptr,
    key_desc,
    value_desc,
    block_table_ptr,
    seq_lens_ptr,
    score_scale,
    value_scale,
    window,
    query_token_stride,
    out_token_stride,
    table_stride,
    heads: gl.constexpr,
    num_kv_heads: gl.constexpr,
    group: gl.constexpr,
    heads_padded: gl.constexpr,
    head_dim: gl.constexpr,
    stages: gl.constexpr,
    panels: gl.constexpr,
    panel_size: gl.constexpr,
    tile: gl.constexpr,
    rows: gl.constexpr,
    block_size: gl.constexpr,
    is_joined_apart: gl.constexpr,
    registers: gl.constexpr,
    early: gl.constexpr,
):
    """Set up buffers and barriers, and set the two groups of warps to work."""
    dtype: gl.constexpr = key_desc.dtype
    key_tiles = gl.allocate_shared_memory(dtype, [stages * panels, heads, tile, panel_size], key_desc.layout)
    value_tiles = gl.allocate_shared_memory(dtype, [stages * panels, heads, tile, panel_size], key_desc.layout)
    # `ready`: the copy engine has filled a buffer. `done`: all consumers have read it.
    of_barrier: gl.constexpr = hopper.mbarrier.MBarrierLayout()
    ready = gl.allocate_shared_memory(gl.int64, [stages, 1], of_barrier)
    done = gl.allocate_shared_memory(gl.int64, [stages, 1], of_barrier)
    for stage in gl.static_range(stages):
        hopper.mbarrier.init(ready.index(stage), count=1)
        hopper.mbarrier.init(done.index(stage), count=1)
    hopper.fence_async_shared()

    tile_bytes: gl.constexpr = tile * heads * head_dim * 2
    # Behind the groups: warps and registers of the second. The first are the warps that are there already.
    gl.warp_specialize(
        [
            (
                consume,
                (
                    out_ptr, partial_out_ptr, partial_lse_ptr, arrived_ptr, query_ptr, key_tiles, value_tiles, ready,
                    done, ranges_ptr, of_request_ptr, seq_lens_ptr, score_scale, value_scale, window,
                    query_token_stride, out_token_stride, heads, num_kv_heads, group, heads_padded, head_dim, stages,
                    panels, panel_size, tile, rows, is_joined_apart, early,
                ),
            ),
            (
                produce,
                (
                    key_desc, value_desc, key_tiles, value_tiles, ready, done, ranges_ptr, seq_lens_ptr,
                    block_table_ptr, table_stride, window, heads, stages, panels, panel_size, tile, tile_bytes,
                    block_size, early,
                ),
            ),
        ],
        [1],
        [registers],
    )  # fmt: skip


def stages_for(head_dim: int) -> int:
    """Tiles that are under way at a time."""
    return RING_BYTES // (HEADS * TILE * head_dim * 2 * 2)


def is_for(query: torch.Tensor, kv_cache: torch.Tensor) -> bool:
    """Whether this kernel can take a batch of decodes.

    Args:
        query: (requests, num_heads, head_dim).
        kv_cache: (2, num_blocks, block_size, num_kv_heads, head_dim).
    """
    requests, num_heads, head_dim = query.shape
    block_size, num_kv_heads = kv_cache.shape[2:4]
    return (
        HAS_GLUON
        and LEAST_REQUESTS <= requests <= MOST_REQUESTS
        and not query.is_cpu
        and gpu_of(query.device).capability == 90
        and query.dtype in (torch.bfloat16, torch.float16)
        and kv_cache.dtype == query.dtype
        and head_dim in HEAD_DIMS
        and num_kv_heads % HEADS == 0
        and num_heads // num_kv_heads <= ROWS
        and block_size in BLOCK_SIZES
        and kv_cache.is_contiguous()
    )


def plan_ranges(
    query: torch.Tensor,
    kv_cache: torch.Tensor,
    seq_lens: torch.Tensor,
    window: int | None = None,
    num_ranges: int | None = None,
) -> RangesPlan:
    """Cut the contexts of a batch into ranges: once a step, since every layer with the same window has the same.

    What it launches depends on shapes only, and what it writes on `seq_lens` as they are on the device then.

    Args:
        query, kv_cache, seq_lens, window: As of `paged_decode`.
        num_ranges: None is what the GPU has room for.
    """
    requests, num_heads, head_dim = query.shape
    sections, device = kv_cache.shape[3] // HEADS, query.device
    num_ranges = num_ranges or gpu_of(device).processors * PROGRAMS_PER_PROCESSOR // sections
    plan = RangesPlan(
        torch.empty((num_ranges, RANGE_COLUMNS), dtype=torch.int32, device=device),
        torch.empty((requests, 2), dtype=torch.int32, device=device),
        torch.empty((requests, sections), dtype=torch.int32, device=device),
        torch.empty((num_ranges + requests, num_heads, head_dim), dtype=torch.float32, device=device),
        torch.empty((num_ranges + requests, num_heads), dtype=torch.float32, device=device),
        requests <= MOST_JOINED_APART,
        0 if window is None else window,
    )
    requests_padded = padded_requests(requests)
    plan_ranges_kernel[(1,)](
        plan.ranges,
        plan.of_request,
        plan.arrived,
        seq_lens,
        plan.window,
        requests,
        num_ranges,
        sections=sections,
        requests_padded=requests_padded,
        tile=TILE,
        num_warps=4 if requests_padded <= 512 else 16,
    )
    return plan


def hopper_decode(
    query: torch.Tensor,
    kv_cache: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    plan: RangesPlan,
    scales: KVScales = UNSCALED,
    out: torch.Tensor | None = None,
    is_alone: bool = False,
    launches: list[LayerLaunch] | None = None,
) -> torch.Tensor:
    """Attention of one token per request, where `is_for` says so. Other arguments are those of `paged_decode`.

    Args:
        plan: Of these lengths.
        is_alone: The plan, and all that requests read beside their last tile, was there before the kernel in front
            began: this one may begin before that one's end.

    What lies behind a request's tokens in its last page, zeros or what another request has left there, is multiplied
    with weights of 0: it must be finite, since 0 times NaN is NaN.
    """
    requests, num_heads, head_dim = query.shape
    block_size, num_kv_heads = kv_cache.shape[2:4]
    out = torch.empty(query.shape, dtype=query.dtype, device=query.device) if out is None else out
    key, value = (cache.flatten(0, 1) for cache in (kv_cache[0], kv_cache[1]))
    most_early_rows = MOST_EARLY_ROWS if is_alone else 0
    launch = LayerLaunch(
        hopper_decode_kernel,
        (num_kv_heads // HEADS, len(plan.ranges)),
        {"out_ptr": "out", "query_ptr": "query", "key_desc": "key_pages", "value_desc": "value_pages"},
        out,
        plan.partial_out,
        plan.partial_lse,
        plan.arrived,
        plan.ranges,
        plan.of_request,
        query,
        heads_in_boxes(key, HEADS, TILE, PANEL),
        heads_in_boxes(value, HEADS, TILE, PANEL),
        block_table,
        seq_lens,
        scales.score_scale(head_dim),
        scales.value,
        plan.window,
        query.stride(0),
        out.stride(0),
        block_table.stride(0),
        heads=HEADS,
        num_kv_heads=num_kv_heads,
        group=num_heads // num_kv_heads,
        heads_padded=next_power_of_2(HEADS * num_heads // num_kv_heads),
        head_dim=head_dim,
        stages=stages_for(head_dim),
        panels=head_dim // PANEL,
        panel_size=PANEL,
        tile=TILE,
        rows=ROWS,
        block_size=block_size,
        is_joined_apart=plan.is_joined_apart,
        registers=PRODUCER_REGISTERS,
        num_warps=HEADS,
        maxnreg=REGISTERS,
        **early_launch(query.device, requests, AFTER_ITS_WAIT, most_early_rows),
    )
    if launches is not None:
        launches.append(launch)
    if plan.is_joined_apart:
        launch = launch_join(out, plan.partial_out, plan.partial_lse, plan.of_request, most_early_rows=most_early_rows)
        if launches is not None:
            launches.append(launch)
    return out
