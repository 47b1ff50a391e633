"""How attention in pieces gets into the engine: contexts are cut into pieces of five tokens, which are merged."""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any

import torch

from minivllm.exercises.decode_seam import decode_with

PIECE = 5


def seam(part: ModuleType) -> dict[str, Any]:
    """What takes the place of which symbol."""

    def attend(
        query: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        block_table: torch.Tensor,
        seq_lens: torch.Tensor,
        block_size: int,
    ) -> torch.Tensor:
        group = query.shape[1] // keys.shape[1]
        out = torch.empty_like(query)
        for request, length in enumerate(seq_lens.tolist()):
            token = torch.arange(length)
            slots = block_table[request, token // block_size].long() * block_size + token % block_size
            for head in range(query.shape[1]):
                key, value = keys[slots, head // group], values[slots, head // group]  # (tokens, head_dim)
                scores = key @ query[request, head] * query.shape[-1] ** -0.5  # (tokens,)
                out[request, head] = whole(part, scores, value)
        return out

    return decode_with(attend)


def whole(part: ModuleType, scores: torch.Tensor, values: torch.Tensor, piece: int = PIECE) -> torch.Tensor:
    """Attention over a context in pieces: (head_dim,)."""
    partial = (-math.inf, 0.0, torch.zeros(values.shape[1]))
    for start in range(0, len(scores), piece):
        here = part.attend_piece(scores[start : start + piece], values[start : start + piece])
        partial = part.merge(partial, here)
    return partial[2] / partial[1]
