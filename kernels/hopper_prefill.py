"""Owns attention of prompts on a Hopper GPU, where arithmetic is the limit and every idle cycle shows.

The formula is that of `paged_prefill`, and so are the places of keys and values: the pages of a request, after any
context, or a step's own tensors, for whole new prompts. What differs is who works when. A program has up to three
groups of warps, which meet only at barriers in shared memory:

                 tile of queries A                          | tile of queries B, from whatever was free
    producer     Q | K n   V n | K n-1   V n-1 | ... K 0 V 0| Q | K m   V m | ...     1 warp, asks the copy engine
    consumer 0       QK n  softmax n . QK n-1 | PV n  softmax n-1 | ... | out A | QK m ...         rows  0 to  63
    consumer 1       the same, in its own time                                                     rows 64 to 127

    the ring     stage 0 | K n   | K n-2 | ...      `ready`: the copy engine has filled it, the consumers may read
                 stage 1 | K n-1 | K n-3 | ...      `done`:  all consumers have read it, the producer may fill it

Nobody computes addresses of numbers: the copy engine (TMA) fetches a box by its coordinates. A box of a page is a run
of its tokens by 64 numbers of one head, and several of them make a tile. In a consumer the matrix unit runs ahead: the
next tile's scores are asked for before this tile's weights are multiplied with its values, and the softmax of those
scores happens while that product runs.

Keys are taken from the latest to the first. Only the tiles at the diagonal need a mask, and they come first: for a
whole prompt exactly one, since its tiles of keys are as long as its tiles of queries; for others up to two.

Tiles of queries differ in work as contexts do. Dealt out in turns, some programs would end long before others, so each
draws numbers from a counter in memory ("free order"), the longest tiles first: a tile's number is drawn when the
program begins the tile before. The producer draws it, and is ahead of its consumers by up to one tile; what they must
know of it lies in shared memory.

Upstream: FlashAttention 3, which vLLM takes here (vllm/v1/attention/backends/flash_attn.py).
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch

from minivllm.kernels.gluon_guard import (
    HAS_GLUON,
    fetch_box,
    gl,
    gluon_jit,
    gluon_jit_for_any,
    hopper,
    reinterpret,
    tensor_in_boxes,
)
from minivllm.kernels.launch import UNSCALED, LayerLaunch, gpu_of

# Rows of a consumer: what the matrix unit multiplies at once with 4 warps.
HALF = 64
CONSUMER_WARPS = 4
# Tiles of keys, and of values, under way at a time. With 32 KB each and a tile of queries: 160 KB of 227.
STAGES = 2
# Columns of a box of a page: the 128 bytes in which shared memory is swizzled.
PANEL = 64
# The accumulators of the matrix unit need most of a consumer's registers: the producer gives up its own.
PRODUCER_REGISTERS = 40
HEAD_DIMS = (64, 128)
# Of pages: a box needs 8 rows for its swizzle, and whole boxes must fill a tile, or whole tiles a page.
BLOCK_SIZES = (16, 32, 64, 128)
# Tokens of the longest prompt from which this kernel is taken, by head size; of a chunk, for any head size. Measured,
# see docs/performance.md, but for chunks of fewer than 256. With heads of 64, chunks of 512 were slower here (185
# TFLOP/s, plain 216).
LEAST_PROMPT = {64: 2048, 128: 256}
LEAST_CHUNK = 256
# What short prompts leave unused of tall tiles costs more than low ones do.
MOST_FOR_ONE_CONSUMER = 512


class Plan(NamedTuple):
    """Groups of warps that compute, tokens of a tile of keys, programs on a multiprocessor."""

    consumers: int
    keys: int
    per_processor: int

    @property
    def rows(self) -> int:
        """Of a tile of queries."""
        return self.consumers * HALF

    @property
    def entry_registers(self) -> int:
        """Registers of a thread at the start: a multiprocessor's 65,536, shared by all threads of its programs, in
        multiples of 8. Threads are counted by 128: one such group a consumer, and one for the producer, which needs a
        single warp."""
        return 65536 // (128 * (self.consumers + 1) * self.per_processor) // 8 * 8

    @property
    def consumer_registers(self) -> int:
        """What a consumer's thread has when the producer has given up its own."""
        all_groups = self.entry_registers * (self.consumers + 1)
        return (all_groups - PRODUCER_REGISTERS) // self.consumers // 8 * 8


