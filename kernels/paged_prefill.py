"""Owns attention of many new tokens: whole prompts, chunks of prompts, and batches that mix them with decodes.

Query i of a request that had `context` tokens before this step stands at position context + i and sees everything up
to there, or its last `window` tokens:

    scores[i, t] = scale * query[i] . key(t)       for t <= context + i, and t > context + i - window
    out[i] = sum_t softmax(scores[i])[t] * value(t)

The requests' tokens lie one after the other in the flat batch, from query_start_loc[r] to query_start_loc[r + 1]. Keys
and values of all tokens, new ones included, are read from the pages. Requests that are whole new prompts (context 0)
can have a launch of their own, which reads them from the step's contiguous tensors.

Here arithmetic is the limit, not memory: a tile of keys serves every row of a tile of queries, so query tiles are tall.
The scores never exist as a whole. They are made a tile at a time, and the softmax is corrected as higher ones appear
(`softmax_step`).

Upstream: vllm/v1/attention/ops/triton_unified_attention.py::unified_attention.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from minivllm.kernels.launch import UNSCALED, Gpu, KVScales, LayerLaunch, check_paged, gpu_of, padded_size
from minivllm.kernels.paged import softmax_step
from minivllm.kernels.triton_guard import TensorDescriptor, jit, jit_for_any, next_power_of_2, tl

# Rows of a query tile. 64 is what Hopper's matrix unit multiplies at once with 4 warps, and leaves room for two
# programs on a multiprocessor; 16, the least that any takes, serves batches whose requests have few tokens each.
ROWS, FEW_ROWS = 64, 16
# One tile of keys, in bytes: 64 tokens x 128 numbers x 2 bytes. Three of keys, three of values and the queries: 112 KB
# of shared memory and a few barriers. Two programs, with 1 KB that each costs, just fill a Hopper multiprocessor's 228
# KB.
TILE_BYTES = 16 * 1024
NUM_WARPS = 4
LEAST_TOKENS_IN_BOXES = 1024


def paged_prefill_reference(
    query: torch.Tensor,
    kv_cache: torch.Tensor,
    block_table: torch.Tensor,
    query_start_loc: torch.Tensor,
    seq_lens: torch.Tensor,
    window: int | None = None,
    scales: KVScales = UNSCALED,
) -> torch.Tensor:
    """What the kernel does, in plain PyTorch. Arguments as in `paged_prefill`; tokens of no request put out 0."""
    block_size, group = kv_cache.shape[2], query.shape[1] // kv_cache.shape[3]
    out = torch.zeros_like(query)
    for request, length in enumerate(seq_lens.tolist()):
        start, end = query_start_loc[request : request + 2].tolist()
        token = torch.arange(length, device=query.device)
        page_of_token, offset_in_page = block_table[request, token // block_size].long(), token % block_size
        key = kv_cache[0, page_of_token, offset_in_page].to(query.dtype) * scales.key  # (tokens, kv_heads, head_dim)
        value = kv_cache[1, page_of_token, offset_in_page].to(query.dtype) * scales.value
        key, value = key.repeat_interleave(group, dim=1), value.repeat_interleave(group, dim=1)
        position = torch.arange(length - (end - start), length, device=query.device)[:, None]  # (queries, 1)
        is_seen = token[None, :] <= position
        if window is not None:
            is_seen &= token[None, :] > position - window
        scores = torch.einsum("qhd,thd->hqt", query[start:end], key) * query.shape[-1] ** -0.5
        weights = scores.masked_fill(~is_seen, float("-inf")).softmax(dim=-1)
        out[start:end] = torch.einsum("hqt,thd->qhd", weights, value)
    return out


@jit
def request_of_block(query_start_loc_ptr, block, num_requests, block_queries: tl.constexpr):
    """Which request a block of queries belongs to, and the first block of that request.

    Request r is given the blocks from query_start_loc[r] // block_queries + r on: enough for its queries, one of them
    unused now and then, and known without a sum over the requests before it. Found by halving.
    """
    lower, upper = block * 0, num_requests
    while upper - lower > 1:
        middle = (lower + upper) // 2
        if tl.load(query_start_loc_ptr + middle) // block_queries + middle <= block:
            lower = middle
        else:
            upper = middle
    return lower, tl.load(query_start_loc_ptr + lower) // block_queries + lower


@jit
def load_tile_ids(table_row_ptr, tile_start, lane, end, block_size: tl.constexpr, is_even: tl.constexpr):
    """Which page holds each token of a tile; past `end` nothing is read, and it is page 0. With `is_even` tiles begin
    where pages do: then lane // block_size, the page's number within the tile, is the same for all tiles, and is worked
    out before the loop."""
    page = (tile_start + lane) // block_size
    if is_even:
        page = tile_start // block_size + lane // block_size
    return tl.load(table_row_ptr + page, mask=tile_start + lane < end, other=0)


# Where the tables of a mixed step begin depends on how many decodes stand in front.
@jit_for_any("num_requests", "table_stride", "block_table_ptr", "query_start_loc_ptr", "seq_lens_ptr")
def paged_prefill_kernel(
    out_ptr,
    query_ptr,
    key_ptr,
    value_ptr,
    key_boxes,
    value_boxes,
    block_table_ptr,
    query_start_loc_ptr,
    seq_lens_ptr,
    score_scale,
    value_scale,
    num_requests,
    query_token_stride,
    out_token_stride,
    page_stride,
    token_stride,
    table_stride,
    window,
    block_size: tl.constexpr,
    group: tl.constexpr,
    rows: tl.constexpr,
    head_dim: tl.constexpr,
    dim_padded: tl.constexpr,
    tile: tl.constexpr,
    has_window: tl.constexpr,
    is_fresh: tl.constexpr,
    is_boxed: tl.constexpr,
):
    """One block of queries of one request, for all query heads of one KV head.

    A tile's rows are (query, head) pairs, here 2 query heads a KV head, 4 queries a block, and 4 tokens a tile of keys:

                 row 0  q0 h0     token  0 1 2 3 | 4 5 6 7 | 8          context = 5: q0 stands at position 5
                 row 1  q0 h1            x x x x | x x . . | .
                 row 2  q1 h0            x x x x | x x x . | .
                 row 3  q1 h1            x x x x | x x x . | .
                 ...                     whole     the edge: masked     from token 9 on nothing is loaded
                 row 7  q3 h1            x x x x | x x x x | x

    Tiles that every query sees need no mask: they are the first loop. The second takes the rest.

    A number's place is the sum of its page's, its token's within the page, and its own within the token. Of these only
    the first changes from tile to tile where whole pages fill one: the others are worked out once. With `is_boxed` the
    copy engine brings whole tiles, and works all of it out from key_boxes and value_boxes (`TensorDescriptor`). It has
    no masks, so tiles at the edge are loaded as ever: what stands behind a request may be NaN, which times 0 is NaN.
    """
    kv_head = tl.program_id(0)
    # Late blocks see the most tokens, so they start first, and short ones fill the end.
    block = tl.num_programs(1) - 1 - tl.program_id(1)
    block_queries: tl.constexpr = rows // group
    request, first_block = request_of_block(query_start_loc_ptr, block, num_requests, block_queries)
    query_start = tl.load(query_start_loc_ptr + request)
    num_queries = tl.load(query_start_loc_ptr + request + 1) - query_start
    first_query = (block - first_block) * block_queries
    # Negative where the table begins behind other requests' tokens: blocks up to there belong to nobody.
    if (first_query < 0) | (first_query >= num_queries):
        return
    seq_len = tl.load(seq_lens_ptr + request)
    context = seq_len - num_queries

    row = tl.arange(0, rows)
    dim = tl.arange(0, dim_padded)
    is_dim = dim < head_dim
    query_of_row = first_query + row // group
    is_row = (query_of_row < num_queries) & (row < block_queries * group)
    is_cell = is_row[:, None] & is_dim[None, :]  # (rows, dim_padded)
    token_of_row = (query_start + query_of_row).to(tl.int64)  # in the flat batch
    query_cell = ((kv_head * group + row % group) * head_dim)[:, None] + dim[None, :]
    query = tl.load(query_ptr + token_of_row[:, None] * query_token_stride + query_cell, mask=is_cell, other=0.0)
    position = context + query_of_row  # (rows,)

    # Every row sees all of [start, whole_end), some rows see tokens of [whole_end, end). With a window every tile is
    # masked: whole_end is start.
    start = 0
    if has_window:
        start = tl.maximum(context + first_query + 1 - window, 0) // tile * tile
    end = tl.minimum(context + first_query + block_queries, seq_len)
    whole_end = start
    if not has_window:
        whole_end = (context + first_query + 1) // tile * tile

    highest = tl.full([rows], float("-inf"), tl.float32)
    total = tl.zeros([rows], tl.float32)
    acc = tl.zeros([rows, dim_padded], tl.float32)
    table_row = block_table_ptr + request.to(tl.int64) * table_stride
    lane = tl.arange(0, tile)
    head_cell = kv_head * head_dim + dim
    # Whole pages fill a tile, or there are no pages: then all but the tile's beginning is the same for every tile.
    is_even: tl.constexpr = is_fresh or tile % block_size == 0
    offset_in_page = lane if is_fresh else lane % block_size  # (tile,)
    own_cell = head_cell[None, :]  # (1, dim): the loop adds the token's offset in its page
    if is_even:
        own_cell = (offset_in_page * token_stride)[:, None] + head_cell[None, :]  # (tile, dim)
    first_cell = query_start.to(tl.int64) * token_stride  # of a step's own tokens
    page_of_token = lane  # never read: a step's own tensors have no pages
    for edge in tl.static_range(2):  # first the tiles that need no mask, then those at the edge: two loops, one text
        if not is_fresh:
            # Page ids are loaded one tile ahead and carried by the loop, see `paged_decode_kernel`.
            page_of_token = load_tile_ids(table_row, whole_end if edge else start, lane, end, block_size, is_even)
        for tile_start in range(whole_end if edge else start, end if edge else whole_end, tile):
            token = tile_start + lane
            if is_boxed and edge == 0:
                key = key_boxes.load([query_start + tile_start, kv_head * head_dim])
                value = value_boxes.load([query_start + tile_start, kv_head * head_dim])
            else:
                if is_fresh:
                    tile_cell = first_cell + tl.cast(tile_start, tl.int64) * token_stride
                    key_cells = key_ptr + tile_cell + own_cell  # (tile, dim)
                    value_cells = value_ptr + tile_cell + own_cell
                else:
                    token_cell = page_of_token.to(tl.int64) * page_stride  # (tile,)
                    if not is_even:
                        token_cell += token % block_size * token_stride
                    key_cells = key_ptr + (token_cell[:, None] + own_cell)
                    value_cells = value_ptr + (token_cell[:, None] + own_cell)
                    page_of_token = load_tile_ids(table_row, tile_start + tile, lane, end, block_size, is_even)
                if edge == 1:
                    mask = (token < end)[:, None] & is_dim[None, :]
                    key = tl.load(key_cells, mask=mask, other=0.0)
                    value = tl.load(value_cells, mask=mask, other=0.0)
                elif dim_padded != head_dim:
                    key = tl.load(key_cells, mask=is_dim[None, :], other=0.0)
                    value = tl.load(value_cells, mask=is_dim[None, :], other=0.0)
                else:
                    key = tl.load(key_cells)
                    value = tl.load(value_cells)
            scores = tl.dot(query, tl.trans(key.to(query.dtype)), input_precision="ieee") * score_scale  # (rows, tile)
            if edge == 1:
                is_seen = token[None, :] <= position[:, None]
                if has_window:
                    is_seen &= token[None, :] > position[:, None] - window
                scores = tl.where(is_seen, scores, float("-inf"))
            weights, highest, total, acc = softmax_step(scores, highest, total, acc)
            acc = tl.dot(weights.to(query.dtype), value.to(query.dtype), acc, input_precision="ieee")

    acc = acc * (value_scale / tl.where(total == 0.0, 1.0, total))[:, None]
    out_cell = token_of_row[:, None] * out_token_stride + query_cell
    tl.store(out_ptr + out_cell, acc.to(out_ptr.dtype.element_ty), mask=is_cell)


class Tiling(NamedTuple):
    """Rows of a query tile, tokens of a key tile, warps of a program, buffers of the loop."""

    rows: int
    tile: int
    warps: int
    stages: int


def prefill_tiling(gpu: Gpu, group: int, max_query_len: int, head_dim: int, query_itemsize: int) -> Tiling:
    """Tiles as large as registers allow: acc alone, rows x head_dim, is 64 of a thread's 255 in the usual case.

    Args:
        gpu: Where it runs.
        group: Query heads of a KV head; all of one query stand in one tile.
        max_query_len: The most tokens of a request.
        head_dim: Head size.
        query_itemsize: 4-byte numbers are not for the matrix unit, and are multiplied in registers: small tiles.
    """
    dim = padded_size(head_dim)
    rows = max(FEW_ROWS, next_power_of_2(group))
    if query_itemsize == 4:
        return Tiling(rows, max(16, min(32, TILE_BYTES // (dim * 4))), 8, 2)
    tile = max(16, min(64, TILE_BYTES // (dim * 2)))
    if gpu.capability < 90 and dim == 128:
        tile //= 2  # before Hopper, the weights of a tile must pass through registers once more
    warps = 8 if dim > 128 else NUM_WARPS
    if group * max_query_len > rows:
        rows = max(rows, ROWS * 2 if dim > 128 and gpu.capability >= 90 else ROWS)
    return Tiling(rows, tile, warps, gpu.stages)


def are_boxes_worth_it(gpu: Gpu, num_tokens: int, head_dim: int, query_itemsize: int) -> bool:
    """Whether the copy engine should fetch tiles of a step's own keys and values.

    On an H200 4 prompts of 4,096 tokens went from 377 to 503 TFLOP/s with heads of 128; heads of 64 gained nothing. To
    tell the engine of two tensors takes the host longer than a small step takes the device. A box's sides are powers of
    two.
    """
    return (
        gpu.capability >= 90 and query_itemsize == 2 and head_dim in (128, 256) and num_tokens >= LEAST_TOKENS_IN_BOXES
    )


def in_boxes(tensor: torch.Tensor, tile: int) -> Any:
    """What the copy engine must know of keys or values, (tokens, num_kv_heads, head_dim), to fetch one head's tiles."""
    tokens, heads, head_dim = tensor.shape
    return TensorDescriptor(tensor, [tokens, heads * head_dim], [tensor.stride(0), 1], [tile, head_dim])


