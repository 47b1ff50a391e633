"""Attention of one new token per request over its pages. The engine decodes with your kernel, in every layer."""

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
    """One query head, tl.program_id(1), of one request, tl.program_id(0)."""
    raise NotImplementedError("read the context tile by tile")


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
