"""Owns attention of one new token per request over its pages: the kernel that most of a decode step is spent in.

For request r with n tokens, and query head h that shares KV head g:

    scores[t] = scale * query[r, h] . key(t)       for t in first ... n - 1, first = max(0, n - window)
    out[r, h] = sum_t softmax(scores)[t] * value(t)

where key(t) and value(t) stand in the cache at

    page_of_token = block_table[r, t // block_size]        offset_in_page = t % block_size

Every key and value is read once and used for two multiplications a query head: memory is the limit, so the whole
design is about reading. Query heads that share a KV head sit in one tile, so their keys are read once for all of them.

A long context is *split* among several programs, because one program cannot pull more than a small share of the
bandwidth. Each split leaves its own normalised output and the logarithm of its softmax sum,

    lse_i = log2 sum_{t in split i} 2^scores[t]      out = sum_i 2^(lse_i - max) out_i  /  sum_i 2^(lse_i - max)

and the second kernel joins them, exactly: no approximation is made anywhere.

Upstream: vllm/v1/attention/ops/triton_decode_attention.py::decode_attention_fwd.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from minivllm.kernels.early_launch import begin_early, early_launch, wait_for_earlier
from minivllm.kernels.launch import UNSCALED, KVScales, check_paged, gpu_of, padded_size
from minivllm.kernels.paged import join_splits, load_page_ids, softmax_step, split_bounds
from minivllm.kernels.triton_guard import cdiv, jit, jit_for_any, next_power_of_2, tl

# The matrix units multiply 16 rows at least. A group of 2 or 4 query heads fills only some of them; the rest is idle
# work that costs nothing, since memory is the limit.
LEAST_ROWS = 16
# Programs that keep the GPU's memory busy, per multiprocessor. With fewer, contexts are split.
PROGRAMS_PER_PROCESSOR = 4
MOST_SPLITS = 16
# One tile of keys, in bytes: 64 tokens x 128 numbers x 2 bytes. Key and value tiles are held in shared memory twice
# over, so that the next ones arrive while these are used: 2 x 2 x 16 KB, and three programs share a multiprocessor's
# 227 (sm_90). A third tile under way would be worth less than the third program.
TILE_BYTES = 16 * 1024


class Tiling(NamedTuple):
    """Tokens of a tile, warps, and tiles of keys and of values that are held at once."""

    tokens: int
    warps: int
    stages: int


def paged_decode_reference(
    query: torch.Tensor,
    kv_cache: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    window: int | None = None,
    scales: KVScales = UNSCALED,
) -> torch.Tensor:
    """What the kernels do, in plain PyTorch. Arguments as in `paged_decode`."""
    block_size, group = kv_cache.shape[2], query.shape[1] // kv_cache.shape[3]
    out = torch.zeros_like(query)
    for request, length in enumerate(seq_lens.tolist()):
        if length == 0:
            continue
        token = torch.arange(0 if window is None else max(0, length - window), length, device=query.device)
        page_of_token, offset_in_page = block_table[request, token // block_size].long(), token % block_size
        key = kv_cache[0, page_of_token, offset_in_page].to(query.dtype) * scales.key  # (tokens, kv_heads, head_dim)
        value = kv_cache[1, page_of_token, offset_in_page].to(query.dtype) * scales.value
        key, value = key.repeat_interleave(group, dim=1), value.repeat_interleave(group, dim=1)
        scores = torch.einsum("hd,thd->ht", query[request], key) * query.shape[-1] ** -0.5
        out[request] = torch.einsum("ht,thd->hd", scores.softmax(dim=-1), value)
    return out


@jit_for_any("table_stride")
def paged_decode_kernel(
    out_ptr,
    partial_out_ptr,
    partial_lse_ptr,
    query_ptr,
    key_cache_ptr,
    value_cache_ptr,
    block_table_ptr,
    seq_lens_ptr,
    score_scale,
    value_scale,
    query_token_stride,
    out_token_stride,
    page_stride,
    offset_stride,
    table_stride,
    window,
    block_size: tl.constexpr,
    group: tl.constexpr,
    group_rows: tl.constexpr,
    head_dim: tl.constexpr,
    dim_padded: tl.constexpr,
    tile: tl.constexpr,
    num_splits: tl.constexpr,
    early: tl.constexpr,
):
    """One split of one request, for all query heads of one KV head.

        tokens    first                                                n
                  |-- split 0 ----------|-- split 1 ----------|-- split 2 --|
                  [ tile ][ tile ][ tile ][ tile ] ...                [ part ]      every tile crosses pages freely

        keys        (dim_padded, tile)  ---.
        query (group_rows, dim_padded) ----'-> scores (group_rows, tile) -> weights --.
        values                                              (tile, dim_padded) -------'-> acc (group_rows, dim_padded)

    The grid depends on the batch and on `num_splits` only, so a captured graph serves any length: the length of a split
    follows from the request's own length, and splits that have no token end at once.
    """
    begin_early(early)
    wait_for_earlier(early)
    kv_head = tl.program_id(0)
    request = tl.program_id(1)
    split = tl.program_id(2)
    num_kv_heads = tl.num_programs(0)
    seq_len = tl.load(seq_lens_ptr + request)
    start, end = split_bounds(seq_len, window, split, num_splits, tile)
    if num_splits > 1 and start >= end:
        return

    row = tl.arange(0, group_rows)
    dim = tl.arange(0, dim_padded)
    is_dim = dim < head_dim
    is_cell = (row < group)[:, None] & is_dim[None, :]  # (group_rows, dim_padded)
    head = kv_head * group + row
    cell = head[:, None] * head_dim + dim[None, :]
    query = tl.load(query_ptr + request.to(tl.int64) * query_token_stride + cell, mask=is_cell, other=0.0)

    highest = tl.full([group_rows], float("-inf"), tl.float32)
    total = tl.zeros([group_rows], tl.float32)
    acc = tl.zeros([group_rows, dim_padded], tl.float32)
    table_row = block_table_ptr + request.to(tl.int64) * table_stride
    place = tl.arange(0, tile)
    head_cell = kv_head * head_dim + dim
    # Page ids are loaded one tile ahead and carried by the loop: an address that hangs on a load of the same iteration
    # cannot be prefetched, and the keys would wait for it.
    page_of_token = load_page_ids(table_row, start + place, end, block_size)
    for tile_start in range(start, end, tile):
        token = tile_start + place
        is_real = token < end
        offset_in_page = token % block_size
        # 64 bits: a cache has more elements than a 32-bit integer can count.
        token_cell = page_of_token.to(tl.int64) * page_stride + offset_in_page * offset_stride  # (tile,)
        key = tl.load(
            key_cache_ptr + token_cell[None, :] + head_cell[:, None],
            mask=is_real[None, :] & is_dim[:, None],
            other=0.0,
        )  # (dim_padded, tile)
        value = tl.load(
            value_cache_ptr + token_cell[:, None] + head_cell[None, :],
            mask=is_real[:, None] & is_dim[None, :],
            other=0.0,
        )  # (tile, dim_padded)
        page_of_token = load_page_ids(table_row, token + tile, end, block_size)

        scores = tl.dot(query, key.to(query.dtype), input_precision="ieee") * score_scale  # (group_rows, tile)
        scores = tl.where(is_real[None, :], scores, float("-inf"))
        weights, highest, total, acc = softmax_step(scores, highest, total, acc)
        acc = tl.dot(weights.to(query.dtype), value.to(query.dtype), acc, input_precision="ieee")

    # A request without tokens (a padding row of a captured graph) has a total of 0, and puts out zeros.
    acc = acc * (value_scale / tl.where(total == 0.0, 1.0, total))[:, None]
    if num_splits == 1:
        out_cell = request.to(tl.int64) * out_token_stride + cell
        tl.store(out_ptr + out_cell, acc.to(out_ptr.dtype.element_ty), mask=is_cell)
    else:
        partial = (request.to(tl.int64) * num_kv_heads * group + head) * num_splits + split  # (group_rows,)
        tl.store(partial_out_ptr + partial[:, None] * head_dim + dim[None, :], acc, mask=is_cell)
        tl.store(partial_lse_ptr + partial, highest + tl.log2(total), mask=row < group)


@jit
def join_splits_kernel(
    out_ptr,
    partial_out_ptr,
    partial_lse_ptr,
    seq_lens_ptr,
    out_token_stride,
    window,
    head_dim: tl.constexpr,
    dim_padded: tl.constexpr,
    tile: tl.constexpr,
    num_splits: tl.constexpr,
    splits_padded: tl.constexpr,
    early: tl.constexpr,
):
    """Join the splits of one query head of one request. What empty splits left in the buffers is never read."""
    begin_early(early)
    wait_for_earlier(early)
    head = tl.program_id(0)
    request = tl.program_id(1)
    seq_len = tl.load(seq_lens_ptr + request)
    split = tl.arange(0, splits_padded)
    start, end = split_bounds(seq_len, window, split, num_splits, tile)
    is_used = (start < end) & (split < num_splits)  # (splits_padded,)
    dim = tl.arange(0, dim_padded)
    is_dim = dim < head_dim

    partial = (request.to(tl.int64) * tl.num_programs(0) + head) * num_splits + split
    lse = tl.load(partial_lse_ptr + partial, mask=is_used, other=float("-inf"))
    outputs = tl.load(
        partial_out_ptr + partial[:, None] * head_dim + dim[None, :],
        mask=is_used[:, None] & is_dim[None, :],
        other=0.0,
    )  # (splits_padded, dim_padded)
    joined = join_splits(lse, outputs)
    out_cell = request.to(tl.int64) * out_token_stride + head * head_dim + dim
    tl.store(out_ptr + out_cell, joined.to(out_ptr.dtype.element_ty), mask=is_dim)


def splits_for(batch: int, num_kv_heads: int, processors: int) -> int:
    """How many programs share one context, so that there are enough of them for the GPU.

    It depends on nothing that changes between replays of a captured graph.

    Args:
        batch: Requests.
        num_kv_heads: Of the layer.
        processors: Multiprocessors of the GPU.
    """
    wanted = PROGRAMS_PER_PROCESSOR * processors // max(1, batch * num_kv_heads)
    return 1 << max(0, min(wanted, MOST_SPLITS).bit_length() - 1)  # a power of two: few variants to compile


def decode_tiling(head_dim: int, kv_itemsize: int, query_itemsize: int, num_splits: int, most_stages: int) -> Tiling:
    """How a context is read.

    Where contexts are split there is little for each program, and it is over sooner in small tiles. Numbers of 4 bytes
    are not for the matrix unit, and need registers: a smaller tile.
    """
    tokens = TILE_BYTES // (padded_size(head_dim) * max(kv_itemsize, 2))
    if query_itemsize == 4:
        return Tiling(max(16, min(tokens, 64) // 2), 4, 2)
    if num_splits > 1:
        return Tiling(min(tokens, 32), 4, most_stages)
    return Tiling(min(tokens, 64), 4, 2)


def paged_decode(
    query: torch.Tensor,
    kv_cache: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    window: int | None = None,
    scales: KVScales = UNSCALED,
    out: torch.Tensor | None = None,
    num_splits: int | None = None,
) -> torch.Tensor:
    """Attention of one token per request.

    Args:
        query: (requests, num_heads, head_dim), rotated; heads contiguous, any stride between requests.
        kv_cache: (2, num_blocks, block_size, num_kv_heads, head_dim), in the query's dtype or in FP8.
        block_table: (requests, max blocks) int32.
        seq_lens: (requests,) int32, tokens in the cache, this step's included; 0 for a padding row, which puts out 0.
        window: Tokens that a query sees, itself included; None is all.
        scales: What the numbers of an FP8 cache are multiplied with.
        out: Written if given. (requests, num_heads, head_dim)
        num_splits: Programs that share a context; None chooses by the batch and the GPU.

    Returns:
        (requests, num_heads, head_dim)

    Raises:
        ValueError: Shapes, dtypes or strides do not belong together.
    """
    check_paged(query, kv_cache, block_table, seq_lens)
    requests, num_heads, head_dim = query.shape
    block_size, num_kv_heads = kv_cache.shape[2:4]
    out = torch.empty(query.shape, dtype=query.dtype, device=query.device) if out is None else out
    if requests == 0:
        return out
    group = num_heads // num_kv_heads
    gpu = gpu_of(query.device)
    splits = num_splits or splits_for(requests, num_kv_heads, gpu.processors)
    tiling = decode_tiling(head_dim, kv_cache.dtype.itemsize, query.dtype.itemsize, splits, gpu.stages)
    partial_out = partial_lse = out
    if splits > 1:
        partial_out = torch.empty((requests, num_heads, splits, head_dim), dtype=torch.float32, device=query.device)
        partial_lse = torch.empty((requests, num_heads, splits), dtype=torch.float32, device=query.device)
    window_or_all = 0 if window is None else window
    paged_decode_kernel[(num_kv_heads, requests, splits)](
        out,
        partial_out,
        partial_lse,
        query,
        kv_cache[0],
        kv_cache[1],
        block_table,
        seq_lens,
        scales.score_scale(head_dim),
        scales.value,
        query.stride(0),
        out.stride(0),
        kv_cache.stride(1),
        kv_cache.stride(2),
        block_table.stride(0),
        window_or_all,
        block_size=block_size,
        group=group,
        group_rows=max(LEAST_ROWS, next_power_of_2(group)),
        head_dim=head_dim,
        dim_padded=padded_size(head_dim),
        tile=tiling.tokens,
        num_splits=splits,
        num_warps=tiling.warps,
        num_stages=tiling.stages,
        **early_launch(query.device, requests),
    )
    if splits > 1:
        join_splits_kernel[(num_heads, requests)](
            out,
            partial_out,
            partial_lse,
            seq_lens,
            out.stride(0),
            window_or_all,
            head_dim=head_dim,
            dim_padded=padded_size(head_dim),
            tile=tiling.tokens,
            num_splits=splits,
            splits_padded=next_power_of_2(splits),
            num_warps=cdiv(splits * padded_size(head_dim), 2048) if splits > 8 else 1,
            **early_launch(query.device, requests),
        )
    return out
