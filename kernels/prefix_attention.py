"""Owns attention of a batch's decodes to a prefix that they all share, which is read once for many of them: the first
half of cascade attention.

Requests with the same system prompt have the same pages at the start of their tables. `paged_decode` reads these pages
again for each request; here the queries of many requests stand in one tile, as those of one prompt do in a prefill:

    request 0   [ prefix ][ own ]            queries of all requests   x   [ prefix ]      this kernel
    request 1   [ prefix ][ own ]     ->     query of request 0        x   [ own ]         `paged_decode`,
    request 2   [ prefix ][ own   ]          query of request 1        x   [ own ]         which joins both

For every request r and query head h that shares KV head g, over the first n tokens of the context:

    scores[t] = scale * query[r, h] . key(t)          lse[r, h] = log2 sum_t 2^scores[t]
    out[r, h] = sum_t softmax(scores)[t] * value(t)

No query is masked: all of them come after the prefix. 256 requests with a prefix of 1,792 tokens read 29 MB a layer
(16 query heads on 8 KV heads of 128: four tiles of 128 rows a KV head), most of it from the second-level cache, and not
1.9 GB of memory.

What it leaves are partial results, as the splits of a long context do (`paged_decode.py`), so joining them is exact.

Upstream: vllm/v1/attention/backends/flash_attn.py::cascade_attention.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from minivllm.kernels.early_launch import begin_early, early_launch, wait_for_earlier
from minivllm.kernels.launch import UNSCALED, Gpu, KVScales, LayerLaunch, check_paged, gpu_of, padded_size
from minivllm.kernels.paged import SharedPrefix, load_page_ids, softmax_step
from minivllm.kernels.triton_guard import cdiv, jit_for_any, next_power_of_2, tl

# Rows of a tile of queries. 128 are two of Hopper's matrix units' 64; a prefix is read once for as many rows.
LEAST_ROWS, MOST_ROWS = 16, 128
# One tile of keys, in bytes: 64 tokens x 128 numbers x 2 bytes, held three times over, and values likewise: 96 KB of
# shared memory beside the queries' 32.
TILE_BYTES = 16 * 1024
MOST_SPLITS = 16
# When it pays. On an H200 64 requests with 256 shared tokens read 63 MiB a layer less and took 7 us more; 32 with 1,792
# read 217 MiB less and took 25 us less. The other two are vLLM's, and keep small batches from a second set of graphs.
LEAST_SAVED_BYTES = 64 * 2**20
LEAST_REQUESTS = 8
LEAST_TOKENS = 256


class Tiling(NamedTuple):
    """Rows of a query tile, tokens of a key tile, warps of a program, buffers of the loop."""

    rows: int
    tile: int
    warps: int
    stages: int


def prefix_attention_reference(
    query: torch.Tensor,
    kv_cache: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    num_tokens: torch.Tensor,
    scales: KVScales = UNSCALED,
) -> SharedPrefix:
    """What the kernel does, in plain PyTorch and in one split. Arguments as in `prefix_attention`."""
    block_size, group = kv_cache.shape[2], query.shape[1] // kv_cache.shape[3]
    token = torch.arange(int(num_tokens), device=query.device)
    page_of_token, offset_in_page = block_table[0, token // block_size].long(), token % block_size
    key = kv_cache[0, page_of_token, offset_in_page].to(query.dtype) * scales.key  # (tokens, kv_heads, head_dim)
    value = kv_cache[1, page_of_token, offset_in_page].to(query.dtype) * scales.value
    key, value = key.repeat_interleave(group, dim=1), value.repeat_interleave(group, dim=1)
    scores = torch.einsum("rhd,thd->rht", query, key) * query.shape[-1] ** -0.5
    lse = scores.logsumexp(dim=-1)  # (requests, heads), of powers of e
    weights = (scores - lse[..., None]).exp()
    out = torch.einsum("rht,thd->rhd", weights, value)
    is_padding = (seq_lens == 0)[:, None]
    lse, out = lse.masked_fill(is_padding, float("-inf")), out.masked_fill(is_padding[..., None], 0.0)
    return SharedPrefix(num_tokens, out[:, :, None], lse[:, :, None] / torch.log(torch.tensor(2.0, dtype=lse.dtype)))


@jit_for_any("num_requests")
def prefix_attention_kernel(
    partial_out_ptr,
    partial_lse_ptr,
    query_ptr,
    key_ptr,
    value_ptr,
    block_table_ptr,
    seq_lens_ptr,
    num_tokens_ptr,
    score_scale,
    value_scale,
    num_requests,
    query_token_stride,
    page_stride,
    token_stride,
    block_size: tl.constexpr,
    group: tl.constexpr,
    rows: tl.constexpr,
    head_dim: tl.constexpr,
    dim_padded: tl.constexpr,
    tile: tl.constexpr,
    early: tl.constexpr,
):
    """One split of the prefix, for one tile of queries of one KV head.

    A tile's rows are (request, head) pairs, here of 2 query heads a KV head:

                 row 0  r0 h0     tiles    0   1   2   3   4   5 6
                 row 1  r0 h1              x   x | x   x | x   x x       the last one may be a part
                 row 2  r1 h0              x   x | x   x | x   x x
                 ...                       split 0   1       2

    The grid depends on the batch only, so a captured graph serves a prefix of any length: its length is read here, and
    the tiles are shared among the splits, as evenly as whole tiles can be.
    """
    begin_early(early)
    wait_for_earlier(early)
    kv_head = tl.program_id(0)
    block = tl.program_id(1)
    split = tl.program_id(2)
    num_heads = tl.num_programs(0) * group
    num_splits = tl.num_programs(2)
    num_tokens = tl.load(num_tokens_ptr)
    num_tiles = (num_tokens + tile - 1) // tile
    start = num_tiles * split // num_splits * tile
    end = tl.minimum(num_tiles * (split + 1) // num_splits * tile, num_tokens)
    whole_end = end // tile * tile

    row = block * rows + tl.arange(0, rows)
    dim = tl.arange(0, dim_padded)
    is_dim = dim < head_dim
    request = row // group
    head = kv_head * group + row % group
    is_request = request < num_requests
    is_real = is_request & (tl.load(seq_lens_ptr + request, mask=is_request, other=0) > 0)  # (rows,)
    # Padding has queries of 0, whatever the step left there: no number that is none gets into a product.
    query = tl.load(
        query_ptr + request.to(tl.int64)[:, None] * query_token_stride + (head * head_dim)[:, None] + dim[None, :],
        mask=is_real[:, None] & is_dim[None, :],
        other=0.0,
    )  # (rows, dim_padded)

    highest = tl.full([rows], float("-inf"), tl.float32)
    total = tl.zeros([rows], tl.float32)
    acc = tl.zeros([rows, dim_padded], tl.float32)
    lane = tl.arange(0, tile)
    head_cell = kv_head * head_dim + dim
    # All tables begin alike: the first request's row serves everybody. Page ids are loaded one tile ahead and carried
    # by the loop, see `paged_decode_kernel`.
    page_of_token = load_page_ids(block_table_ptr, start + lane, end, block_size)
    for edge in tl.static_range(2):  # first the whole tiles, then what is left: two loops, one text
        for tile_start in range(whole_end if edge else start, end if edge else whole_end, tile):
            token = tile_start + lane
            offset_in_page = token % block_size
            token_cell = page_of_token.to(tl.int64) * page_stride + offset_in_page * token_stride  # (tile,)
            page_of_token = load_page_ids(block_table_ptr, token + tile, end, block_size)
            is_token = token < end
            key_mask, value_mask = is_dim[:, None], is_dim[None, :]
            if edge == 1:
                key_mask &= is_token[None, :]
                value_mask &= is_token[:, None]
            key_cells = key_ptr + token_cell[None, :] + head_cell[:, None]  # (dim, tile)
            value_cells = value_ptr + token_cell[:, None] + head_cell[None, :]  # (tile, dim)
            key = tl.load(key_cells, mask=key_mask, other=0.0)
            scores = tl.dot(query, key.to(query.dtype), input_precision="ieee") * score_scale  # (rows, tile)
            if edge == 1:
                scores = tl.where(is_token[None, :], scores, float("-inf"))
            weights, highest, total, acc = softmax_step(scores, highest, total, acc)
            value = tl.load(value_cells, mask=value_mask, other=0.0)
            acc = tl.dot(weights.to(query.dtype), value.to(query.dtype), acc, input_precision="ieee")

    total_or_one = tl.where(total == 0.0, 1.0, total)
    out = tl.where(is_real[:, None], acc * (value_scale / total_or_one)[:, None], 0.0)
    lse = tl.where(is_real, highest + tl.log2(total_or_one), float("-inf"))  # no tokens: highest is -inf
    partial = (request.to(tl.int64) * num_heads + head) * num_splits + split  # (rows,)
    out_cell = partial[:, None] * head_dim + dim[None, :]
    tl.store(partial_out_ptr + out_cell, out, mask=is_request[:, None] & is_dim[None, :])
    tl.store(partial_lse_ptr + partial, lse, mask=is_request)


def prefix_tiling(gpu: Gpu, num_rows: int, head_dim: int, query_itemsize: int) -> Tiling:
    """Tiles of queries as tall as there are rows for, up to what registers allow.

    Args:
        gpu: Where it runs.
        num_rows: Pairs of a request and a query head, of one KV head.
        head_dim: Head size.
        query_itemsize: 4-byte numbers are not for the matrix unit, and are multiplied in registers: small tiles.
    """
    dim = padded_size(head_dim)
    if query_itemsize == 4:
        return Tiling(LEAST_ROWS, max(16, min(32, TILE_BYTES // (dim * 4))), 8, 2)
    most = MOST_ROWS if dim <= 128 and gpu.capability >= 90 else MOST_ROWS // 2
    rows = max(LEAST_ROWS, min(next_power_of_2(num_rows), most))
    tile = max(16, min(64, TILE_BYTES // (dim * 2)))
    if dim == 128 and (rows <= 32 or gpu.capability < 90):
        # Few rows are little work for each program, which is over sooner in small tiles. And before Hopper, the weights
        # of a tile must pass through registers once more.
        tile //= 2
    return Tiling(rows, tile, 8 if rows * dim >= 64 * 256 else 4, gpu.stages)


def prefix_splits(programs: int, processors: int) -> int:
    """Among how many programs the prefix is split, so that there is one for each multiprocessor.

    Each split leaves partial results that must be read again, so there are no more than that. It depends on nothing
    that changes between replays of a captured graph.

    Args:
        programs: Tiles of queries, of all KV heads.
        processors: Multiprocessors of the GPU.
    """
    wanted = min(processors // max(1, programs), MOST_SPLITS)
    return 1 << max(0, wanted.bit_length() - 1)  # a power of two: few variants of what joins them


def is_worth_it(requests: int, num_tokens: int, token_bytes: int) -> bool:
    """Whether reading a prefix once, and not once for each request, saves more than it costs.

    Args:
        requests: Which share it.
        num_tokens: Of the prefix.
        token_bytes: Keys and values of one token in one layer.
    """
    saved = (requests - 1) * num_tokens * token_bytes
    return requests >= LEAST_REQUESTS and num_tokens >= LEAST_TOKENS and saved >= LEAST_SAVED_BYTES


def prefix_attention(
    query: torch.Tensor,
    kv_cache: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    num_tokens: torch.Tensor,
    scales: KVScales = UNSCALED,
    num_splits: int | None = None,
    launches: list[LayerLaunch] | None = None,
) -> SharedPrefix:
    """Attention of one token per request to the first tokens of all contexts, which stand in the same pages.

    Args:
        query: (requests, num_heads, head_dim), rotated; heads contiguous, any stride between requests.
        kv_cache: (2, num_blocks, block_size, num_kv_heads, head_dim), in the query's dtype or in FP8.
        block_table: (requests, max blocks) int32. Only the first row is read.
        seq_lens: (requests,) int32, no less than num_tokens; 0 for a padding row. The first request is none.
        num_tokens: (1,) int32: tokens of the prefix.
        scales: What the numbers of an FP8 cache are multiplied with.
        num_splits: Programs that share the prefix; None chooses by the batch and the GPU.
        launches: If given, what was launched is added to it: another layer of the step may repeat it, and leaves its
            attention in the place of this one's.

    Returns:
        What `paged_decode` joins with attention to the rest.

    Raises:
        ValueError: Shapes, dtypes or strides do not belong together.
    """
    check_paged(query, kv_cache, block_table, seq_lens)
    if num_tokens.dtype != torch.int32 or num_tokens.numel() != 1:
        raise ValueError(f"num_tokens must be one int32 number, got {num_tokens.numel()} of {num_tokens.dtype}")
    requests, num_heads, head_dim = query.shape
    block_size, num_kv_heads = kv_cache.shape[2:4]
    group = num_heads // num_kv_heads
    gpu = gpu_of(query.device)
    tiling = prefix_tiling(gpu, requests * group, head_dim, query.dtype.itemsize)
    blocks = cdiv(requests * group, tiling.rows)
    splits = num_splits or prefix_splits(num_kv_heads * blocks, gpu.processors)
    partial_out = torch.empty((requests, num_heads, splits, head_dim), dtype=torch.float32, device=query.device)
    partial_lse = torch.empty((requests, num_heads, splits), dtype=torch.float32, device=query.device)
    if requests:
        launch = LayerLaunch(
            prefix_attention_kernel,
            (num_kv_heads, blocks, splits),
            {"query_ptr": "query", "key_ptr": "key_pages", "value_ptr": "value_pages"},
            partial_out,
            partial_lse,
            query,
            kv_cache[0],
            kv_cache[1],
            block_table,
            seq_lens,
            num_tokens,
            scales.score_scale(head_dim),
            scales.value,
            requests,
            query.stride(0),
            kv_cache.stride(1),
            kv_cache.stride(2),
            block_size=block_size,
            group=group,
            rows=tiling.rows,
            head_dim=head_dim,
            dim_padded=padded_size(head_dim),
            tile=tiling.tile,
            num_warps=tiling.warps,
            num_stages=tiling.stages,
            **early_launch(query.device, requests),
        )
        if launches is not None:
            launches.append(launch)
    return SharedPrefix(num_tokens, partial_out, partial_lse)
