"""Owns the way of a learner's attention into the running engine: every decode token of every layer goes through it.

The engine's backend on a CPU (`minivllm/attention/torch_sdpa.py`) computes decode tokens by `_decode`, from what
`_decodes` has prepared once a step. Both are replaced. Prompts still go through the engine's own code, so that the
learner's part is compared token by token with what the same engine says without it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from minivllm.attention.backend import AttentionMetadata

# Gets query (requests, heads, head_dim), keys and values (slots, kv_heads, head_dim), block_table (requests, blocks),
# seq_lens (requests,) and the block size; returns (requests, heads, head_dim). All in float32, tables in int32.
Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, int], torch.Tensor]


@dataclass(frozen=True, slots=True)
class DecodeTokens:
    """The decode tokens of a step: where they stand in the flat batch, and where their requests' tokens are."""

    tokens: torch.Tensor  # (requests,)
    block_table: torch.Tensor  # (requests, blocks)
    seq_lens: torch.Tensor  # (requests,)
    block_size: int


def decode_with(attend: Attend) -> dict[str, Any]:
    """What takes the place of which symbol, so that decode tokens go through `attend`."""

    def decodes(
        metadata: AttentionMetadata, requests: NDArray[np.intp], window: int | None, *where: Any
    ) -> DecodeTokens:
        assert window is None, "the built-in model has no window"
        return DecodeTokens(
            tokens=torch.from_numpy(metadata.query_start_loc[requests].astype(np.int64)),
            block_table=torch.from_numpy(np.ascontiguousarray(metadata.block_table[requests], dtype=np.int32)),
            seq_lens=torch.from_numpy(metadata.seq_lens[requests].astype(np.int32)),
            block_size=metadata.block_size,
        )

    def decode(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, group: DecodeTokens) -> torch.Tensor:
        out = attend(
            query.float().contiguous(),
            keys.float().contiguous(),
            values.float().contiguous(),
            group.block_table,
            group.seq_lens,
            group.block_size,
        )
        return out.to(query.dtype)

    home = "minivllm.attention.torch_sdpa"
    return {f"{home}:_decodes": decodes, f"{home}:_decode": decode}


def dense_attention(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    block_size: int,
) -> torch.Tensor:
    """The reference: each request's keys and values are gathered, then plain attention. Arguments: see `Attend`."""
    group = query.shape[1] // keys.shape[1]
    out = torch.empty_like(query)
    for request, length in enumerate(seq_lens.tolist()):
        token = torch.arange(length)
        slots = block_table[request, token // block_size].long() * block_size + token % block_size
        key = keys[slots].repeat_interleave(group, dim=1)  # (tokens, heads, head_dim)
        value = values[slots].repeat_interleave(group, dim=1)
        scores = torch.einsum("hd,thd->ht", query[request], key) * query.shape[-1] ** -0.5
        out[request] = torch.einsum("ht,thd->hd", scores.softmax(dim=-1), value)
    return out
