"""Owns attention of one new token per request on a Hopper GPU, for many contexts of any lengths at once.

The formula is that of `paged_decode`, and memory is the limit there as here. What differs is how the work is dealt out.
There a program has a part of one context and one KV head; programs differ in length, wait at their beginning, and the
last ones leave most of the GPU idle: with 48 contexts of 130 to 2,000 tokens two thirds of the bandwidth were used. Here
the contexts of all requests are laid end to end, and cut into ranges of equal length, one for each program, wherever
that may be:

    request      0                  1           2                         3
    tiles      | 0  1  2  3  4  5 | 0  1  2  3 | 0  1  2  3  4  5  6  7 | 0  1 |       a tile: 16 tokens, all KV heads
    range      |    0      |    1      |    2      |    3      |    4          |
    parts        0           1    2      3  4        5           6        7           each is one request in one range

A request inside of one range has its output there. Of the others each part leaves its own normalised output and the
logarithm of its softmax sum, and they are joined as in `paged_decode`; the part of request r in range i has the number
i + r, since the next part is either in the next range or of the next request.

One program stays on a multiprocessor from the beginning to the end, in groups of warps that meet only at barriers in
shared memory:

    producer      tile 0 | tile 1 | tile 2 |        | tile 3 ...    asks the copy engine, as far ahead as there is room
    consumer 0             tile 0: KV head 0 | tile 1: KV head 0 | ...                                      1 warp
    consumer 1             tile 0: KV head 1 | tile 1: KV head 1 | ...                                      1 warp

So nothing stops at the seams of requests: the copy engine is tiles ahead, in the next request. A tile of keys is one
box: the tokens of a page lie in one piece of memory with all their heads, and are read in one go. In a consumer nobody
waits for another warp, since a warp has a head for itself. With fewer than 8 KV heads a program has several ranges at
once, each with a producer and a ring of buffers of its own, so that there are always 8 consumers.

Upstream: FlashAttention 3's decode with its scheduler's metadata, which vllm/v1/attention/backends/flash_attn.py calls.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from minivllm.kernels.early_launch import AFTER_ITS_WAIT, begin_early, early_launch, wait_for_earlier
from minivllm.kernels.gluon_guard import (
    HAS_GLUON,
    barrier_of_threads,
    fetch_box,
    gl,
    gluon_jit,
    gluon_jit_for_any,
    hopper,
    panels_in_boxes,
    reinterpret,
)
from minivllm.kernels.launch import UNSCALED, KVScales, gpu_of
from minivllm.kernels.triton_guard import jit_for_any, tl

# Tokens of a tile: what the matrix unit takes as the inner side of a product. Each page is whole tiles.
TILE = 16
# Rows of a product: a group of query heads that share a KV head fills some of them.
ROWS = 16
CONSUMERS = 8
# Columns of a panel: the 128 bytes in which shared memory is swizzled.
PANEL = 64
# Shared memory for tiles under way, of a multiprocessor's 227 KB.
RING_BYTES = 192 * 1024
HEAD_DIMS = (64, 128)
KV_HEADS = (2, 4, 8)
BLOCK_SIZES = (16, 32, 64, 128)
# int32 numbers in a range's row of the plan: its first request, the tile of it, tiles; 4 make 16 bytes.
RANGE_COLUMNS = 4
# Few sizes of batches for which the plan's kernel is compiled.
REQUESTS_PADDED = (64, 512, 4096, 32768)
MOST_EARLY = 256


class RangesPlan(NamedTuple):
    """How the contexts of a batch are cut into ranges, and what their parts leave.

    Attributes:
        ranges: (ranges, RANGE_COLUMNS) int32.
        of_request: (requests, 2) int32, number of its first part, and how many it has.
        arrived: (requests, num_kv_heads) int32, parts that are ready; 0 before and after each layer.
        partial_out: (ranges + requests, num_heads, head_dim) float32.
        partial_lse: (ranges + requests, num_heads) float32.
        window: Of tokens that was planned for; 0 is all.
    """

    ranges: torch.Tensor
    of_request: torch.Tensor
    arrived: torch.Tensor
    partial_out: torch.Tensor
    partial_lse: torch.Tensor
    window: int


@jit_for_any("num_requests", "num_arrivals", "num_ranges")
def plan_ranges_kernel(
    ranges_ptr,
    of_request_ptr,
    arrived_ptr,
    seq_lens_ptr,
    window,
    num_requests,
    num_arrivals,
    num_ranges,
    requests_padded: tl.constexpr,
    tile: tl.constexpr,
):
    """Range i of n has the tiles from i * all // n to (i + 1) * all // n. One program.

    A request without tokens has a tile, too: its output, zeros, must be written. With fewer tiles than ranges, the ranges
    that are left over get none.
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
    # Ranges that begin in a request: the first whose first tile is not before it, up to the first that is behind.
    begins = (before * ranges + all_tiles - 1) // all_tiles
    ends = (behind * ranges + all_tiles - 1) // all_tiles
    touched = ((before + 1) * ranges + all_tiles - 1) // all_tiles - 1  # the range that its first tile is in
    tl.store(of_request_ptr + request * 2, touched + request, mask=is_real)
    tl.store(of_request_ptr + request * 2 + 1, ends - touched, mask=is_real)
    for step in range(tl.max(ends - begins, 0)):
        index = begins + step
        begin = index * all_tiles // ranges
        row = ranges_ptr + index * 4
        is_range = is_real & (index < ends)
        tl.store(row, request, mask=is_range)
        tl.store(row + 1, begin - before, mask=is_range)
        tl.store(row + 2, (index + 1) * all_tiles // ranges - begin, mask=is_range)
    for start in range(ranges, num_ranges, requests_padded):
        unused = start + request
        tl.store(ranges_ptr + unused * 4 + 2, 0, mask=unused < num_ranges)
    for start in range(0, num_arrivals, requests_padded):
        place = start + request
        tl.store(arrived_ptr + place, 0, mask=place < num_arrivals)


@gluon_jit
def tiles_of(seq_len, window, tile: gl.constexpr):
    """The first token that is read of a context, rounded down to a tile, and how many tiles there are from it on."""
    first = gl.maximum(seq_len - gl.where(window > 0, window, seq_len), 0) // tile * tile
    return first, gl.maximum((seq_len - first + tile - 1) // tile, 1)


@gluon_jit
def produce(
    fetching,
    ring: gl.constexpr,
    rings: gl.constexpr,
    stages: gl.constexpr,
    tile: gl.constexpr,
    tile_bytes: gl.constexpr,
    block_size: gl.constexpr,
):
    """Fetch all tiles of a range, as far ahead as there is room."""
    (
        key_desc, value_desc, key_tiles, value_tiles, ready, done, ranges_ptr, seq_lens_ptr, block_table_ptr,
        table_stride, window,
    ) = fetching  # fmt: skip
    row_ptr = ranges_ptr + (gl.program_id(0) * rings + ring) * 4
    request = gl.load(row_ptr)
    tile_index = gl.load(row_ptr + 1)
    left = gl.load(row_ptr + 2)
    fetched = left * 0
    while left > 0:
        seq_len = gl.load(seq_lens_ptr + request)
        first, tiles = tiles_of(seq_len, window, tile)
        count = gl.minimum(tiles - tile_index, left)
        table_row_ptr = block_table_ptr + request.to(gl.int64) * table_stride
        last_page = gl.maximum(seq_len - 1, 0) // block_size
        token = first + tile_index * tile
        has_token = seq_len > 0  # a row of padding has no pages
        page_id = gl.load(table_row_ptr + token // block_size, mask=has_token, other=0)
        for _ in range(count):
            row = page_id * block_size + token % block_size
            token += tile
            # The next page's number comes while this tile waits for its buffer.
            page = gl.minimum(token // block_size, last_page)
            page_id = gl.load(table_row_ptr + page, mask=has_token, other=0)
            stage = fetched % stages
            # The first round waits for nobody: ^ 1 names the phase before.
            slot = ring * stages + stage
            hopper.mbarrier.wait(done.index(slot), (fetched // stages & 1) ^ 1)
            bar = ready.index(slot)
            hopper.mbarrier.expect(bar, 2 * tile_bytes)
            fetch_box(key_desc, [0, row, 0], bar, key_tiles.index(slot))
            fetch_box(value_desc, [0, row, 0], bar, value_tiles.index(slot))
            fetched += 1
        left -= count
        request += 1
        tile_index = 0


@gluon_jit
def consume(
    used,
    consumer: gl.constexpr,
    num_kv_heads: gl.constexpr,
    group: gl.constexpr,
    head_dim: gl.constexpr,
    rings: gl.constexpr,
    stages: gl.constexpr,
    tile: gl.constexpr,
    rows: gl.constexpr,
    panel_size: gl.constexpr,
    is_joined_apart: gl.constexpr,
):
    """Attention of all query heads of one KV head to one range.

    query (rows, head_dim) @ keys^T (head_dim, tile)  ->  scores (rows, tile)  ->  weights @ values  ->  acc (rows, head_dim)

    in panels of 64 dimensions: one or two.
    """
    (
        out_ptr, partial_out_ptr, partial_lse_ptr, arrived_ptr, query_ptr, key_tiles, value_tiles, ready, done,
        ranges_ptr, of_request_ptr, seq_lens_ptr, score_scale, value_scale, window, query_token_stride,
        out_token_stride,
    ) = used  # fmt: skip
    ring: gl.constexpr = consumer // num_kv_heads
    kv_head: gl.constexpr = consumer % num_kv_heads
    panels: gl.constexpr = head_dim // panel_size
    num_heads: gl.constexpr = num_kv_heads * group
    dtype: gl.constexpr = query_ptr.dtype.element_ty
    # One warp: 16 rows of products of 16 x 8.
    of_acc: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [1, 1], [16, 8])
    of_left: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=of_acc, k_width=2)
    of_right: gl.constexpr = gl.DotOperandLayout(operand_index=1, parent=of_acc, k_width=2)
    of_panel: gl.constexpr = gl.NVMMASharedLayout.get_default_for([tile, panel_size], dtype)
    boxes: gl.constexpr = rings * stages * num_kv_heads * panels
    keys = reinterpret(key_tiles, key_tiles.dtype, [boxes, tile, panel_size], of_panel)
    values = reinterpret(value_tiles, value_tiles.dtype, [boxes, tile, panel_size], of_panel)

    query_row = gl.arange(0, rows, layout=gl.SliceLayout(1, of_left))
    query_column = gl.arange(0, panel_size, layout=gl.SliceLayout(0, of_left))
    query_cell = gl.expand_dims((kv_head * group + query_row) * head_dim, 1) + gl.expand_dims(query_column, 0)
    is_query = gl.expand_dims(query_row < group, 1) & gl.expand_dims(query_column < panel_size, 0)
    row = gl.arange(0, rows, layout=gl.SliceLayout(1, of_acc))
    column = gl.arange(0, panel_size, layout=gl.SliceLayout(0, of_acc))
    lane = gl.arange(0, tile, layout=gl.SliceLayout(0, of_acc))
    is_row = row < group
    is_cell = gl.expand_dims(is_row, 1) & gl.expand_dims(column < panel_size, 0)
    head = kv_head * group + row
    cell = gl.expand_dims(head * head_dim, 1) + gl.expand_dims(column, 0)
    no_scores = gl.zeros([rows, tile], gl.float32, of_acc)

    index = gl.program_id(0) * rings + ring
    row_ptr = ranges_ptr + index * 4
    request = gl.load(row_ptr)
    tile_index = gl.load(row_ptr + 1)
    left = gl.load(row_ptr + 2)
    taken = left * 0
    while left > 0:
        seq_len = gl.load(seq_lens_ptr + request)
        request_query_ptr = query_ptr + request.to(gl.int64) * query_token_stride
        query_0 = gl.load(request_query_ptr + query_cell, mask=is_query, other=0.0)
        if panels == 2:
            query_1 = gl.load(request_query_ptr + panel_size + query_cell, mask=is_query, other=0.0)
        first, tiles = tiles_of(seq_len, window, tile)
        count = gl.minimum(tiles - tile_index, left)
        seen_from = gl.where(window > 0, seq_len - window, 0)
        token = first + tile_index * tile
        # Not -inf: a row of padding sees nothing.
        highest = gl.full([rows], -1.0e30, gl.float32, gl.SliceLayout(1, of_acc))
        total = gl.zeros([rows], gl.float32, gl.SliceLayout(1, of_acc))
        acc_0 = gl.zeros([rows, panel_size], gl.float32, of_acc)
        acc_1 = acc_0
        for _ in range(count):
            slot = ring * stages + taken % stages
            hopper.mbarrier.wait(ready.index(slot), taken // stages & 1)
            taken += 1
            box = (slot * num_kv_heads + kv_head) * panels
            key = keys.index(box).permute((1, 0)).load(of_right)
            scores = hopper.mma_v2(query_0, key, no_scores)
            if panels == 2:
                key = keys.index(box + 1).permute((1, 0)).load(of_right)
                scores = hopper.mma_v2(query_1, key, scores)
            value_0 = values.index(box).load(of_right)
            if panels == 2:
                value_1 = values.index(box + 1).load(of_right)
            barrier_of_threads()  # all threads have read before one says so
            hopper.mbarrier.arrive(done.index(slot), count=1)
            is_seen = (token + lane < seq_len) & (token + lane >= seen_from)
            scores = gl.where(gl.expand_dims(is_seen, 0), scores * score_scale, float("-inf"))
            token += tile
            new = gl.maximum(highest, gl.max(scores, 1))
            shrink = gl.exp2(highest - new)
            weights = gl.exp2(scores - gl.expand_dims(new, 1))
            total = total * shrink + gl.sum(weights, 1)
            highest = new
            weights_16 = gl.convert_layout(weights.to(dtype), of_left)
            acc_0 = hopper.mma_v2(weights_16, value_0, acc_0 * gl.expand_dims(shrink, 1))
            if panels == 2:
                acc_1 = hopper.mma_v2(weights_16, value_1, acc_1 * gl.expand_dims(shrink, 1))

        scale = gl.expand_dims(value_scale / gl.where(total == 0.0, 1.0, total), 1)
        acc_0 = acc_0 * scale
        acc_1 = acc_1 * scale
        request_out_ptr = out_ptr + request.to(gl.int64) * out_token_stride
        if count == tiles:
            gl.store(request_out_ptr + cell, acc_0.to(dtype), mask=is_cell)
            if panels == 2:
                gl.store(request_out_ptr + panel_size + cell, acc_1.to(dtype), mask=is_cell)
        else:
            part = (index + request).to(gl.int64) * num_heads
            gl.store(partial_out_ptr + part * head_dim + cell, acc_0, mask=is_cell)
            if panels == 2:
                gl.store(partial_out_ptr + part * head_dim + panel_size + cell, acc_1, mask=is_cell)
            gl.store(partial_lse_ptr + part + head, highest + gl.log2(total), mask=is_row)
            if not is_joined_apart:
                barrier_of_threads()  # all threads have written before one says so
                counter_ptr = arrived_ptr + request * num_kv_heads + kv_head
                ticket = gl.atomic_add(counter_ptr, 1, sem="acq_rel")
                parts = gl.load(of_request_ptr + request * 2 + 1)
                if ticket == parts - 1:  # all others are ready
                    gl.atomic_xchg(counter_ptr, 0, sem="relaxed")
                    barrier_of_threads()
                    place = gl.load(of_request_ptr + request * 2).to(gl.int64) * num_heads
                    highest = gl.full([rows], -1.0e30, gl.float32, gl.SliceLayout(1, of_acc))
                    total = gl.zeros([rows], gl.float32, gl.SliceLayout(1, of_acc))
                    acc_0 = gl.zeros([rows, panel_size], gl.float32, of_acc)
                    acc_1 = acc_0
                    for _ in range(parts):
                        lse = gl.load(partial_lse_ptr + place + head, mask=is_row, other=0.0, cache_modifier=".cg")
                        part_ptr = partial_out_ptr + place * head_dim
                        part_0 = gl.load(part_ptr + cell, mask=is_cell, other=0.0, cache_modifier=".cg")
                        if panels == 2:
                            part_1 = gl.load(part_ptr + panel_size + cell, mask=is_cell, other=0.0, cache_modifier=".cg")
                        new = gl.maximum(highest, lse)
                        shrink, weight = gl.exp2(highest - new), gl.exp2(lse - new)
                        total = total * shrink + weight
                        highest = new
                        acc_0 = acc_0 * gl.expand_dims(shrink, 1) + part_0 * gl.expand_dims(weight, 1)
                        if panels == 2:
                            acc_1 = acc_1 * gl.expand_dims(shrink, 1) + part_1 * gl.expand_dims(weight, 1)
                        place += num_heads
                    scale = gl.expand_dims(1.0 / total, 1)
                    gl.store(request_out_ptr + cell, (acc_0 * scale).to(dtype), mask=is_cell)
                    if panels == 2:
                        gl.store(request_out_ptr + panel_size + cell, (acc_1 * scale).to(dtype), mask=is_cell)
        left -= count
        request += 1
        tile_index = 0


@gluon_jit_for_any("table_stride")
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
    num_kv_heads: gl.constexpr,
    group: gl.constexpr,
    head_dim: gl.constexpr,
    rings: gl.constexpr,
    stages: gl.constexpr,
    tile: gl.constexpr,
    rows: gl.constexpr,
    panel_size: gl.constexpr,
    block_size: gl.constexpr,
    is_joined_apart: gl.constexpr,
    registers: gl.constexpr,
    early: gl.constexpr,
):
    """Set up buffers and barriers, and set the groups of warps to work."""
    begin_early(early)
    dtype: gl.constexpr = key_desc.dtype
    panels: gl.constexpr = num_kv_heads * head_dim // panel_size
    key_tiles = gl.allocate_shared_memory(dtype, [rings * stages, panels, tile, panel_size], key_desc.layout)
    value_tiles = gl.allocate_shared_memory(dtype, [rings * stages, panels, tile, panel_size], key_desc.layout)
    # `ready`: the copy engine has filled a buffer. `done`: all consumers have read it.
    of_barrier: gl.constexpr = hopper.mbarrier.MBarrierLayout()
    ready = gl.allocate_shared_memory(gl.int64, [rings * stages, 1], of_barrier)
    done = gl.allocate_shared_memory(gl.int64, [rings * stages, 1], of_barrier)
    for slot in gl.static_range(rings * stages):
        hopper.mbarrier.init(ready.index(slot), count=1)
        hopper.mbarrier.init(done.index(slot), count=num_kv_heads)
    hopper.fence_async_shared()
    wait_for_earlier(early)

    tile_bytes: gl.constexpr = tile * num_kv_heads * head_dim * 2
    fetching = (
        key_desc, value_desc, key_tiles, value_tiles, ready, done, ranges_ptr, seq_lens_ptr, block_table_ptr,
        table_stride, window,
    )  # fmt: skip
    used = (
        out_ptr, partial_out_ptr, partial_lse_ptr, arrived_ptr, query_ptr, key_tiles, value_tiles, ready, done,
        ranges_ptr, of_request_ptr, seq_lens_ptr, score_scale, value_scale, window, query_token_stride,
        out_token_stride,
    )  # fmt: skip
    # Behind the groups: warps and registers of all but the first, which is the 4 warps that are there already.
    if rings == 1:
        gl.warp_specialize(
            [
                (produce, (fetching, 0, rings, stages, tile, tile_bytes, block_size)),
                (consume, (used, 0, num_kv_heads, group, head_dim, rings, stages, tile, rows, panel_size, is_joined_apart)),
                (consume, (used, 1, num_kv_heads, group, head_dim, rings, stages, tile, rows, panel_size, is_joined_apart)),
                (consume, (used, 2, num_kv_heads, group, head_dim, rings, stages, tile, rows, panel_size, is_joined_apart)),
                (consume, (used, 3, num_kv_heads, group, head_dim, rings, stages, tile, rows, panel_size, is_joined_apart)),
                (consume, (used, 4, num_kv_heads, group, head_dim, rings, stages, tile, rows, panel_size, is_joined_apart)),
                (consume, (used, 5, num_kv_heads, group, head_dim, rings, stages, tile, rows, panel_size, is_joined_apart)),
                (consume, (used, 6, num_kv_heads, group, head_dim, rings, stages, tile, rows, panel_size, is_joined_apart)),
                (consume, (used, 7, num_kv_heads, group, head_dim, rings, stages, tile, rows, panel_size, is_joined_apart)),
            ],
            [1, 1, 1, 1, 1, 1, 1, 1],
            [registers, registers, registers, registers, registers, registers, registers, registers],
        )
    elif rings == 2:
        gl.warp_specialize(
            [
                (produce, (fetching, 0, rings, stages, tile, tile_bytes, block_size)),
                (produce, (fetching, 1, rings, stages, tile, tile_bytes, block_size)),
                (consume, (used, 0, num_kv_heads, group, head_dim, rings, stages, tile, rows, panel_size, is_joined_apart)),
                (consume, (used, 1, num_kv_heads, group, head_dim, rings, stages, tile, rows, panel_size, is_joined_apart)),
                (consume, (used, 2, num_kv_heads, group, head_dim, rings, stages, tile, rows, panel_size, is_joined_apart)),
                (consume, (used, 3, num_kv_heads, group, head_dim, rings, stages, tile, rows, panel_size, is_joined_apart)),
                (consume, (used, 4, num_kv_heads, group, head_dim, rings, stages, tile, rows, panel_size, is_joined_apart)),
                (consume, (used, 5, num_kv_heads, group, head_dim, rings, stages, tile, rows, panel_size, is_joined_apart)),
                (consume, (used, 6, num_kv_heads, group, head_dim, rings, stages, tile, rows, panel_size, is_joined_apart)),
                (consume, (used, 7, num_kv_heads, group, head_dim, rings, stages, tile, rows, panel_size, is_joined_apart)),
            ],
            [1, 1, 1, 1, 1, 1, 1, 1, 1],
            [registers, registers, registers, registers, registers, registers, registers, registers, registers],
        )
    else:
        gl.warp_specialize(
            [
                (produce, (fetching, 0, rings, stages, tile, tile_bytes, block_size)),
                (produce, (fetching, 1, rings, stages, tile, tile_bytes, block_size)),
                (produce, (fetching, 2, rings, stages, tile, tile_bytes, block_size)),
                (produce, (fetching, 3, rings, stages, tile, tile_bytes, block_size)),
                (consume, (used, 0, num_kv_heads, group, head_dim, rings, stages, tile, rows, panel_size, is_joined_apart)),
                (consume, (used, 1, num_kv_heads, group, head_dim, rings, stages, tile, rows, panel_size, is_joined_apart)),
                (consume, (used, 2, num_kv_heads, group, head_dim, rings, stages, tile, rows, panel_size, is_joined_apart)),
                (consume, (used, 3, num_kv_heads, group, head_dim, rings, stages, tile, rows, panel_size, is_joined_apart)),
                (consume, (used, 4, num_kv_heads, group, head_dim, rings, stages, tile, rows, panel_size, is_joined_apart)),
                (consume, (used, 5, num_kv_heads, group, head_dim, rings, stages, tile, rows, panel_size, is_joined_apart)),
                (consume, (used, 6, num_kv_heads, group, head_dim, rings, stages, tile, rows, panel_size, is_joined_apart)),
                (consume, (used, 7, num_kv_heads, group, head_dim, rings, stages, tile, rows, panel_size, is_joined_apart)),
            ],
            [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1],
            [
                registers, registers, registers, registers, registers, registers, registers, registers, registers,
                registers, registers,
            ],
        )  # fmt: skip


def stages_for(head_dim: int) -> int:
    """Tiles that a ring holds."""
    return RING_BYTES // (CONSUMERS * TILE * head_dim * 4)


def registers_for(rings: int) -> int:
    """Of a thread: a multiprocessor's 65,536, shared by all threads, which are counted by 128, in multiples of 8."""
    warps = 4 + rings - 1 + CONSUMERS
    return 65536 // (-(-warps // 4) * 128) // 8 * 8


def is_for(query: torch.Tensor, kv_cache: torch.Tensor) -> bool:
    """Whether this kernel can take a batch of decodes.

    Args:
        query: (requests, num_heads, head_dim).
        kv_cache: (2, num_blocks, block_size, num_kv_heads, head_dim).
    """
    _, num_heads, head_dim = query.shape
    block_size, num_kv_heads = kv_cache.shape[2:4]
    return (
        HAS_GLUON
        and query.is_cuda
        and gpu_of(query.device).capability == 90
        and query.dtype in (torch.bfloat16, torch.float16)
        and kv_cache.dtype == query.dtype
        and head_dim in HEAD_DIMS
        and num_kv_heads in KV_HEADS
        and num_heads // num_kv_heads <= ROWS
        and block_size in BLOCK_SIZES
        and kv_cache.is_contiguous()
    )


def plan_ranges(
    query: torch.Tensor, kv_cache: torch.Tensor, seq_lens: torch.Tensor, window: int | None = None
) -> RangesPlan:
    """Cut the contexts of a batch into ranges: once a step, since every layer with the same window has the same.

    Args:
        query, kv_cache, seq_lens, window: As of `paged_decode`.
    """
    requests, num_heads, head_dim = query.shape
    num_kv_heads, device = kv_cache.shape[3], query.device
    num_ranges = gpu_of(device).processors * (CONSUMERS // num_kv_heads)
    plan = RangesPlan(
        torch.empty((num_ranges, RANGE_COLUMNS), dtype=torch.int32, device=device),
        torch.empty((requests, 2), dtype=torch.int32, device=device),
        torch.empty((requests, num_kv_heads), dtype=torch.int32, device=device),
        torch.empty((num_ranges + requests, num_heads, head_dim), dtype=torch.float32, device=device),
        torch.empty((num_ranges + requests, num_heads), dtype=torch.float32, device=device),
        0 if window is None else window,
    )
    requests_padded = next(size for size in REQUESTS_PADDED if size >= requests)
    plan_ranges_kernel[(1,)](
        plan.ranges,
        plan.of_request,
        plan.arrived,
        seq_lens,
        plan.window,
        requests,
        plan.arrived.numel(),
        num_ranges,
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
) -> torch.Tensor:
    """Attention of one token per request, where `is_for` says so. Arguments are those of `paged_decode`, which checks
    them; the plan is of these lengths.

    What lies behind a request's tokens in its last page is multiplied with weights of 0: it must be finite, since 0
    times NaN is NaN.
    """
    requests, num_heads, head_dim = query.shape
    block_size, num_kv_heads = kv_cache.shape[2:4]
    out = torch.empty(query.shape, dtype=query.dtype, device=query.device) if out is None else out
    rings = CONSUMERS // num_kv_heads
    programs = len(plan.ranges) // rings
    registers = registers_for(rings)
    key, value = (cache.view(-1, num_kv_heads * head_dim) for cache in (kv_cache[0], kv_cache[1]))
    hopper_decode_kernel[(programs,)](
        out,
        plan.partial_out,
        plan.partial_lse,
        plan.arrived,
        plan.ranges,
        plan.of_request,
        query,
        panels_in_boxes(key, TILE, PANEL),
        panels_in_boxes(value, TILE, PANEL),
        block_table,
        seq_lens,
        scales.score_scale(head_dim),
        scales.value,
        plan.window,
        query.stride(0),
        out.stride(0),
        block_table.stride(0),
        num_kv_heads=num_kv_heads,
        group=num_heads // num_kv_heads,
        head_dim=head_dim,
        rings=rings,
        stages=stages_for(head_dim),
        tile=TILE,
        rows=ROWS,
        panel_size=PANEL,
        block_size=block_size,
        is_joined_apart=False,
        registers=registers,
        num_warps=4,
        maxnreg=registers,
        **early_launch(query.device, requests, AFTER_ITS_WAIT, MOST_EARLY),
    )
    return out
