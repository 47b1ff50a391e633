"""Attention of one new token per request over its pages."""

from __future__ import annotations

import torch

from minivllm.kernels.triton_guard import jit, tl

TILE = 16


@jit
def paged_decode_kernel(
    out_ptr,
    query_ptr,
    key_ptr,
    value_ptr,
    block_table_ptr,
    seq_lens_ptr,
    scale,
    table_stride,
    kv_heads: tl.constexpr,
    block_size: tl.constexpr,
    group: tl.constexpr,
    head_dim: tl.constexpr,
    tile: tl.constexpr,
):
    """One query head of one request."""
    request = tl.program_id(0)
    head = tl.program_id(1)
    seq_len = tl.load(seq_lens_ptr + request)
    kv_head = head // group
    dim = tl.arange(0, head_dim)
    place = tl.arange(0, tile)
    row = (request * tl.num_programs(1) + head) * head_dim
    query = tl.load(query_ptr + row + dim)  # (head_dim,)

    highest = float("-inf")
    total = 0.0
    acc = tl.zeros([head_dim], tl.float32)
    for start in range(0, seq_len, tile):
        token = start + place
        is_real = token < seq_len
        page = tl.load(block_table_ptr + request * table_stride + token // block_size, mask=is_real, other=0)
        slot = page * block_size + token % block_size
        cell = (slot.to(tl.int64) * kv_heads + kv_head)[:, None] * head_dim + dim[None, :]
        key = tl.load(key_ptr + cell, mask=is_real[:, None], other=0.0)  # (tile, head_dim)
        value = tl.load(value_ptr + cell, mask=is_real[:, None], other=0.0)

        scores = tl.sum(key * query[None, :], 1) * scale  # (tile,)
        scores = tl.where(is_real, scores, float("-inf"))
        new = tl.maximum(highest, tl.max(scores, 0))
        shrink = tl.exp(highest - new)
        weights = tl.exp(scores - new)  # (tile,)
        total = total * shrink + tl.sum(weights, 0)
        acc = acc * shrink + tl.sum(weights[:, None] * value, 0)
        highest = new
    tl.store(out_ptr + row + dim, acc / total)


def paged_decode(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    block_size: int,
) -> torch.Tensor:
    """Launch the kernel: one program for each request and query head. This is given.

    Args:
        query: (requests, heads, head_dim)
        keys, values: (slots, kv_heads, head_dim)
        block_table: (requests, blocks) pages of each request.
        seq_lens: (requests,) tokens of each request, the new one included.
        block_size: Tokens per page.

    Returns:
        (requests, heads, head_dim)
    """
    requests, heads, head_dim = query.shape
    kv_heads = keys.shape[1]
    out = torch.zeros_like(query)
    paged_decode_kernel[(requests, heads)](
        out,
        query,
        keys,
        values,
        block_table,
        seq_lens,
        head_dim**-0.5,
        block_table.stride(0),
        kv_heads=kv_heads,
        block_size=block_size,
        group=heads // kv_heads,
        head_dim=head_dim,
        tile=TILE,
    )
    return out
