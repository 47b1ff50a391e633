"""Owns the search through a whole row, token by token: what is left where candidates do not suffice.

That is where more tokens than there is room for lie between the scores of the bracket, most often because they are
equal, or where the bracket was a wrong guess. It takes a millisecond, and finds what the candidates would have given.
"""

from __future__ import annotations

from minivllm.kernels.keys import key_of, mass_of, score_of
from minivllm.kernels.scores import load_scores
from minivllm.kernels.triton_guard import jit, tl


@jit
def measure_row(
    logits_row_ptr, history_row_ptr, vocab_size, repetition, frequency, presence, temperature,
    pivot, highest, by_mass: tl.constexpr, has_history: tl.constexpr, tile: tl.constexpr,
):  # fmt: skip
    """How many tokens, or how much mass, lie at a key or above. int64"""
    acc = tl.zeros([tile], tl.int64)
    for start in range(0, vocab_size, tile):
        token = start + tl.arange(0, tile)
        scores = load_scores(
            logits_row_ptr, history_row_ptr, token, vocab_size, repetition, frequency, presence, temperature,
            has_history,
        )  # fmt: skip
        amount = mass_of(scores, highest) if by_mass else (token < vocab_size).to(tl.int64)
        acc += tl.where(key_of(scores) >= pivot, amount, 0)
    return tl.sum(acc, 0)


@jit
def search_row(
    logits_row_ptr, history_row_ptr, vocab_size, repetition, frequency, presence, temperature,
    floor_key, highest, target, by_mass: tl.constexpr, has_history: tl.constexpr, tile: tl.constexpr,
):  # fmt: skip
    """The highest key at or above which there is `target`; `floor_key` if there never is."""
    lower = floor_key.to(tl.int64)
    upper = key_of(highest).to(tl.int64) + 1
    while upper - lower > 1:
        middle = (lower + upper) >> 1
        reached = measure_row(
            logits_row_ptr, history_row_ptr, vocab_size, repetition, frequency, presence, temperature,
            middle.to(tl.int32), highest, by_mass, has_history, tile,
        ) >= target  # fmt: skip
        lower = tl.where(reached, middle, lower)
        upper = tl.where(reached, upper, middle)
    return lower.to(tl.int32)


@jit
def nth_tie_of_row(
    logits_row_ptr, history_row_ptr, vocab_size, repetition, frequency, presence, temperature,
    edge_key, needed, has_history: tl.constexpr, tile: tl.constexpr,
):  # fmt: skip
    """The needed-th token with the score of a key, counted from the lowest token; vocab_size if there are fewer."""
    seen = tl.zeros([], tl.int32)
    last_tie = tl.zeros([], tl.int32) + vocab_size
    for start in range(0, vocab_size, tile):
        token = start + tl.arange(0, tile)
        scores = load_scores(
            logits_row_ptr, history_row_ptr, token, vocab_size, repetition, frequency, presence, temperature,
            has_history,
        )  # fmt: skip
        is_tie = ((key_of(scores) == edge_key) & (token < vocab_size)).to(tl.int32)
        number = seen + tl.cumsum(is_tie, 0)
        is_nth = (is_tie > 0) & (number == needed)
        last_tie = tl.minimum(last_tie, tl.min(tl.where(is_nth, token, vocab_size), 0))
        seen += tl.sum(is_tie, 0)
    return last_tie


@jit
def settle_by_row(
    logits_row_ptr, history_row_ptr, vocab_size, repetition, frequency, presence, temperature,
    top_k, top_p, floor, highest, has_history: tl.constexpr, tile: tl.constexpr,
):  # fmt: skip
    """The key of the last score that is kept, and the last token of those that have it."""
    edge_key = key_of(floor)
    last_tie = tl.zeros([], tl.int32) + vocab_size
    if (top_k > 0) & (top_k < vocab_size):
        edge_key = search_row(
            logits_row_ptr, history_row_ptr, vocab_size, repetition, frequency, presence, temperature,
            edge_key, highest, top_k, False, has_history, tile,
        )  # fmt: skip
    if top_p < 1.0:
        total = measure_row(
            logits_row_ptr, history_row_ptr, vocab_size, repetition, frequency, presence, temperature,
            edge_key, highest, True, has_history, tile,
        )  # fmt: skip
        target = tl.maximum(tl.ceil(top_p.to(tl.float64) * total.to(tl.float64)).to(tl.int64), 1)
        edge_key = search_row(
            logits_row_ptr, history_row_ptr, vocab_size, repetition, frequency, presence, temperature,
            edge_key, highest, target, True, has_history, tile,
        )  # fmt: skip
        above = measure_row(
            logits_row_ptr, history_row_ptr, vocab_size, repetition, frequency, presence, temperature,
            edge_key + 1, highest, True, has_history, tile,
        )  # fmt: skip
        needed = tl.cdiv(target - above, tl.maximum(mass_of(score_of(edge_key), highest), 1))
        last_tie = nth_tie_of_row(
            logits_row_ptr, history_row_ptr, vocab_size, repetition, frequency, presence, temperature,
            edge_key, needed, has_history, tile,
        )  # fmt: skip
    return edge_key, last_tie
