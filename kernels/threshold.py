"""Owns what min_p, top_k and top_p keep of a row of scores, without sorting it.

    kept = t with score[t] >= max + log(min_p),  of these the top_k highest,
           of these the fewest, highest first, that hold top_p of what these hold together

That is always "everything from some score on", so that score is searched for, in the *keys* of the scores: integers
that are ordered as the floats are. Each look at the row narrows the range 16-fold, so 8 looks find it among 2**32:

    keys     lower                                             upper
             |----p1----p2----p3----p4----p5- ... ----p15------|      measure(p) = how many scores, or how much of the
                         '---- new range -'                           probability, lie at p or above; it falls with p

Ties: all scores equal to the k-th highest are kept, like vLLM's; of those at the edge of top_p just as many as are
needed, those of the lowest token ids first.

Upstream: vllm/v1/sample/ops/topk_topp_triton.py::apply_top_k_top_p_triton (the same task by another search).
"""

from __future__ import annotations

import torch

from minivllm.kernels.scores import SamplingParameters, load_scores
from minivllm.kernels.triton_guard import jit, tl

PIVOTS = 16
# 16 pivots x 1024 tokens are 16384 sums: 32 registers for each of 512 threads.
TILE, NUM_WARPS = 1024, 16


def kept_reference(scores: torch.Tensor, slot: int, parameters: SamplingParameters) -> torch.Tensor:
    """Which tokens min_p, top_k and top_p of a slot keep: (vocab_size,) bool."""
    is_kept = scores >= scores.max() + parameters.min_p[slot].log()
    top_k, top_p = int(parameters.top_k[slot]), float(parameters.top_p[slot])
    if 0 < top_k < len(scores):
        is_kept &= scores >= scores.sort(descending=True).values[top_k - 1]
    if top_p < 1:
        ordered, tokens = scores.masked_fill(~is_kept, float("-inf")).sort(descending=True, stable=True)
        probability = ordered.double().softmax(dim=-1)
        before = probability.cumsum(dim=-1) - probability
        is_kept &= torch.zeros_like(is_kept).scatter_(0, tokens, before < top_p)
    return is_kept


@jit
def key_of(scores):
    """Integers that are ordered as the floats are: of negative ones, all bits but the sign are turned over."""
    bits = scores.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@jit
