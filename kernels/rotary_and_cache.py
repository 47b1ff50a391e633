"""Owns the way of a projection's output into attention: norm of each head, rotation, and the write into the cache.

For token t at position p, and every head of query and key, with halves (x, y) of the head:

    x, y = (x, y) / rms(x, y) * weight                        only where the model has such a norm (Qwen3)
    x, y = x cos - y sin,  y cos + x sin                      angles of position p, a table of all positions
    key_cache[slot(t)], value_cache[slot(t)] = key, value     values are neither normed nor rotated

The projection's output is one row of heads, [query heads | key heads | value heads]. Query and key are changed in
place, so that attention can read them there. Done one after the other these steps would read and write the same few
kilobytes six times, and for a batch of one each launch costs more than its bytes: here it is one kernel.

Upstream: vllm/model_executor/layers/fused_qk_norm_rope.py.
"""

from __future__ import annotations

import torch

from minivllm.kernels.early_launch import AFTER_ITS_WAIT, AT_ITS_START, begin_early, early_launch, wait_for_earlier
from minivllm.kernels.fp8 import cache_limit, into_cache, into_cache_reference
from minivllm.kernels.launch import UNSCALED, KVScales
from minivllm.kernels.triton_guard import cdiv, jit, next_power_of_2, tl

# Heads of one program. 8 heads x 128 numbers x 2 bytes are 2 KB: 4 warps move 16 bytes a thread.
HEAD_TILE = 8
NUM_WARPS = 4
# Between a product and attention it may begin early with more rows than others: its programs are small and soon gone.
MOST_EARLY_ROWS = 256


def rotary_and_cache_reference(
    qkv: torch.Tensor,
    cos_sin: torch.Tensor,
    positions: torch.Tensor,
    slot_mapping: torch.Tensor,
    kv_cache: torch.Tensor,
    num_heads: int,
    norms: tuple[torch.Tensor, torch.Tensor] | None = None,
    eps: float = 1e-6,
    scales: KVScales = UNSCALED,
) -> None:
    """What the kernel does, in plain PyTorch. Arguments as in `rotary_and_cache`."""
    _, block_size, num_kv_heads, head_dim = kv_cache.shape[1:]
    tokens = torch.nonzero(slot_mapping >= 0).flatten()
    heads = qkv[tokens].view(len(tokens), -1, head_dim).to(cos_sin.dtype)  # (real tokens, all heads, head_dim)
    query, key, value = heads.split((num_heads, num_kv_heads, num_kv_heads), dim=1)
    if norms is not None:
        query = query * torch.rsqrt(query.square().mean(-1, keepdim=True) + eps) * norms[0].to(query.dtype)
        key = key * torch.rsqrt(key.square().mean(-1, keepdim=True) + eps) * norms[1].to(key.dtype)
    turned = torch.cat((query, key), dim=1)
    cos, sin = cos_sin[positions[tokens]].unsqueeze(1).chunk(2, dim=-1)  # (real tokens, 1, head_dim / 2)
    first, second = turned.chunk(2, dim=-1)
    turned = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
    qkv[tokens, : turned[0].numel()] = turned.flatten(1).to(qkv.dtype)
    page_of_token, offset_in_page = slot_mapping[tokens] // block_size, slot_mapping[tokens] % block_size
    key = turned[:, num_heads:]
    kv_cache[0, page_of_token, offset_in_page] = into_cache_reference(key, kv_cache.dtype, scales.key)
    kv_cache[1, page_of_token, offset_in_page] = into_cache_reference(value, kv_cache.dtype, scales.value)


