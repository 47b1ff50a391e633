"""Attention in pieces. The engine computes every decode token of every layer and head with your functions."""

from __future__ import annotations

import torch

# Highest score, sum of exp(score - highest), and sum of exp(score - highest) * value: (head_dim,).
Partial = tuple[float, float, torch.Tensor]


def attend_piece(scores: torch.Tensor, values: torch.Tensor) -> Partial:
    """Attention over one piece of a context, not yet divided.

    Args:
        scores: (n,)
        values: (n, head_dim)

    Returns:
        The highest score, the sum, and the weighted sum of values (head_dim,).
    """
    raise NotImplementedError("everything relative to the highest score of the piece")


def merge(a: Partial, b: Partial) -> Partial:
    """Two pieces as one.

    Args:
        a, b: What `attend_piece` or `merge` gave; a piece of no tokens is (-inf, 0.0, zeros).
    """
    raise NotImplementedError("shrink what was summed up relative to a lower score")