def score_of(key):
    """The way back."""
    return (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@jit
def measure(
    logits_row_ptr, history_row_ptr, vocab_size, repetition, frequency, presence, temperature,
    pivots, floor_key, highest, by_mass: tl.constexpr, has_history: tl.constexpr, tile: tl.constexpr,
):  # fmt: skip
    """How many scores, or how much of their probability (not normalised), lie at each pivot or above: (PIVOTS,)."""
    acc = tl.zeros([pivots.shape[0], tile], tl.float32)
    for start in range(0, vocab_size, tile):
        token = start + tl.arange(0, tile)
        scores = load_scores(
            logits_row_ptr,
            history_row_ptr,
            token,
            vocab_size,
            repetition,
            frequency,
            presence,
            temperature,
            has_history,
        )
        key = key_of(scores)
        weight = tl.exp(scores - highest) if by_mass else tl.where(token < vocab_size, 1.0, 0.0)
        weight = tl.where(key >= floor_key, weight, 0.0)
        acc += tl.where(key[None, :] >= pivots[:, None], weight[None, :], 0.0)
    return tl.sum(acc, 1)


@jit
def search(
    logits_row_ptr, history_row_ptr, vocab_size, repetition, frequency, presence, temperature,
    floor_key, highest, target, by_mass: tl.constexpr, has_history: tl.constexpr, tile: tl.constexpr,
    num_pivots: tl.constexpr,
):  # fmt: skip
    """The highest key at or above which there is `target`, a number or a mass; `floor_key` if there never is."""
    lower = floor_key.to(tl.int64)
    upper = key_of(highest).to(tl.int64) + 1
    step = tl.arange(0, num_pivots)
    while upper - lower > 1:
        width = upper - lower
        pivots = (lower + ((width * step) >> 4)).to(tl.int32)  # >> 4: / num_pivots
        reached = measure(
            logits_row_ptr, history_row_ptr, vocab_size, repetition, frequency, presence, temperature,
            pivots, floor_key, highest, by_mass, has_history, tile,
        ) >= target  # fmt: skip
        last = tl.maximum(tl.sum(reached.to(tl.int32), 0), 1)  # pivots that reach it; the first is `lower` itself
        upper = tl.where(last == num_pivots, upper, lower + ((width * last) >> 4))
        lower = lower + ((width * (last - 1)) >> 4)
    return lower.to(tl.int32)


@jit
def threshold_kernel(
    threshold_ptr,
    last_tie_ptr,
    row_best_ptr,
    logits_ptr,
    history_ptr,
    temperature_ptr,
    min_p_ptr,
    top_k_ptr,
    top_p_ptr,
    slot_ptr,
    repetition_ptr,
    frequency_ptr,
    presence_ptr,
    vocab_size,
    logits_stride,
    history_stride,
    has_history: tl.constexpr,
    num_pivots: tl.constexpr,
    tile: tl.constexpr,
):
    """What one row keeps: scores above the threshold, and those equal to it up to the token `last_tie`.

    The row's best sum, which the programs of `draw_kernel` share, is not known yet.
    """
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slot_ptr + row)
    if slot < 0:
        return
    temperature = tl.load(temperature_ptr + slot)
    min_p = tl.load(min_p_ptr + slot)
    top_k = tl.load(top_k_ptr + slot)
    top_p = tl.load(top_p_ptr + slot)
    tl.store(threshold_ptr + row, float("-inf"))
    tl.store(last_tie_ptr + row, vocab_size)
    tl.store(row_best_ptr + row, float("-inf"))
    is_cut = (min_p > 0.0) | (top_k > 0) | (top_p < 1.0)
    if (temperature <= 0.0) | (is_cut == 0):
        return
    repetition = tl.load(repetition_ptr + slot)
    frequency = tl.load(frequency_ptr + slot)
    presence = tl.load(presence_ptr + slot)
    logits_row = logits_ptr + row * logits_stride
    history_row = history_ptr + slot.to(tl.int64) * history_stride

    best = tl.full([tile], float("-inf"), tl.float32)
    for start in range(0, vocab_size, tile):
        token = start + tl.arange(0, tile)
        best = tl.maximum(
            best,
            load_scores(
                logits_row, history_row, token, vocab_size, repetition, frequency, presence, temperature, has_history
            ),
        )
    highest = tl.max(best, 0)
    if (highest == float("inf")) | (highest == float("-inf")):  # a broken row; `finish_kernel` will say so
        return

    floor = highest + tl.log(min_p)  # log(0) is -inf: everything
    floor_key = key_of(floor)
    if (top_k > 0) & (top_k < vocab_size):
        floor_key = search(
            logits_row, history_row, vocab_size, repetition, frequency, presence, temperature,
            floor_key, highest, top_k.to(tl.float32), False, has_history, tile, num_pivots,
        )  # fmt: skip
    if top_p < 1.0:
        everything = tl.zeros([num_pivots], tl.int32) + floor_key
        total = tl.max(
            measure(
                logits_row, history_row, vocab_size, repetition, frequency, presence, temperature,
                everything, floor_key, highest, True, has_history, tile,
            ),
            0,
        )  # fmt: skip
        target = top_p * total
        edge_key = search(
            logits_row, history_row, vocab_size, repetition, frequency, presence, temperature,
            floor_key, highest, target, True, has_history, tile, num_pivots,
        )  # fmt: skip
        above = tl.max(
            measure(
                logits_row, history_row, vocab_size, repetition, frequency, presence, temperature,
                everything * 0 + edge_key + 1, floor_key, highest, True, has_history, tile,
            ),
            0,
        )  # fmt: skip
        # So many of the tokens at the edge are needed; find the last of them.
        needed = tl.maximum(tl.ceil((target - above) / tl.exp(score_of(edge_key) - highest)), 1.0)
        seen = 0.0
        last_tie = vocab_size
        for start in range(0, vocab_size, tile):
            token = start + tl.arange(0, tile)
            scores = load_scores(
                logits_row, history_row, token, vocab_size, repetition, frequency, presence, temperature, has_history
            )
            is_tie = tl.where(key_of(scores) == edge_key, 1.0, 0.0)
            number = seen + tl.cumsum(is_tie, 0)
            is_last = (is_tie > 0.0) & (number == needed)
            last_tie = tl.minimum(last_tie, tl.min(tl.where(is_last, token, vocab_size), 0))
            seen += tl.sum(is_tie, 0)
        tl.store(last_tie_ptr + row, last_tie)
        floor_key = edge_key
    tl.store(threshold_ptr + row, score_of(floor_key))
