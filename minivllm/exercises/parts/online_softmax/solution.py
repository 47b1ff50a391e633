"""Attention in pieces: sums are kept relative to the highest score so far, and shrink when a higher one comes."""

from __future__ import annotations

import math

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
    highest = scores.max()
    weights = torch.exp(scores - highest)  # (n,)
    return float(highest), float(weights.sum()), weights @ values


def merge(a: Partial, b: Partial) -> Partial:
    """Two pieces as one.

    Args:
        a, b: What `attend_piece` or `merge` gave; a piece of no tokens is (-inf, 0.0, zeros).
    """
    highest_a, total_a, out_a = a
    highest_b, total_b, out_b = b
    highest = max(highest_a, highest_b)
    if highest == -math.inf:
        return a  # neither has a token
    weight_a = math.exp(highest_a - highest)
    weight_b = math.exp(highest_b - highest)
    total = total_a * weight_a + total_b * weight_b
    out = out_a * weight_a + out_b * weight_b  # (head_dim,)
    return highest, total, out