@jit
def rotary_and_cache_kernel(
    qkv_ptr,
    cos_sin_ptr,
    positions_ptr,
    slot_mapping_ptr,
    key_cache_ptr,
    value_cache_ptr,
    query_norm_ptr,
    key_norm_ptr,
    eps,
    inverse_key_scale,
    inverse_value_scale,
    qkv_token_stride,
    page_stride,
    offset_stride,
    block_size: tl.constexpr,
    num_heads: tl.constexpr,
    num_kv_heads: tl.constexpr,
    head_dim: tl.constexpr,
    half_padded: tl.constexpr,
    head_tile: tl.constexpr,
    has_norm: tl.constexpr,
    fp8_limit: tl.constexpr,
    early: tl.constexpr,
):
    """A tile of heads of one token; 4 query heads and 2 KV heads in tiles of 4:

        token t    [ q0 q1 q2 q3 | k0 k1 v0 v1 ]        q: norm, rotate, back in place
                     program 0     program 1            k: norm, rotate, back in place and into the cache
                                                        v: into the cache
        a head     [ first half | second half ]         number i turns together with number i + head_dim / 2

    All heads of a tile go through the same arithmetic; masks decide where results land.
    """
    begin_early(early)
    wait_for_earlier(early)
    token = tl.program_id(0).to(tl.int64)
    # All that hangs on no other load is asked for before the first number is looked at.
    slot = tl.load(slot_mapping_ptr + token)
    position = tl.load(positions_ptr + token)
    head = tl.program_id(1) * head_tile + tl.arange(0, head_tile)
    half: tl.constexpr = head_dim // 2
    dim = tl.arange(0, half_padded)
    is_dim = dim < half
    is_head = head < num_heads + 2 * num_kv_heads
    is_turned = head < num_heads + num_kv_heads
    is_query = head < num_heads

    cell = (head * head_dim)[:, None] + dim[None, :]  # (head_tile, half_padded), of the first half
    is_cell = is_head[:, None] & is_dim[None, :]
    row = qkv_ptr + token * qkv_token_stride
    first_raw = tl.load(row + cell, mask=is_cell, other=0.0)
    second_raw = tl.load(row + half + cell, mask=is_cell, other=0.0)
    if slot < 0:  # padding
        return
    first, second = first_raw.to(tl.float32), second_raw.to(tl.float32)

    if has_norm:
        squares = tl.sum(first * first + second * second, 1)  # (head_tile,)
        scale = tl.rsqrt(squares / head_dim + eps)[:, None]
        query_first = tl.load(query_norm_ptr + dim, mask=is_dim, other=0.0).to(tl.float32)
        query_second = tl.load(query_norm_ptr + half + dim, mask=is_dim, other=0.0).to(tl.float32)
        key_first = tl.load(key_norm_ptr + dim, mask=is_dim, other=0.0).to(tl.float32)
        key_second = tl.load(key_norm_ptr + half + dim, mask=is_dim, other=0.0).to(tl.float32)
        first = first * scale * tl.where(is_query[:, None], query_first[None, :], key_first[None, :])
        second = second * scale * tl.where(is_query[:, None], query_second[None, :], key_second[None, :])

    angles = cos_sin_ptr + position * head_dim + dim
    cos = tl.load(angles, mask=is_dim, other=0.0)[None, :]
    sin = tl.load(angles + half, mask=is_dim, other=0.0)[None, :]
    turned_first = first * cos - second * sin
    turned_second = second * cos + first * sin

    is_turned_cell = is_cell & is_turned[:, None]
    tl.store(row + cell, turned_first.to(qkv_ptr.dtype.element_ty), mask=is_turned_cell)
    tl.store(row + half + cell, turned_second.to(qkv_ptr.dtype.element_ty), mask=is_turned_cell)

    page_of_token = slot // block_size
    offset_in_page = slot % block_size
    cache_row = page_of_token * page_stride + offset_in_page * offset_stride
    cache_type: tl.constexpr = key_cache_ptr.dtype.element_ty
    key_cell = ((head - num_heads) * head_dim)[:, None] + dim[None, :]
    is_key_cell = is_turned_cell & (head >= num_heads)[:, None]
    key_row = key_cache_ptr + cache_row
    tl.store(key_row + key_cell, into_cache(turned_first, cache_type, inverse_key_scale, fp8_limit), mask=is_key_cell)
    key_second_half = into_cache(turned_second, cache_type, inverse_key_scale, fp8_limit)
    tl.store(key_row + half + key_cell, key_second_half, mask=is_key_cell)

    value_cell = ((head - num_heads - num_kv_heads) * head_dim)[:, None] + dim[None, :]
    is_value_cell = is_cell & (head >= num_heads + num_kv_heads)[:, None]
    value_row = value_cache_ptr + cache_row
    first_half = into_cache(first_raw, cache_type, inverse_value_scale, fp8_limit)
    second_half = into_cache(second_raw, cache_type, inverse_value_scale, fp8_limit)
    tl.store(value_row + value_cell, first_half, mask=is_value_cell)
    tl.store(value_row + half + value_cell, second_half, mask=is_value_cell)