TALL, LOW = Plan(consumers=2, keys=128, per_processor=1), Plan(consumers=1, keys=64, per_processor=2)


@gluon_jit
def find_request(block, query_start_loc_ptr, num_requests, rows: gl.constexpr):
    """Which request a block of queries belongs to: see `paged_prefill.request_of_block`."""
    lower = block * 0
    upper = num_requests
    while upper - lower > 1:
        middle = (lower + upper) // 2
        if gl.load(query_start_loc_ptr + middle) // rows + middle <= block:
            lower = middle
        else:
            upper = middle
    return lower


@gluon_jit
def tell(work, place: gl.constexpr, value):
    """The producer leaves a number for the consumers."""
    of_one: gl.constexpr = gl.BlockedLayout([1], [32], [1], [0])
    work.index(place).store(gl.full([1], value, gl.int32, of_one))


@gluon_jit
def hear(work, place: gl.constexpr):
    """A consumer reads it."""
    of_one: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    return gl.sum(work.index(place).load(of_one), 0)


@gluon_jit
def find_pages(
    table_row_ptr, first_token, num_pages, keys: gl.constexpr, page_rows: gl.constexpr, block_size: gl.constexpr
):
    """Which row of the cache each box of a tile of keys begins with; behind the request's last
    page it is a row of block 0."""
    rows = ()
    for box in gl.static_range(keys // page_rows):
        token = first_token + box * page_rows
        page = token // block_size
        page_id = gl.load(table_row_ptr + page, mask=page < num_pages, other=0)
        rows = rows + (page_id * block_size + token % block_size,)  # type: ignore[assignment]  # noqa: RUF005
    return rows


@gluon_jit
def fetch_tile(
    desc,
    tiles,
    ready,
    stage,
    row,
    column,
    page_starts,
    keys: gl.constexpr,
    head_dim: gl.constexpr,
    page_rows: gl.constexpr,
    is_paged: gl.constexpr,
    stages: gl.constexpr,
    panel_size: gl.constexpr,
):
    """Ask for a tile of keys, or of values: one box of the step's own, or several boxes of pages.

    In shared memory a tile is one panel of 64 columns after the other, and a page a run of rows of each:

        panel 0   page 0 (rows  0..15)  page 1 (rows 16..31)  ...       boxes 0, 1, ...
        panel 1   page 0                page 1                ...       boxes pages, pages + 1, ...
    """
    # The barrier's phase ends when this many bytes have come.
    hopper.mbarrier.expect(ready.index(stage), keys * head_dim * 2)
    if is_paged:
        pages: gl.constexpr = keys // page_rows
        panels: gl.constexpr = head_dim // panel_size
        boxes = reinterpret(tiles, tiles.dtype, [stages * panels * pages, page_rows, panel_size], desc.layout)
        for page in gl.static_range(pages):
            for panel in gl.static_range(panels):
                box = boxes.index(stage * (panels * pages) + panel * pages + page)
                fetch_box(desc, [page_starts[page], column + panel * panel_size], ready.index(stage), box)
    else:
        fetch_box(desc, [row, column], ready.index(stage), tiles.index(stage))


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
    work,
    counters_ptr,
    block_table_ptr,
    query_start_loc_ptr,
    seq_lens_ptr,
    table_stride,
    num_requests,
    num_heads,
    num_blocks,
    group: gl.constexpr,
    consumers: gl.constexpr,
    half: gl.constexpr,
    keys: gl.constexpr,
    head_dim: gl.constexpr,
    stages: gl.constexpr,
    page_rows: gl.constexpr,
    panel_size: gl.constexpr,
    block_size: gl.constexpr,
    is_paged: gl.constexpr,
):
    """Take tiles of queries until none is left; fetch what consumers need for them, as far ahead as there is room."""
    rows: gl.constexpr = half * consumers
    programs = gl.num_programs(0)
    # "* 0" makes a zero that lives on the GPU: a loop cannot carry Python's.
    fetched = num_blocks * 0  # tiles of keys so far
    finished = num_blocks * 0  # tiles of queries so far
    index = gl.program_id(0)
    while index < num_blocks * num_heads:
        # Asked for now, needed when this tile is done.
        following = gl.atomic_add(counters_ptr, 1) + programs
        head = index % num_heads
        block = num_blocks - 1 - index // num_heads  # late blocks see the most tokens, so they come first
        request = find_request(block, query_start_loc_ptr, num_requests, rows)
        start = gl.load(query_start_loc_ptr + request)
        num_queries = gl.load(query_start_loc_ptr + request + 1) - start
        first_query = (block - start // rows - request) * rows
        if (first_query >= 0) & (first_query < num_queries):  # a block may be nobody's
            seq_len = num_queries
            if is_paged:
                seq_len = gl.load(seq_lens_ptr + request)
            position = seq_len - num_queries + first_query
            key_tile = (gl.minimum(position + rows, seq_len) + keys - 1) // keys
            num_pages = (seq_len + block_size - 1) // block_size
            table_row_ptr = block_table_ptr + request.to(gl.int64) * table_stride
            hopper.mbarrier.wait(query_done, (finished & 1) ^ 1)
            tell(work, 0, head)
            tell(work, 1, start + first_query)
            tell(work, 2, num_queries - first_query)
            tell(work, 3, position)
            tell(work, 4, key_tile)
            hopper.mbarrier.expect(query_ready, rows * head_dim * 2)
            for part in gl.static_range(consumers):
                place = [start + first_query + part * half, head * head_dim]
                fetch_box(query_desc, place, query_ready, query_tiles.index(part))
            column = head // group * head_dim
            while key_tile > 0:
                key_tile -= 1
                page_starts = ()
                if is_paged:
                    page_starts = find_pages(table_row_ptr, key_tile * keys, num_pages, keys, page_rows, block_size)
                row = start + key_tile * keys
                stage = fetched % stages
                # A barrier counts phases, and a wait names the parity of one: it passes when that phase has ended.
                # Each round of the ring is a phase; ^ 1 names the one before, so that the first round, whose buffers
                # are empty, waits for nobody.
                phase = (fetched // stages & 1) ^ 1
                hopper.mbarrier.wait(key_done.index(stage), phase)
                fetch_tile(
                    key_desc, key_tiles, key_ready, stage, row, column, page_starts,
                    keys, head_dim, page_rows, is_paged, stages, panel_size,
                )  # fmt: skip
                hopper.mbarrier.wait(value_done.index(stage), phase)
                fetch_tile(
                    value_desc, value_tiles, value_ready, stage, row, column, page_starts,
                    keys, head_dim, page_rows, is_paged, stages, panel_size,
                )  # fmt: skip
                fetched += 1
            finished += 1
        index = following
    # No tile of keys: the consumers end.
    hopper.mbarrier.wait(query_done, (finished & 1) ^ 1)
    tell(work, 4, num_blocks * 0)
    hopper.mbarrier.arrive(query_ready, count=1)
    # Whoever ends last has seen everybody's last number, and leaves zeros for the next launch.
    if gl.atomic_add(counters_ptr + 1, 1) == programs - 1:
        gl.atomic_xchg(counters_ptr, 0)
        gl.atomic_xchg(counters_ptr + 1, 0)


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
    work,
    score_scale,
    num_heads,
    out_token_stride,
    part: gl.constexpr,
    half: gl.constexpr,
    keys: gl.constexpr,
    head_dim: gl.constexpr,
    stages: gl.constexpr,
    is_paged: gl.constexpr,
):
    """Attention of one half of each tile of queries."""
    # How the matrix unit hands out a product's numbers: 4 warps, 16 rows each.
    of_scores: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, keys, 16])
    of_out: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, head_dim, 16])
    of_weights: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=of_out, k_width=2)
    row_of_scores: gl.constexpr = gl.SliceLayout(1, of_scores)
    row_of_out: gl.constexpr = gl.SliceLayout(1, of_out)
    # How memory wants them: 16 bytes a thread, rows whole.
    of_store: gl.constexpr = gl.BlockedLayout([1, 8], [256 // head_dim, head_dim // 8], [4, 1], [1, 0])
    dtype: gl.constexpr = out_ptr.dtype.element_ty
    lowest: gl.constexpr = -1.0e30  # and not -inf: a row of this half may see nothing of the first tile

    used = num_heads * 0  # tiles of keys so far
    finished = num_heads * 0  # tiles of queries so far
    query = query_tiles.index(part)
    no_scores = gl.zeros([half, keys], gl.float32, of_scores)
    row = gl.arange(0, half, layout=row_of_scores) + part * half
    column = gl.arange(0, keys, layout=gl.SliceLayout(0, of_scores))
    hopper.mbarrier.wait(query_ready, finished & 1)
    num_key_tiles = hear(work, 4)
    while num_key_tiles > 0:
        head = hear(work, 0)
        first_token = hear(work, 1)  # in the flat batch
        queries_left = hear(work, 2)  # of the request, from there on
        position = hear(work, 3) + row
        first_masked = (hear(work, 3) + part * half + 1) // keys  # tiles before it are seen whole
        key_tile = num_key_tiles - 1

        stage = used % stages
        hopper.mbarrier.wait(key_ready.index(stage), used // stages & 1)
        key = key_tiles.index(stage).permute((1, 0))  # (head_dim, keys)
        first_scores = hopper.warpgroup_mma(query, key, no_scores, use_acc=False, is_async=True)
        scores = hopper.warpgroup_mma_wait(0, deps=[first_scores])
        hopper.mbarrier.arrive(key_done.index(stage), count=1)
        is_seen = gl.expand_dims(key_tile * keys + column, 0) <= gl.expand_dims(position, 1)
        scores = gl.where(is_seen, scores * score_scale, float("-inf"))
        highest = gl.maximum(gl.max(scores, 1), lowest)
        weights = gl.exp2(scores - gl.expand_dims(highest, 1))
        total = gl.sum(weights, 1)
        weights_16 = gl.convert_layout(weights.to(dtype), of_weights)
        acc = gl.zeros([half, head_dim], gl.float32, of_out)
        # Carried from tile to tile: weights_16, whose product with values is still to come. highest and total include
        # that tile, acc does not yet.
        while key_tile > 0:
            key_tile -= 1
            value_stage = used % stages
            value_phase = used // stages & 1
            used += 1
            stage = used % stages
            hopper.mbarrier.wait(key_ready.index(stage), used // stages & 1)
            key = key_tiles.index(stage).permute((1, 0))
            next_scores = hopper.warpgroup_mma(query, key, no_scores, use_acc=False, is_async=True)
            hopper.mbarrier.wait(value_ready.index(value_stage), value_phase)
            next_acc = hopper.warpgroup_mma(weights_16, value_tiles.index(value_stage), acc, is_async=True)
            # The scores are there; the one product behind them, with values, may go on.
            scores = hopper.warpgroup_mma_wait(1, deps=[next_scores])
            hopper.mbarrier.arrive(key_done.index(stage), count=1)
            # A whole prompt's diagonal lies in its last tile of keys, which came first: for those the loop is compiled
            # without a mask.
            if is_paged:  # noqa: SIM102
                if key_tile >= first_masked:
                    is_seen = gl.expand_dims(key_tile * keys + column, 0) <= gl.expand_dims(position, 1)
                    scores = gl.where(is_seen, scores, float("-inf"))
            # Scores of the first tile were scaled above; from here on the scale is in the exponent, one multiply-add.
            new_highest = gl.maximum(highest, gl.max(scores, 1) * score_scale)
            weights = gl.exp2(scores * score_scale - gl.expand_dims(new_highest, 1))
            shrink = gl.exp2(highest - new_highest)
            total = total * shrink + gl.sum(weights, 1)
            highest = new_highest
            acc = hopper.warpgroup_mma_wait(0, deps=[next_acc])
            hopper.mbarrier.arrive(value_done.index(value_stage), count=1)
            # The product before was relative to the old highest, so all of acc shrinks.
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
        result = gl.convert_layout(acc.to(dtype), of_store)
        query_of_row = part * half + gl.arange(0, half, layout=gl.SliceLayout(1, of_store))
        dim = gl.arange(0, head_dim, layout=gl.SliceLayout(0, of_store))
        token = gl.expand_dims((first_token + query_of_row).to(gl.int64) * out_token_stride, 1)
        cell = token + gl.expand_dims(head * head_dim + dim, 0)
        gl.store(out_ptr + cell, result, mask=gl.expand_dims(query_of_row < queries_left, 1))

        hopper.mbarrier.wait(query_ready, finished & 1)
        num_key_tiles = hear(work, 4)


@gluon_jit_for_any(
    "block_table_ptr", "query_start_loc_ptr", "seq_lens_ptr", "table_stride", "num_requests", "num_blocks"
)
def hopper_prefill_kernel(
    query_desc,
    key_desc,
    value_desc,
    out_ptr,
    counters_ptr,
    block_table_ptr,
    query_start_loc_ptr,
    seq_lens_ptr,
    score_scale,
    table_stride,
    num_requests,
    num_heads,
    num_blocks,
    out_token_stride,
    group: gl.constexpr,
    consumers: gl.constexpr,
    half: gl.constexpr,
    keys: gl.constexpr,
    head_dim: gl.constexpr,
    stages: gl.constexpr,
    page_rows: gl.constexpr,
    panel_size: gl.constexpr,
    block_size: gl.constexpr,
    is_paged: gl.constexpr,
    consumer_registers: gl.constexpr,
    producer_registers: gl.constexpr,
):
    """Set up buffers and barriers, and set the groups of warps to work."""
    dtype: gl.constexpr = query_desc.dtype
    of_tile: gl.constexpr = gl.NVMMASharedLayout.get_default_for([keys, head_dim], dtype)
    query_tiles = gl.allocate_shared_memory(dtype, [consumers, half, head_dim], query_desc.layout)
    key_tiles = gl.allocate_shared_memory(dtype, [stages, keys, head_dim], of_tile)
    value_tiles = gl.allocate_shared_memory(dtype, [stages, keys, head_dim], of_tile)
    # What the consumers must know of a tile of queries: 0 its head, 1 its first token in the flat batch, 2 queries of
    # the request from there on, 3 position of the first query, 4 tiles of keys (0: no tile is left). Valid until they
    # arrive at query_done.
    of_work: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    work = gl.allocate_shared_memory(gl.int32, [5, 1], of_work)
    # `ready`: the copy engine has filled a buffer. `done`: all consumers have read it.
    of_barrier: gl.constexpr = hopper.mbarrier.MBarrierLayout()
    query_ready = gl.allocate_shared_memory(gl.int64, [1], of_barrier)
    query_done = gl.allocate_shared_memory(gl.int64, [1], of_barrier)
    key_ready = gl.allocate_shared_memory(gl.int64, [stages, 1], of_barrier)
    key_done = gl.allocate_shared_memory(gl.int64, [stages, 1], of_barrier)
    value_ready = gl.allocate_shared_memory(gl.int64, [stages, 1], of_barrier)
    value_done = gl.allocate_shared_memory(gl.int64, [stages, 1], of_barrier)
    hopper.mbarrier.init(query_ready, count=1)
    hopper.mbarrier.init(query_done, count=consumers)
    for stage in gl.static_range(stages):
        hopper.mbarrier.init(key_ready.index(stage), count=1)
        hopper.mbarrier.init(key_done.index(stage), count=consumers)
        hopper.mbarrier.init(value_ready.index(stage), count=1)
        hopper.mbarrier.init(value_done.index(stage), count=consumers)
    hopper.fence_async_shared()

    # Behind the groups: warps and registers of all but the first, which is the 4 warps that are there already.
    if consumers == 2:
        gl.warp_specialize(
            [
                (
                    consume,
                    (
                        out_ptr, query_tiles, key_tiles, value_tiles, query_ready, query_done, key_ready, key_done,
                        value_ready, value_done, work, score_scale, num_heads, out_token_stride, 0, half, keys,
                        head_dim, stages, is_paged,
                    ),
                ),
                (
                    consume,
                    (
                        out_ptr, query_tiles, key_tiles, value_tiles, query_ready, query_done, key_ready, key_done,
                        value_ready, value_done, work, score_scale, num_heads, out_token_stride, 1, half, keys,
                        head_dim, stages, is_paged,
                    ),
                ),
                (
                    produce,
                    (
                        query_desc, key_desc, value_desc, query_tiles, key_tiles, value_tiles, query_ready, query_done,
                        key_ready, key_done, value_ready, value_done, work, counters_ptr, block_table_ptr,
                        query_start_loc_ptr, seq_lens_ptr, table_stride, num_requests, num_heads, num_blocks, group,
                        consumers, half, keys, head_dim, stages, page_rows, panel_size, block_size, is_paged,
                    ),
                ),
            ],
            [4, 1],
            [consumer_registers, producer_registers],
        )  # fmt: skip
    else:
        gl.warp_specialize(
            [
                (
                    consume,
                    (
                        out_ptr, query_tiles, key_tiles, value_tiles, query_ready, query_done, key_ready, key_done,
                        value_ready, value_done, work, score_scale, num_heads, out_token_stride, 0, half, keys,
                        head_dim, stages, is_paged,
                    ),
                ),
                (
                    produce,
                    (
                        query_desc, key_desc, value_desc, query_tiles, key_tiles, value_tiles, query_ready, query_done,
                        key_ready, key_done, value_ready, value_done, work, counters_ptr, block_table_ptr,
                        query_start_loc_ptr, seq_lens_ptr, table_stride, num_requests, num_heads, num_blocks, group,
                        consumers, half, keys, head_dim, stages, page_rows, panel_size, block_size, is_paged,
                    ),
                ),
            ],
            [1],
            [producer_registers],
        )  # fmt: skip


def is_faster(
    head_dim: int,
    num_tokens: int,
    num_heads: int,
    num_requests: int,
    max_query_len: int,
    is_fresh: bool,
    processors: int,
) -> bool:
    """Whether this kernel is the faster one for a part of a step.

    Args:
        head_dim: Head size.
        num_tokens: Of the step.
        num_heads: Query heads.
        num_requests: Of the part.
        max_query_len: The most tokens of one of them.
        is_fresh: They are whole new prompts.
        processors: Of the GPU.
    """
    is_long = max_query_len >= (LEAST_PROMPT[head_dim] if is_fresh else LEAST_CHUNK)
    # Requests of a few tokens would each take a tile that is hardly filled.
    fills_tiles = num_tokens >= num_requests * TALL.rows
    # Measured: 128 tiles on 132 multiprocessors take as long as 256. So there must be more tiles than multiprocessors.
    fills_gpu = num_tokens * num_heads > processors * TALL.rows
    return is_long and fills_tiles and fills_gpu


def is_for(
    query: torch.Tensor,
    kv_cache: torch.Tensor,
    num_requests: int,
    max_query_len: int,
    window: int | None,
    is_fresh: bool,
) -> bool:
    """Whether this kernel takes a part of a step, and is the faster one. All of it is known on the host.

    Args:
        query: (tokens, num_heads, head_dim) of the step.
        kv_cache: (2, num_blocks, block_size, num_kv_heads, head_dim).
        num_requests: Of the part.
        max_query_len: Tokens of the longest prompt or chunk, or more.
        window: See `paged_prefill`; only that kernel knows windows.
        is_fresh: They are whole new prompts, read from the step's own tensors.
    """
    (tokens, num_heads, head_dim), gpu = query.shape, gpu_of(query.device)
    return (
        HAS_GLUON
        and gpu.capability == 90
        and not query.is_cpu
        and query.dtype in (torch.bfloat16, torch.float16)
        and head_dim in HEAD_DIMS
        and window is None
        and (is_fresh or can_be_in_boxes(kv_cache, query.dtype))
        and is_faster(head_dim, tokens, num_heads, num_requests, max_query_len, is_fresh, gpu.processors)
    )


def can_be_in_boxes(kv_cache: torch.Tensor, dtype: torch.dtype) -> bool:
    """Whether the copy engine can bring pages to where the matrix unit reads them: nobody converts numbers between."""
    return kv_cache.dtype == dtype and kv_cache.shape[2] in BLOCK_SIZES and kv_cache.is_contiguous()


@cache
def _counters(device: torch.device) -> torch.Tensor:
    """Tiles that were taken, and programs that have ended: zeros, which every launch leaves as it finds them.

    Launches that share them must not overlap: one stream. A step runs once before it is recorded, so they are never
    made while a graph is.
    """
    return torch.zeros(2, dtype=torch.int32, device=device)


def hopper_prefill(
    query: torch.Tensor,
    kv_cache: torch.Tensor,
    block_table: torch.Tensor,
    query_start_loc: torch.Tensor,
    seq_lens: torch.Tensor,
    max_query_len: int,
    fresh: tuple[torch.Tensor, torch.Tensor] | None = None,
    out: torch.Tensor | None = None,
    plan: Plan | None = None,
    launches: list[LayerLaunch] | None = None,
) -> torch.Tensor:
    """Causal attention of any number of tokens per request, where `is_for` says so; `paged_prefill_reference` says what
    it computes. Arguments are not checked: `is_for` is the check.

    Args:
        query: (tokens, num_heads, head_dim) bfloat16 or float16, rotated; heads contiguous, any multiple of 16 bytes
            between tokens.
        kv_cache: (2, num_blocks, block_size, num_kv_heads, head_dim) of the query's dtype, contiguous.
        block_table: (requests, max blocks) int32.
        query_start_loc: (requests + 1,) int32, where each request's tokens begin in the flat batch; the first need not
            be 0.
        seq_lens: (requests,) int32, tokens in the cache, this step's included.
        max_query_len: The most tokens of a request in this step, or more.
        fresh: Keys and values of this step, (tokens, num_kv_heads, head_dim) each, strides as of query. They are read
            instead of the cache: right only if every request is whole.
        out: Written if given. Tokens before query_start_loc[0] and from query_start_loc[-1] on are left as they are.
        plan: Sizes of tiles; None chooses.
        launches: If given, what was launched is added to it: another layer of the step may repeat it.

    Returns:
        (tokens, num_heads, head_dim)

    What lies right behind a request's tokens, in its last page, in block 0, or in fresh tensors, is multiplied with
    weights of 0: it must be finite, since 0 times NaN is NaN.
    """
    (tokens, num_heads, head_dim), num_kv_heads = query.shape, kv_cache.shape[3]
    out = torch.empty(query.shape, dtype=query.dtype, device=query.device) if out is None else out
    requests = len(query_start_loc) - 1
    if requests == 0 or tokens == 0:
        return out
    if plan is None:
        plan = LOW if fresh is not None and max_query_len <= MOST_FOR_ONE_CONSUMER else TALL
    block_size = kv_cache.shape[2]
    if fresh is None:
        page_rows = min(block_size, plan.keys)
        rows, columns, keys, values = page_rows, PANEL, "key_pages", "value_pages"
        key, value = (cache.flatten(0, 1) for cache in (kv_cache[0], kv_cache[1]))
    else:
        page_rows = block_size = plan.keys  # not used
        rows, columns, keys, values = plan.keys, head_dim, "key", "value"
        key, value = fresh
    num_blocks = tokens // plan.rows + requests  # of queries, not of the cache; some are nobody's, see request_of_block
    programs = min(gpu_of(query.device).processors * plan.per_processor, num_blocks * num_heads)
    launch = LayerLaunch(
        hopper_prefill_kernel,
        (programs,),
        {"query_desc": "query", "key_desc": keys, "value_desc": values, "out_ptr": "out"},
        tensor_in_boxes(query.flatten(1), HALF, head_dim),
        tensor_in_boxes(key.flatten(1), rows, columns),
        tensor_in_boxes(value.flatten(1), rows, columns),
        out,
        _counters(query.device),
        block_table,
        query_start_loc,
        seq_lens,
        UNSCALED.score_scale(head_dim),
        block_table.stride(0),
        requests,
        num_heads,
        num_blocks,
        out.stride(0),
        group=num_heads // num_kv_heads,
        consumers=plan.consumers,
        half=HALF,
        keys=plan.keys,
        head_dim=head_dim,
        stages=STAGES,
        page_rows=page_rows,
        panel_size=PANEL,
        block_size=block_size,
        is_paged=fresh is None,
        consumer_registers=plan.consumer_registers,
        producer_registers=PRODUCER_REGISTERS,
        num_warps=CONSUMER_WARPS,
        maxnreg=plan.entry_registers,
    )
    if launches is not None:
        launches.append(launch)
    return out