def paged_prefill(
    query: torch.Tensor,
    kv_cache: torch.Tensor,
    block_table: torch.Tensor,
    query_start_loc: torch.Tensor,
    seq_lens: torch.Tensor,
    max_query_len: int,
    window: int | None = None,
    scales: KVScales = UNSCALED,
    fresh: tuple[torch.Tensor, torch.Tensor] | None = None,
    out: torch.Tensor | None = None,
    launches: list[LayerLaunch] | None = None,
) -> torch.Tensor:
    """Causal attention of any number of tokens per request.

    Args:
        query: (tokens, num_heads, head_dim), rotated; heads contiguous, any stride between tokens.
        kv_cache: (2, num_blocks, block_size, num_kv_heads, head_dim), in the query's dtype or in FP8.
        block_table: (requests, max blocks) int32.
        query_start_loc: (requests + 1,) int32, where each request's tokens begin in the flat batch; the first need not
            be 0.
        seq_lens: (requests,) int32, tokens in the cache, this step's included.
        max_query_len: The most tokens of a request in this step, or more.
        window: Tokens that a query sees, itself included; None is all.
        scales: What the numbers of an FP8 cache are multiplied with.
        fresh: Keys and values of this step, (tokens, num_kv_heads, head_dim) each. They are read instead of the cache:
            right only if every request is whole, that is seq_lens are the numbers of queries.
        out: Written if given. Tokens before query_start_loc[0] and from query_start_loc[-1] on are left as they are.
        launches: If given, what was launched is added to it: another layer of the step may repeat it.

    Returns:
        (tokens, num_heads, head_dim)

    Raises:
        ValueError: Shapes, dtypes or strides do not belong together.
    """
    check_paged(query, kv_cache, block_table, seq_lens)
    requests, (tokens, num_heads, head_dim) = len(seq_lens), query.shape
    block_size, num_kv_heads = kv_cache.shape[2:4]
    if query_start_loc.dtype != torch.int32 or query_start_loc.shape != (requests + 1,):
        raise ValueError(f"query_start_loc must be int32 of {requests + 1} numbers, got {query_start_loc.dtype}")
    out = torch.empty(query.shape, dtype=query.dtype, device=query.device) if out is None else out
    if requests == 0 or tokens == 0:
        return out
    key, value = (kv_cache[0], kv_cache[1]) if fresh is None else fresh
    if fresh is not None and (key.stride() != value.stride() or key.stride()[1:] != (head_dim, 1)):
        raise ValueError(f"fresh keys and values must lie alike, heads contiguous: {key.stride()}, {value.stride()}")
    group = num_heads // num_kv_heads
    gpu = gpu_of(query.device)
    tiling = prefill_tiling(gpu, group, max_query_len, head_dim, query.dtype.itemsize)
    is_boxed = fresh is not None and are_boxes_worth_it(gpu, tokens, head_dim, query.dtype.itemsize)
    grid = (num_kv_heads, tokens // (tiling.rows // group) + requests)
    scales = scales if fresh is None else UNSCALED
    token_stride = kv_cache.stride(2) if fresh is None else key.stride(0)
    boxes = (in_boxes(key, tiling.tile), in_boxes(value, tiling.tile)) if is_boxed else (None, None)
    keys, values = ("key_pages", "value_pages") if fresh is None else ("key", "value")
    own = {"out_ptr": "out", "query_ptr": "query", "key_ptr": keys, "value_ptr": values}
    if is_boxed:
        own |= {"key_boxes": keys, "value_boxes": values}
    launch = LayerLaunch(
        paged_prefill_kernel,
        grid,
        own,
        out,
        query,
        key,
        value,
        *boxes,
        block_table,
        query_start_loc,
        seq_lens,
        scales.score_scale(head_dim),
        scales.value,
        requests,
        query.stride(0),
        out.stride(0),
        kv_cache.stride(1),
        token_stride,
        block_table.stride(0),
        0 if window is None else window,
        block_size=block_size,
        group=group,
        rows=tiling.rows,
        head_dim=head_dim,
        dim_padded=padded_size(head_dim),
        tile=tiling.tile,
        has_window=window is not None,
        is_fresh=fresh is not None,
        is_boxed=is_boxed,
        num_warps=tiling.warps,
        num_stages=tiling.stages,
    )
    if launches is not None:
        launches.append(launch)
    return out
