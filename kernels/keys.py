"""Owns the integers that stand for scores in a search: their order, and their probability.

    key    32 bits, ordered as the scores are: between two neighbouring keys lies no score
    mass   2**40 * exp(score - highest score of the row), rounded down, 64 bits

Sums of integers are the same in any order. So what is kept of a row is the same however many programs share it, and
whatever else is in the batch. A mass is as exact as the exponential, about 1 in 10**6 of itself, and 2**-40 of the most
likely token's; 2**23 of the largest fit into 64 bits.
"""

from __future__ import annotations

from minivllm.kernels.triton_guard import jit, tl

_ONE = tl.constexpr(float(2**40))


@jit
def key_of(scores):
    """Integers that are ordered as the floats are: of negative ones, all bits but the sign are turned over. int32"""
    bits = tl.where(scores == 0.0, 0.0, scores).to(tl.int32, bitcast=True)  # -0 is 0
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@jit
def score_of(key):
    """The way back. float32"""
    return (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@jit
def mass_of(scores, highest):
    """Probabilities, not normalised. int64"""
    return (tl.exp(scores - highest) * _ONE).to(tl.int64)
