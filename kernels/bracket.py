"""Owns the guess between which two scores the last kept one lies, from a sample of a row.

    tokens of the row    |---------------------------------|     every 18th of 151,936, say
    sampled               ^     ^     ^     ^     ^     ^

    scores, ascending    ... ----[low ====== edge ==== high)---- ...
                         left out     candidates           kept

The edge is where the tokens below weigh as much as is left out in all: n - k tokens, or (1 - top_p) of the probability.
What the row has below a score x is estimated from the sample, and off by no more than 4.5 standard deviations:

    below(x)     = scale * (sum of the sampled weights below x)           scale = tokens of the row / sampled ones
    variance(x) <= scale * weight(x) * below(x) - below(x)**2 / sampled   since no weight below x is larger than x's

    low  = the highest x with below(x) + deviations + 10 sampled tokens' weight <= left out     for what no sample saw
    high = the lowest x with  below(x) - deviations >= left out                                 infinity if none is

The few tokens that hold most of a peaked row need not be in the sample, because they are not below the edge. A guess
costs nothing if it is wrong but time: the masses and counts of the whole row tell whether the edge is inside.
"""

from __future__ import annotations

from minivllm.kernels.scores import load_scores
from minivllm.kernels.triton_guard import jit, tl

# A wrong guess happens once in 150,000 rows.
_DEVIATIONS, _UNSEEN = tl.constexpr(4.5), tl.constexpr(10.0)
# Halvings of the range of scores: to 1 / 4096 of it. Below exp(-64) of the best nothing counts.
_HALVINGS, _WIDEST = tl.constexpr(12), tl.constexpr(64.0)


@jit
def halve(
    scores, weights, lowest, highest_sampled, highest, left_out, scale, num_sampled,
    by_mass: tl.constexpr,
):  # fmt: skip
    """Both scores of the bracket: each is searched for by halving a range."""
    low = float("-inf")
    high = float("inf")
    low_from = lowest
    low_to = highest_sampled
    high_from = lowest
    high_to = highest_sampled
    for _ in range(_HALVINGS):
        x = (low_from + low_to) * 0.5
        y = (high_from + high_to) * 0.5
        below_x = tl.sum(tl.where(scores < x, weights, 0.0), 0) * scale
        below_y = tl.sum(tl.where(scores < y, weights, 0.0), 0) * scale
        weight_x = tl.exp(x - highest) if by_mass else 1.0
        weight_y = tl.exp(y - highest) if by_mass else 1.0
        variance_x = tl.maximum(scale * weight_x * below_x - below_x * below_x / num_sampled, 0.0)
        variance_y = tl.maximum(scale * weight_y * below_y - below_y * below_y / num_sampled, 0.0)
        is_low = below_x + _DEVIATIONS * tl.sqrt(variance_x) + _UNSEEN * scale * weight_x <= left_out
        is_high = below_y - _DEVIATIONS * tl.sqrt(variance_y) >= left_out
        low = tl.where(is_low, x, low)
        low_from = tl.where(is_low, x, low_from)
        low_to = tl.where(is_low, low_to, x)
        high = tl.where(is_high, y, high)
        high_from = tl.where(is_high, high_from, y)
        high_to = tl.where(is_high, y, high_to)
    return low, high


@jit
def guess_bracket(
    logits_row_ptr, history_row_ptr, vocab_size, repetition, frequency, presence, temperature,
    top_k, top_p, floor, highest, total, has_history: tl.constexpr, tile: tl.constexpr,
):  # fmt: skip
    """Between which scores the last kept one lies: [low, high).

    With top_k and top_p, both edges are in it: low is a guess for the first, high one for the second.
    """
    low = float("-inf")
    high = float("inf")
    if vocab_size > tile:  # all tokens of a smaller vocabulary are candidates
        token = (tl.arange(0, tile).to(tl.int64) * vocab_size // tile).to(tl.int32)
        scores = load_scores(
            logits_row_ptr, history_row_ptr, token, vocab_size, repetition, frequency, presence, temperature,
            has_history,
        )  # fmt: skip
        finite = scores > float("-inf")
        highest_sampled = tl.max(scores, 0)
        lowest = tl.maximum(tl.min(tl.where(finite, scores, float("inf")), 0), highest - _WIDEST)
        if highest_sampled >= lowest:
            scale = vocab_size / (tile * 1.0)
            if (top_k > 0) & (top_k < vocab_size):
                left_out = (vocab_size - top_k) * 1.0
                ones = tl.full([tile], 1.0, tl.float32)
                low, high = halve(
                    scores, ones, lowest, highest_sampled, highest, left_out, scale, tile, False
                )  # fmt: skip
            # Where top_k's edge may be as high as the best token, so may top_p's of what it keeps.
            if (top_p < 1.0) & ((top_k <= 0) | (top_k >= vocab_size) | (high < float("inf"))):
                weights = tl.exp(scores - highest)
                first = tl.maximum(floor, tl.where(high < float("inf"), high, float("-inf")))
                out_before = tl.sum(tl.where(scores < first, weights, 0.0), 0) * scale
                left_out = out_before + (1.0 - top_p) * tl.maximum(total - out_before, 0.0)
                low_of_p, high = halve(
                    scores, weights, lowest, highest_sampled, highest, left_out, scale, tile, True
                )  # fmt: skip
                low = tl.where((top_k > 0) & (top_k < vocab_size), low, low_of_p)
    return low, high
