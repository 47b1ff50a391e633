"""Owns attention of one new token per request over its pages: the kernel that most of a decode step is spent in.

For request r with n tokens, and query head h that shares KV head g:

    scores[t] = scale * query[r, h] . key(t)       for t in first ... n - 1, first = max(0, n - window)
    out[r, h] = sum_t softmax(scores)[t] * value(t)

where key(t) and value(t) stand in the cache at

    page_of_token = block_table[r, t // block_size]        offset_in_page = t % block_size

Every number of a key or value is read once, and used for one multiplication and one addition a query head: memory is
the limit, so the whole design is about reading. Query heads that share a KV head sit in one tile, so their keys are
read once for all of them.

A long context is *cut into parts*, because one program cannot pull more than a small share of the bandwidth, and one of
30,000 tokens beside many of 300 would keep its program busy long after the others have ended. How long a part may be
follows from the lengths of all: there is room for some more parts than requests, and the longest contexts get them
(`plan_decode`, once for all layers of a step).

    request     0                       1         2            3
    parts     | 0 | 1 | 2 | 3 |       | 4 |     | 5 | 6 |    | 7 |        8 and 9 have nothing to do
                                                                         programs: one a part and KV head

Where a request has several parts, each program leaves its own normalised output and the logarithm of its softmax sum,

    lse_i = log2 sum_{t in part i} 2^scores[t]       out = sum_i 2^(lse_i - max) out_i  /  sum_i 2^(lse_i - max)

and they are joined, exactly and in the order of the tokens: no approximation is made anywhere. In a small batch nearly
every request has several parts, and a kernel of its own joins them. In a large one few have; there the program that
comes last joins the parts of its request, so that nothing is launched for those that have one.

Upstream: vllm/v1/attention/ops/triton_decode_attention.py::decode_attention_fwd; a plan of this kind is
what FlashAttention's `get_scheduler_metadata` makes, which vllm/v1/attention/backends/flash_attn.py calls once a step.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from minivllm.kernels.early_launch import AT_ITS_START, MOST_EARLY_ROWS, begin_early, early_launch, wait_for_earlier
from minivllm.kernels.launch import UNSCALED, KVScales, LayerLaunch, check_paged, gpu_of, padded_requests, padded_size
from minivllm.kernels.paged import SharedPrefix, join_splits, load_page_ids, softmax_step
from minivllm.kernels.triton_guard import jit, jit_for_any, next_power_of_2, tl

# The matrix units multiply 16 rows at least. A group of 2 or 4 query heads fills only some of them; the rest is idle
# work that costs nothing, since memory is the limit.
LEAST_ROWS = 16
# One tile of keys, in bytes: 64 tokens x 128 numbers x 2 bytes. Key and value tiles are held in shared memory twice
# over, so that the next ones arrive while these are used: 2 x 2 x 16 KB, and three programs share a multiprocessor's
# 227 (sm_90). A third tile under way would be worth less than the third program.
TILE_BYTES = 16 * 1024
# Programs that long contexts may be cut into, per multiprocessor, beside one for each request and KV head.
MORE_PROGRAMS_PER_PROCESSOR = 4
# int32 numbers in a part's row of the plan. Five are used (`plan_decode_kernel`); 8 make 32 bytes. Kernels write the 8.
PLAN_COLUMNS = 8
# Parts that are joined at once.
JOINED = 16


class Tiling(NamedTuple):
    """Tokens of a tile, warps, and tiles of keys and of values that are held at once."""

    tokens: int
    warps: int
    stages: int


class DecodePlan(NamedTuple):
    """How contexts are cut, and what their parts leave.

    Attributes:
        tiling: Of the kernel that follows it.
        parts: (most parts, PLAN_COLUMNS) int32.
        of_request: (requests, 2) int32, index of its first part, and how many it has.
        arrived: (requests, num_kv_heads) int32, parts that are ready; 0 before and after each layer.
        partial_out: (most parts, num_heads, head_dim) float32.
        partial_lse: (most parts, num_heads) float32.
        is_joined_apart: Whether a kernel of its own joins the parts.
        window, prefix_tokens: What was planned for: tokens of a window (0: all), and a prefix that is left out.
    """

    tiling: Tiling
    parts: torch.Tensor
    of_request: torch.Tensor
    arrived: torch.Tensor
    partial_out: torch.Tensor
    partial_lse: torch.Tensor
    is_joined_apart: bool
    window: int
    prefix_tokens: torch.Tensor | None


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


@jit
def first_token(seq_len, window, prefix):
    """The first token that is read of a context: behind a shared prefix, inside of the window (0: no window)."""
    return tl.maximum(tl.where(window > 0, tl.maximum(seq_len - window, 0), 0), tl.minimum(prefix, seq_len))


@jit_for_any("num_requests", "num_arrivals", "most_parts")
def plan_decode_kernel(
    parts_ptr,
    of_request_ptr,
    arrived_ptr,
    seq_lens_ptr,
    prefix_tokens_ptr,
    window,
    num_requests,
    num_arrivals,
    most_parts,
    requests_padded: tl.constexpr,
    tile: tl.constexpr,
    has_prefix: tl.constexpr,
):
    """Cut contexts into parts of equal length (a request's last may be shorter), none longer than
    `all tokens / (most_parts - num_requests)`, counted in tiles and rounded up.

        a part's row     request, first token, end, parts of the request, index of the first of them

    So there are never more than `most_parts`: each request has one, and one more for every so many tokens. Rows that
    are left over get request -1. One program: what a request gets depends on all of them.
    """
    request = tl.arange(0, requests_padded)
    is_real = request < num_requests
    seq_len = tl.load(seq_lens_ptr + request, mask=is_real, other=0)
    prefix = 0
    if has_prefix:
        prefix = tl.load(prefix_tokens_ptr)
    first = first_token(seq_len, window, prefix)
    tiles = (seq_len - first + tile - 1) // tile
    longest = tl.maximum(tl.cdiv(tl.sum(tiles, 0), most_parts - num_requests), 1)
    # A request without tokens has a part too: its output, zeros, must be written.
    count = tl.where(is_real, tl.maximum((tiles + longest - 1) // longest, 1), 0)
    tokens = (tiles + count - 1) // tl.maximum(count, 1) * tile  # of a part
    index = tl.cumsum(count, 0) - count
    tl.store(of_request_ptr + request * 2, index, mask=is_real)
    tl.store(of_request_ptr + request * 2 + 1, count, mask=is_real)
    for part in range(tl.max(count, 0)):
        row = parts_ptr + (index + part) * 8
        is_part = part < count
        start = first + part * tokens
        tl.store(row, request, mask=is_part)
        tl.store(row + 1, start, mask=is_part)
        tl.store(row + 2, tl.minimum(start + tokens, seq_len), mask=is_part)
        tl.store(row + 3, count, mask=is_part)
        tl.store(row + 4, index, mask=is_part)
    total = tl.sum(count, 0)
    for start in range(total, most_parts, requests_padded):
        empty = start + request
        tl.store(parts_ptr + empty * 8, -1, mask=empty < most_parts)
    for start in range(0, num_arrivals, requests_padded):
        place = start + request
        tl.store(arrived_ptr + place, 0, mask=place < num_arrivals)


@jit
def join_parts(
    out_ptr, partial_out_ptr, partial_lse_ptr, prefix_out_ptr, prefix_lse_ptr, request, head, num_heads,
    first_part, parts, dim, head_dim: tl.constexpr, joined: tl.constexpr, prefix_splits: tl.constexpr,
    prefix_padded: tl.constexpr,
):  # fmt: skip
    """Join the parts of one query head of one request, in the order of its tokens, and those of a shared prefix."""
    is_dim = dim < head_dim
    highest = float("-inf")
    total = 0.0
    acc = tl.zeros([dim.shape[0]], tl.float32)
    for start in range(0, parts, joined):
        part = start + tl.arange(0, joined)
        place = (first_part + part).to(tl.int64) * num_heads + head
        # Past the first-level cache, which may hold what stood here in another layer.
        lse = tl.load(partial_lse_ptr + place, mask=part < parts, other=float("-inf"), cache_modifier=".cg")
        outputs = tl.load(
            partial_out_ptr + place[:, None] * head_dim + dim[None, :],
            mask=(part < parts)[:, None] & is_dim[None, :],
            other=0.0,
            cache_modifier=".cg",
        )  # (joined, dim_padded)
        highest, total, acc = join_splits(lse, outputs, highest, total, acc)
    if prefix_splits > 0:
        split = tl.arange(0, prefix_padded)
        place = (request.to(tl.int64) * num_heads + head) * prefix_splits + split
        lse = tl.load(prefix_lse_ptr + place, mask=split < prefix_splits, other=float("-inf"))
        outputs = tl.load(
            prefix_out_ptr + place[:, None] * head_dim + dim[None, :],
            mask=(lse > float("-inf"))[:, None] & is_dim[None, :],
            other=0.0,
        )  # (prefix_padded, dim_padded)
        highest, total, acc = join_splits(lse, outputs, highest, total, acc)
    tl.store(out_ptr + head * head_dim + dim, (acc / total).to(out_ptr.dtype.element_ty), mask=is_dim)


@jit
def join_prefix(
    prefix_out_ptr, prefix_lse_ptr, request, head, num_heads, row_is_real, dim, highest, total, acc,
    head_dim: tl.constexpr, prefix_splits: tl.constexpr,
):  # fmt: skip
    """Take the splits of a shared prefix into what stands behind it: highest, total (rows,), acc (rows, dim_padded)."""
    is_cell = row_is_real[:, None] & (dim < head_dim)[None, :]
    for split in tl.range(prefix_splits, num_stages=1):
        place = (request.to(tl.int64) * num_heads + head) * prefix_splits + split  # (rows,)
        lse = tl.load(prefix_lse_ptr + place, mask=row_is_real, other=float("-inf"))
        outputs = tl.load(prefix_out_ptr + place[:, None] * head_dim + dim[None, :], mask=is_cell, other=0.0)
        new = tl.maximum(highest, lse)
        reference = tl.where(new == float("-inf"), 0.0, new)
        shrink, weight = tl.exp2(highest - reference), tl.exp2(lse - reference)
        acc = acc * shrink[:, None] + outputs * weight[:, None]
        highest, total = new, total * shrink + weight
    return highest, total, acc


@jit_for_any("table_stride")
def paged_decode_kernel(
    out_ptr,
    partial_out_ptr,
    partial_lse_ptr,
    arrived_ptr,
    parts_ptr,
    query_ptr,
    key_cache_ptr,
    value_cache_ptr,
    block_table_ptr,
    prefix_out_ptr,
    prefix_lse_ptr,
    score_scale,
    value_scale,
    query_token_stride,
    out_token_stride,
    page_stride,
    offset_stride,
    table_stride,
    block_size: tl.constexpr,
    group: tl.constexpr,
    group_rows: tl.constexpr,
    head_dim: tl.constexpr,
    dim_padded: tl.constexpr,
    tile: tl.constexpr,
    prefix_splits: tl.constexpr,
    prefix_padded: tl.constexpr,
    joined: tl.constexpr,
    is_joined_apart: tl.constexpr,
    early: tl.constexpr,
):
    """One part of one request, for all query heads of one KV head.

        tokens    start                                          end
                  [ tile ][ tile ][ tile ][ tile ] ...     [ ti ]          every tile crosses pages freely

        keys        (dim_padded, tile)  ---.
        query (group_rows, dim_padded) ----'-> scores (group_rows, tile) -> weights --.
        values                                              (tile, dim_padded) -------'-> acc (group_rows, dim_padded)

    The grid depends on the batch only, so a captured graph serves any lengths: parts follow from them.
    """
    begin_early(early)
    wait_for_earlier(early)
    kv_head = tl.program_id(0)
    own = tl.program_id(1)  # this program's part: a row of the plan
    num_kv_heads = tl.num_programs(0)
    num_heads = num_kv_heads * group
    request = tl.load(parts_ptr + own * 8)
    start = tl.load(parts_ptr + own * 8 + 1)
    end = tl.load(parts_ptr + own * 8 + 2)
    parts = tl.load(parts_ptr + own * 8 + 3)
    if request < 0:
        return

    row = tl.arange(0, group_rows)
    dim = tl.arange(0, dim_padded)
    is_dim = dim < head_dim
    is_row = row < group
    is_cell = is_row[:, None] & is_dim[None, :]  # (group_rows, dim_padded)
    head = kv_head * group + row
    cell = head[:, None] * head_dim + dim[None, :]
    query = tl.load(query_ptr + request.to(tl.int64) * query_token_stride + cell, mask=is_cell, other=0.0)

    highest = tl.full([group_rows], float("-inf"), tl.float32)
    total = tl.zeros([group_rows], tl.float32)
    acc = tl.zeros([group_rows, dim_padded], tl.float32)
    table_row = block_table_ptr + request.to(tl.int64) * table_stride
    lane = tl.arange(0, tile)
    head_cell = kv_head * head_dim + dim
    # Page ids are loaded one tile ahead and carried by the loop: an address that hangs on a load of the same iteration
    # cannot be prefetched, and the keys would wait for it.
    page_of_token = load_page_ids(table_row, start + lane, end, block_size)
    for tile_start in range(start, end, tile):
        token = tile_start + lane
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

    acc = acc * value_scale
    if parts == 1:
        if prefix_splits > 0:
            highest, total, acc = join_prefix(
                prefix_out_ptr, prefix_lse_ptr, request, head, num_heads, is_row, dim, highest, total, acc, head_dim,
                prefix_splits,
            )  # fmt: skip
        # A request without tokens (a padding row of a captured graph) has a total of 0, and puts out zeros.
        result = acc * (1.0 / tl.where(total == 0.0, 1.0, total))[:, None]
        out_cell = request.to(tl.int64) * out_token_stride + cell
        tl.store(out_ptr + out_cell, result.to(out_ptr.dtype.element_ty), mask=is_cell)
    else:
        # No guard as above: a part of several has tokens, so total is not 0.
        place = own.to(tl.int64) * num_heads + head  # (group_rows,)
        tl.store(partial_out_ptr + place[:, None] * head_dim + dim[None, :], acc * (1.0 / total)[:, None], mask=is_cell)
        tl.store(partial_lse_ptr + place, highest + tl.log2(total), mask=is_row)
        if not is_joined_apart:
            tl.debug_barrier()  # all threads have written before one says so
            counter = arrived_ptr + request * num_kv_heads + kv_head
            ticket = tl.atomic_add(counter, 1, sem="acq_rel")
            if ticket == parts - 1:  # all others are ready
                tl.atomic_xchg(counter, 0, sem="relaxed")
                first_part = tl.load(parts_ptr + own * 8 + 4)
                for head_of_group in range(group):
                    join_parts(
                        out_ptr + request.to(tl.int64) * out_token_stride, partial_out_ptr, partial_lse_ptr,
                        prefix_out_ptr, prefix_lse_ptr, request, kv_head * group + head_of_group, num_heads,
                        first_part, parts, dim, head_dim, joined, prefix_splits, prefix_padded,
                    )  # fmt: skip


@jit
def join_parts_kernel(
    out_ptr,
    partial_out_ptr,
    partial_lse_ptr,
    of_request_ptr,
    prefix_out_ptr,
    prefix_lse_ptr,
    out_token_stride,
    head_dim: tl.constexpr,
    dim_padded: tl.constexpr,
    prefix_splits: tl.constexpr,
    prefix_padded: tl.constexpr,
    joined: tl.constexpr,
    early: tl.constexpr,
):
    """Join the parts of one query head of one request, if it has several."""
    begin_early(early)
    wait_for_earlier(early)
    request = tl.program_id(1)
    first_part = tl.load(of_request_ptr + request * 2)
    parts = tl.load(of_request_ptr + request * 2 + 1)
    if parts == 1:
        return
    join_parts(
        out_ptr + request.to(tl.int64) * out_token_stride, partial_out_ptr, partial_lse_ptr, prefix_out_ptr,
        prefix_lse_ptr, request, tl.program_id(0), tl.num_programs(0), first_part, parts, tl.arange(0, dim_padded),
        head_dim, joined, prefix_splits, prefix_padded,
    )  # fmt: skip


def decode_tiling(head_dim: int, kv_itemsize: int, query_itemsize: int, is_crowded: bool, most_stages: int) -> Tiling:
    """How a context is read.

    Args:
        head_dim, kv_itemsize, query_itemsize: Numbers of a head, and bytes of one. Numbers of 4 bytes are not for the
            matrix unit, and need registers: a smaller tile.
        is_crowded: Whether programs are many times what the GPU holds. Then smaller tiles were faster on an H200.
        most_stages: Tiles that may be held at once.
    """
    tokens = min(64, TILE_BYTES // (padded_size(head_dim) * max(kv_itemsize, 2)))
    if query_itemsize == 4:
        return Tiling(max(16, tokens // 2), 4, 2)
    if is_crowded:
        return Tiling(max(16, tokens // 2), 4, most_stages)
    return Tiling(max(16, tokens), 4, 2)


def most_parts_for(requests: int, num_kv_heads: int, processors: int) -> int:
    """Parts that a batch can have: one a request, and enough more to give every multiprocessor several programs."""
    return requests + max(1, MORE_PROGRAMS_PER_PROCESSOR * processors // num_kv_heads)


def plan_decode(
    query: torch.Tensor,
    kv_cache: torch.Tensor,
    seq_lens: torch.Tensor,
    window: int | None = None,
    prefix_tokens: torch.Tensor | None = None,
    most_parts: int | None = None,
) -> DecodePlan:
    """Cut the contexts of a batch into parts: once a step, since every layer with the same window has the same.

    What it launches depends on shapes only, and what it writes on `seq_lens` as they are on the device then.

    Args:
        query, kv_cache, seq_lens, window: As of `paged_decode`.
        prefix_tokens: `SharedPrefix.num_tokens`, if these tokens are read elsewhere.
        most_parts: More than there are requests; None is what the GPU has room for.
    """
    requests, num_heads, head_dim = query.shape
    num_kv_heads, device = kv_cache.shape[3], query.device
    gpu = gpu_of(device)
    programs = requests * num_kv_heads  # if no context is cut
    is_crowded = programs >= 32 * gpu.processors
    tiling = decode_tiling(head_dim, kv_cache.dtype.itemsize, query.dtype.itemsize, is_crowded, gpu.stages)
    most_parts = most_parts or most_parts_for(requests, num_kv_heads, gpu.processors)
    plan = DecodePlan(
        tiling,
        torch.empty((most_parts, PLAN_COLUMNS), dtype=torch.int32, device=device),
        torch.empty((requests, 2), dtype=torch.int32, device=device),
        torch.empty((requests, num_kv_heads), dtype=torch.int32, device=device),
        torch.empty((most_parts, num_heads, head_dim), dtype=torch.float32, device=device),
        torch.empty((most_parts, num_heads), dtype=torch.float32, device=device),
        programs < 2 * gpu.processors,
        0 if window is None else window,
        prefix_tokens,
    )
    requests_padded = padded_requests(requests)
    plan_decode_kernel[(1,)](
        plan.parts,
        plan.of_request,
        plan.arrived,
        seq_lens,
        seq_lens if prefix_tokens is None else prefix_tokens,
        plan.window,
        requests,
        plan.arrived.numel(),
        most_parts,
        requests_padded=requests_padded,
        tile=tiling.tokens,
        has_prefix=prefix_tokens is not None,
        num_warps=4 if requests_padded <= 512 else 16,
    )
    return plan


def launch_join(
    out: torch.Tensor,
    partial_out: torch.Tensor,
    partial_lse: torch.Tensor,
    of_request: torch.Tensor,
    prefix: SharedPrefix | None = None,
    most_early_rows: int = MOST_EARLY_ROWS,
) -> LayerLaunch:
    """Join what parts have left, by a kernel of its own.

    Args:
        out: (requests, num_heads, head_dim), written; heads contiguous.
        partial_out, partial_lse, of_request: As in `DecodePlan`.
        prefix: As of `paged_decode`.
        most_early_rows: With more requests it is not launched early.
    """
    requests, num_heads, head_dim = out.shape
    prefix_splits = 0 if prefix is None else prefix.lse.shape[2]
    return LayerLaunch(
        join_parts_kernel,
        (num_heads, requests),
        {"out_ptr": "out"},
        out,
        partial_out,
        partial_lse,
        of_request,
        partial_out if prefix is None else prefix.out,
        partial_lse if prefix is None else prefix.lse,
        out.stride(0),
        head_dim=head_dim,
        dim_padded=padded_size(head_dim),
        prefix_splits=prefix_splits,
        prefix_padded=next_power_of_2(max(prefix_splits, 1)),
        joined=JOINED,
        num_warps=1,
        # At its start: so the product behind it asks for its weights while contexts are read.
        **early_launch(out.device, requests, AT_ITS_START, most_early_rows),
    )


def paged_decode(
    query: torch.Tensor,
    kv_cache: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    window: int | None = None,
    scales: KVScales = UNSCALED,
    out: torch.Tensor | None = None,
    prefix: SharedPrefix | None = None,
    plan: DecodePlan | None = None,
    launches: list[LayerLaunch] | None = None,
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
        prefix: Attention to the first tokens, which are not read here but joined.
        plan: Of these lengths, this window and this prefix; None makes one.
        launches: If given, what was launched is added to it: another layer of the step may repeat it.

    Returns:
        (requests, num_heads, head_dim)

    Raises:
        ValueError: Shapes, dtypes or strides do not belong together, or the plan is of something else.
    """
    check_paged(query, kv_cache, block_table, seq_lens)
    requests, num_heads, head_dim = query.shape
    block_size, num_kv_heads = kv_cache.shape[2:4]
    out = torch.empty(query.shape, dtype=query.dtype, device=query.device) if out is None else out
    if requests == 0:
        return out
    prefix_tokens = None if prefix is None else prefix.num_tokens
    if plan is None:
        plan = plan_decode(query, kv_cache, seq_lens, window, prefix_tokens)
    if plan.window != (window or 0) or plan.prefix_tokens is not prefix_tokens or len(plan.arrived) != requests:
        raise ValueError("the plan is of another batch, window or prefix")
    group = num_heads // num_kv_heads
    prefix_splits = 0 if prefix is None else prefix.lse.shape[2]
    launch = LayerLaunch(
        paged_decode_kernel,
        (num_kv_heads, len(plan.parts)),
        {"out_ptr": "out", "query_ptr": "query", "key_cache_ptr": "key_pages", "value_cache_ptr": "value_pages"},
        out,
        plan.partial_out,
        plan.partial_lse,
        plan.arrived,
        plan.parts,
        query,
        kv_cache[0],
        kv_cache[1],
        block_table,
        plan.partial_out if prefix is None else prefix.out,
        plan.partial_lse if prefix is None else prefix.lse,
        scales.score_scale(head_dim),
        scales.value,
        query.stride(0),
        out.stride(0),
        kv_cache.stride(1),
        kv_cache.stride(2),
        block_table.stride(0),
        block_size=block_size,
        group=group,
        group_rows=max(LEAST_ROWS, next_power_of_2(group)),
        head_dim=head_dim,
        dim_padded=padded_size(head_dim),
        tile=plan.tiling.tokens,
        prefix_splits=prefix_splits,
        prefix_padded=next_power_of_2(max(prefix_splits, 1)),
        joined=JOINED,
        is_joined_apart=plan.is_joined_apart,
        num_warps=plan.tiling.warps,
        num_stages=plan.tiling.stages,
        **early_launch(query.device, requests, AT_ITS_START),
    )
    if launches is not None:
        launches.append(launch)
    if plan.is_joined_apart:
        launch = launch_join(out, plan.partial_out, plan.partial_lse, plan.of_request, prefix)
        if launches is not None:
            launches.append(launch)
    return out