def rotary_and_cache(
    qkv: torch.Tensor,
    cos_sin: torch.Tensor,
    positions: torch.Tensor,
    slot_mapping: torch.Tensor,
    kv_cache: torch.Tensor,
    num_heads: int,
    norms: tuple[torch.Tensor, torch.Tensor] | None = None,
    eps: float = 1e-6,
    scales: KVScales = UNSCALED,
    next_reads_ahead: bool = False,
) -> None:
    """Norm and rotate query and key in place, and write keys and values into their pages.

    Args:
        qkv: (tokens, (num_heads + 2 * num_kv_heads) * head_dim), a projection's output.
        cos_sin: (positions, head_dim) float32: half a row of cosines, then half a row of sines.
        positions: (tokens,) int64, rows of that table.
        slot_mapping: (tokens,) int64; -1 is padding, which is left as it is. No slot may occur twice.
        kv_cache: (2, num_blocks, block_size, num_kv_heads, head_dim).
        num_heads: Query heads.
        norms: Weights of query's and key's norm, (head_dim,) each; None where the model has none.
        eps: Of the norm.
        scales: What the numbers of an FP8 cache are multiplied with when they are read.
        next_reads_ahead: The kernel behind has something to do before this one has begun to: it may be brought up then.

    Raises:
        ValueError: Shapes, dtypes or strides do not belong together.
    """
    _, block_size, num_kv_heads, head_dim = kv_cache.shape[1:]
    if qkv.shape[1] != (num_heads + 2 * num_kv_heads) * head_dim or qkv.stride(-1) != 1:
        raise ValueError(
            f"qkv {tuple(qkv.shape)} must have contiguous rows of {num_heads} + 2 * {num_kv_heads} heads x {head_dim}"
        )
    if cos_sin.dtype != torch.float32 or cos_sin.shape[1:] != (head_dim,) or not cos_sin.is_contiguous():
        raise ValueError(f"cos_sin must be contiguous float32 of {head_dim} columns, got {cos_sin.dtype}")
    if positions.dtype != torch.int64 or slot_mapping.dtype != torch.int64:
        raise ValueError(f"positions and slot_mapping must be int64, got {positions.dtype} and {slot_mapping.dtype}")
    if head_dim % 2 or kv_cache.stride()[3:] != (head_dim, 1):
        raise ValueError(f"a head must have an even size, and the heads of a token be contiguous: {kv_cache.stride()}")
    if len(qkv) == 0:
        return
    query_norm, key_norm = (qkv, qkv) if norms is None else norms  # never read without norms
    grid = (len(qkv), cdiv(num_heads + 2 * num_kv_heads, HEAD_TILE))
    rotary_and_cache_kernel[grid](
        qkv,
        cos_sin,
        positions,
        slot_mapping,
        kv_cache[0],
        kv_cache[1],
        query_norm,
        key_norm,
        eps,
        1.0 / scales.key,
        1.0 / scales.value,
        qkv.stride(0),
        kv_cache.stride(1),
        kv_cache.stride(2),
        block_size=block_size,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        half_padded=next_power_of_2(head_dim // 2),
        head_tile=HEAD_TILE,
        has_norm=norms is not None,
        fp8_limit=cache_limit(kv_cache.dtype),
        num_warps=NUM_WARPS,
        **early_launch(qkv.device, len(qkv), AT_ITS_START if next_reads_ahead else AFTER_ITS_WAIT, MOST_EARLY_ROWS),
    )
