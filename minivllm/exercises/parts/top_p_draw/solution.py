"""From logits to a drawn token."""

from __future__ import annotations

import torch


def keep_top_p(logits: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """Leave the most likely tokens that have top_p together, and the one that crosses the border.

    Args:
        logits: (rows, vocab)
        top_p: (rows, 1), in (0, 1]; 1 keeps everything.

    Returns:
        (rows, vocab): -inf for the tokens that are left out.
    """
    ordered, places = logits.sort(dim=-1, descending=True)  # (rows, vocab)
    probability = ordered.softmax(dim=-1)
    before = probability.cumsum(dim=-1) - probability
    dropped = before >= top_p
    dropped &= top_p < 1  # a sum may round up to 1
    ordered = ordered.masked_fill(dropped, float("-inf"))
    return torch.full_like(logits, float("-inf")).scatter(-1, places, ordered)


def draw(logits: torch.Tensor, exponential: torch.Tensor) -> torch.Tensor:
    """One token a row, with probability softmax(logits).

    Args:
        logits: (rows, vocab); -inf is never drawn.
        exponential: (rows, vocab), drawn from Exp(1).

    Returns:
        (rows,) int64
    """
    return (logits - exponential.log()).argmax(dim=-1)
