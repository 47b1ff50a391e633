"""From logits to a drawn token. Your functions take the place of the sampler's."""

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
    raise NotImplementedError("sort, add up, cut, and put everything back to its place")


def draw(logits: torch.Tensor, exponential: torch.Tensor) -> torch.Tensor:
    """One token a row, with probability softmax(logits).

    Args:
        logits: (rows, vocab); -inf is never drawn.
        exponential: (rows, vocab), drawn from Exp(1).

    Returns:
        (rows,) int64
    """
    raise NotImplementedError("the largest of logit + noise")
