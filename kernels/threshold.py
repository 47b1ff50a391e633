"""Owns what min_p, top_k and top_p keep of a row of scores, without sorting it.

    kept = t with score[t] >= max + log(min_p),  of these the top_k highest,
           of these the fewest, highest first, that hold top_p of what these hold together

That is always "everything from some score on", the edge. Two launches find it, of many programs a row; in each, the
program that ends last goes on alone with what the others found:

    1. survey     every program: the maximum of its chunk, and its sum of exp(score)
                  the last one:  maximum and sum of the row, and from a sample a bracket around the edge (`bracket`)
    2. collect    every program: the mass at the bracket's upper end or above, and the tokens inside it, the candidates
                  the last one:  halves the range of the candidates' keys until one is left

    keys   left out     |--- candidates: some thousand at most, in registers ---|     kept: their mass and number
           -------------low-------------------edge----------------------------high------------------------------>

Whether the edge is inside is then known exactly; if it is not, or if there are too many candidates, `row_search` looks
through the whole row. Both come to the same, since masses are integers (`keys`).

Ties: all scores equal to the k-th highest are kept, like vLLM's; of those at the edge of top_p just as many as are
needed, those of the lowest token ids first.

Upstream: vllm/v1/sample/ops/topk_topp_triton.py::apply_top_k_top_p_triton (the same task by another search).
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch

from minivllm.kernels.bracket import guess_bracket
from minivllm.kernels.early_launch import AFTER_ITS_WAIT, begin_early, early_launch, wait_for_earlier
from minivllm.kernels.keys import key_of, mass_of, score_of
from minivllm.kernels.row_search import settle_by_row
from minivllm.kernels.scores import SamplingParameters, SamplingState, load_logits, load_scores, to_scores
from minivllm.kernels.triton_guard import cdiv, jit, next_power_of_2, tl

# Tokens of a tile in the first launch, 8 for each of 512 threads, and in the second, whose masses take more registers.
TILE, COLLECT_TILE, NUM_WARPS = 4096, 2048, 16
# Tokens of the sample, and candidates at most: each thread keeps 16 of them in registers.
ROOM = 8192
# About how many programs there are, if rows have so many tiles: two for each processor of an H200. With more, up to 256
# rows, those that have nothing to cut cost more than the others gain: of 64 rows, `sample` took 54 us at a temperature
# and 167 with a top_p with 2,048, and 45 and 142 with 256.
PROGRAMS = 256
# In place of the bracket's lower end: the row needs no search.
_NOTHING = tl.constexpr(float("inf"))
_LOWEST_KEY = tl.constexpr(-(2**31))


class Thresholds(NamedTuple):
    """What each row keeps: scores above the lowest, and those equal to it up to a token. All (rows,)."""

    lowest: torch.Tensor  # float32
    last_tie: torch.Tensor  # int32
    candidates: torch.Tensor  # int32: how many there were; -1 if they did not suffice. Nobody needs it but tests


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
def survey_kernel(
    threshold_ptr,
    last_tie_ptr,
    num_found_ptr,
    bracket_ptr,
    part_best_ptr,
    part_sum_ptr,
    ticket_ptr,
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
    chunk,
    has_history: tl.constexpr,
    tile: tl.constexpr,
    room: tl.constexpr,
    parts_padded: tl.constexpr,
    early: tl.constexpr,
):
    """One chunk of a row; the last program of a row guesses its bracket. Rows that keep all end at once."""
    begin_early(early)
    wait_for_earlier(early)
    part, parts, row = tl.program_id(0), tl.num_programs(0), tl.program_id(1).to(tl.int64)
    slot = tl.load(slot_ptr + row)
    if slot < 0:
        return
    temperature = tl.load(temperature_ptr + slot)
    min_p = tl.load(min_p_ptr + slot)
    top_k = tl.load(top_k_ptr + slot)
    top_p = tl.load(top_p_ptr + slot)
    if part == 0:
        tl.store(threshold_ptr + row, float("-inf"))
        tl.store(last_tie_ptr + row, vocab_size)
        tl.store(bracket_ptr + row * 3, _NOTHING)
        tl.store(num_found_ptr + row, 0)
    is_cut = (min_p > 0.0) | (top_k > 0) | (top_p < 1.0)
    if (temperature <= 0.0) | (is_cut == 0):
        return
    repetition = tl.load(repetition_ptr + slot)
    frequency = tl.load(frequency_ptr + slot)
    presence = tl.load(presence_ptr + slot)
    logits_row = logits_ptr + row * logits_stride
    history_row = history_ptr + slot.to(tl.int64) * history_stride

    best = float("-inf")
    acc = tl.zeros([tile], tl.float32)
    first = part * chunk
    last = tl.minimum(first + chunk, vocab_size)
    ahead = load_logits(logits_row, first + tl.arange(0, tile), last)
    for start in range(first, last, tile):
        token = start + tl.arange(0, tile)
        logits = ahead
        ahead = load_logits(logits_row, token + tile, last)
        scores = to_scores(
            logits, history_row, token, vocab_size, repetition, frequency, presence, temperature, has_history
        )
        new_best = tl.maximum(best, tl.max(scores, 0))
        base = tl.where(new_best == float("-inf"), 0.0, new_best)
        acc = acc * tl.exp(best - base) + tl.exp(scores - base)
        best = new_best
    tl.store(part_best_ptr + row * parts + part, best)
    tl.store(part_sum_ptr + row * parts + part, tl.sum(acc, 0))
    tl.debug_barrier()  # a ticket is drawn when all threads have left their numbers
    if tl.atomic_add(ticket_ptr + row, 1, sem="acq_rel") != parts - 1:
        return
    tl.store(ticket_ptr + row, 0)  # for the next launch
    other = row * parts + tl.arange(0, parts_padded)
    is_part = tl.arange(0, parts_padded) < parts
    best_of_parts = tl.load(part_best_ptr + other, mask=is_part, other=float("-inf"))
    sum_of_parts = tl.load(part_sum_ptr + other, mask=is_part, other=0.0)
    highest = tl.max(best_of_parts, 0)
    if (highest == float("inf")) | (highest == float("-inf")):  # a broken row; `finish_kernel` will say so
        return
    total = tl.sum(sum_of_parts * tl.exp(best_of_parts - highest), 0)
    floor = highest + tl.log(min_p)  # log(0) is -inf: everything
    if ((top_k > 0) & (top_k < vocab_size)) | (top_p < 1.0):
        low, high = guess_bracket(
            logits_row, history_row, vocab_size, repetition, frequency, presence, temperature,
            top_k, top_p, floor, highest, total, has_history, room,
        )  # fmt: skip
        tl.store(bracket_ptr + row * 3, low)
        tl.store(bracket_ptr + row * 3 + 1, high)
        tl.store(bracket_ptr + row * 3 + 2, highest)
    else:
        tl.store(threshold_ptr + row, floor)


@jit
def highest_reaching(keys, amounts, target, lower, upper):
    """The highest key of lower ... upper - 1 at or above which the amounts reach a target, which they do at lower."""
    while upper - lower > 1:
        middle = (lower + upper) >> 1
        reached = tl.sum(tl.where(keys >= middle.to(tl.int32), amounts, 0), 0) >= target
        lower = tl.where(reached, middle, lower)
        upper = tl.where(reached, upper, middle)
    return lower.to(tl.int32)


@jit
def settle(keys, masses, is_complete, num_above, mass_above, total, vocab_size, top_k, top_p, floor_key):
    """The key of the last score that is kept, from the candidates; the lowest key of all stands for none.

    Returns also how many of the tokens with that score are kept, 0 for all of them; and whether the edge is among the
    candidates at all. `is_complete`: whether there are candidates down to the floor.
    """
    edge_key = floor_key
    num_ties = tl.zeros([], tl.int32)
    is_settled = True
    lowest_key = tl.min(tl.where(keys == _LOWEST_KEY, 2147483647, keys), 0).to(tl.int64)
    end_key = tl.max(keys, 0).to(tl.int64) + 1
    if (top_k > 0) & (top_k < vocab_size):
        wanted = top_k - num_above
        ones = tl.where(keys == _LOWEST_KEY, 0, 1)
        is_reached = tl.sum(ones, 0) >= wanted
        is_settled = (wanted > 0) & (is_reached | is_complete)
        if is_settled & is_reached:
            edge_key = highest_reaching(keys, ones, wanted, lowest_key, end_key)
            masses = tl.where(keys >= edge_key, masses, 0)
        total = mass_above + tl.sum(masses, 0)
    if top_p < 1.0:
        wanted_mass = tl.maximum(tl.ceil(top_p.to(tl.float64) * total.to(tl.float64)).to(tl.int64), 1) - mass_above
        is_settled = is_settled & (wanted_mass > 0) & (tl.sum(masses, 0) >= wanted_mass)
        if is_settled:
            edge_key = highest_reaching(keys, masses, wanted_mass, lowest_key, end_key)
            mass_of_one = tl.max(tl.where(keys == edge_key, masses, 0), 0)
            missing = wanted_mass - tl.sum(tl.where(keys > edge_key, masses, 0), 0)
            needed = tl.cdiv(missing, mass_of_one).to(tl.int32)
            num_ties = tl.where(needed < tl.sum(tl.where(keys == edge_key, 1, 0), 0), needed, 0)
    return edge_key, num_ties, is_settled


@jit
def nth_token(tokens, needed, vocab_size):
    """The needed-th of some tokens, counted from the lowest."""
    lower = tl.zeros([], tl.int32)
    upper = tl.zeros([], tl.int32) + vocab_size
    while upper - lower > 1:
        middle = (lower + upper) >> 1
        reached = tl.sum((tokens < middle).to(tl.int32), 0) >= needed
        lower = tl.where(reached, lower, middle)
        upper = tl.where(reached, middle, upper)
    return upper - 1


@jit
def collect_kernel(
    threshold_ptr,
    last_tie_ptr,
    num_found_ptr,
    bracket_ptr,
    candidate_ptr,
    part_above_ptr,
    part_mass_above_ptr,
    part_mass_ptr,
    ticket_ptr,
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
    chunk,
    has_history: tl.constexpr,
    tile: tl.constexpr,
    room: tl.constexpr,
    parts_padded: tl.constexpr,
    early: tl.constexpr,
):
    """One chunk of a row; the last program of a row finds the edge among the candidates. Most rows may need none."""
    begin_early(early)
    wait_for_earlier(early)
    part, parts, row = tl.program_id(0), tl.num_programs(0), tl.program_id(1).to(tl.int64)
    slot = tl.load(slot_ptr + row)
    if slot < 0:
        return
    low = tl.load(bracket_ptr + row * 3)
    if low == _NOTHING:
        return
    high = tl.load(bracket_ptr + row * 3 + 1)
    highest = tl.load(bracket_ptr + row * 3 + 2)
    temperature = tl.load(temperature_ptr + slot)
    repetition = tl.load(repetition_ptr + slot)
    frequency = tl.load(frequency_ptr + slot)
    presence = tl.load(presence_ptr + slot)
    logits_row = logits_ptr + row * logits_stride
    history_row = history_ptr + slot.to(tl.int64) * history_stride
    floor = highest + tl.log(tl.load(min_p_ptr + slot))
    is_complete = floor >= low
    low = tl.maximum(low, floor)

    numbers = tl.zeros([tile], tl.int32)  # of each thread's tokens: 65536 * (those above) + those inside
    mass_above = tl.zeros([tile], tl.int64)
    mass = tl.zeros([tile], tl.int64)
    first = part * chunk
    last = tl.minimum(first + chunk, vocab_size)
    ahead = load_logits(logits_row, first + tl.arange(0, tile), last)
    for start in range(first, last, tile):
        token = start + tl.arange(0, tile)
        logits = ahead
        ahead = load_logits(logits_row, token + tile, last)
        scores = to_scores(
            logits, history_row, token, vocab_size, repetition, frequency, presence, temperature, has_history
        )
        token_mass = tl.where(scores >= floor, mass_of(scores, highest), 0)
        mass += token_mass
        mass_above += tl.where(scores >= high, token_mass, 0)
        numbers += tl.where(scores >= high, 65536, tl.where((scores >= low) & (scores > float("-inf")), 1, 0))
    tl.store(part_above_ptr + row * parts + part, tl.sum(numbers >> 16, 0))
    tl.store(part_mass_above_ptr + row * parts + part, tl.sum(mass_above, 0))
    tl.store(part_mass_ptr + row * parts + part, tl.sum(mass, 0))
    inside = numbers & 65535
    num_inside = tl.sum(inside, 0)
    if num_inside > 0:
        # Each thread has places in a row for its own tokens: nothing needs to be agreed on token by token.
        place = tl.atomic_add(num_found_ptr + row, num_inside, sem="relaxed") + tl.cumsum(inside, 0) - inside
        for start in range(first, last, tile):
            token = start + tl.arange(0, tile)
            scores = load_scores(
                logits_row, history_row, token, last, repetition, frequency, presence, temperature, has_history
            )
            is_inside = (scores >= low) & (scores < high) & (scores > float("-inf"))
            tl.store(candidate_ptr + row * room + place, token, mask=is_inside & (place < room))
            place += is_inside.to(tl.int32)
    tl.debug_barrier()
    if tl.atomic_add(ticket_ptr + row, 1, sem="acq_rel") != parts - 1:
        return
    tl.store(ticket_ptr + row, 0)

    num_found = tl.atomic_add(num_found_ptr + row, 0, sem="relaxed")
    other = row * parts + tl.arange(0, parts_padded)
    is_part = tl.arange(0, parts_padded) < parts
    above_of_row = tl.sum(tl.load(part_above_ptr + other, mask=is_part, other=0), 0)
    mass_above_of_row = tl.sum(tl.load(part_mass_above_ptr + other, mask=is_part, other=0), 0)
    mass_of_row = tl.sum(tl.load(part_mass_ptr + other, mask=is_part, other=0), 0)
    top_k = tl.load(top_k_ptr + slot)
    top_p = tl.load(top_p_ptr + slot)
    is_settled = num_found <= room
    edge_key = key_of(floor)
    last_tie = tl.zeros([], tl.int32) + vocab_size
    if is_settled:
        number = tl.arange(0, room)
        is_candidate = number < num_found
        tokens = tl.load(candidate_ptr + row * room + number, mask=is_candidate, other=vocab_size)
        scores_inside = load_scores(
            logits_row, history_row, tokens, vocab_size, repetition, frequency, presence, temperature, has_history
        )
        keys = tl.where(is_candidate, key_of(scores_inside), _LOWEST_KEY)
        masses = tl.where(is_candidate, mass_of(scores_inside, highest), 0)
        edge_key, num_ties, is_settled = settle(
            keys, masses, is_complete, above_of_row, mass_above_of_row, mass_of_row, vocab_size, top_k, top_p, edge_key
        )
        if num_ties > 0:
            tokens = tl.load(candidate_ptr + row * room + number, mask=is_candidate, other=vocab_size)
            last_tie = nth_token(tl.where(keys == edge_key, tokens, vocab_size), num_ties, vocab_size)
    if is_settled == 0:
        tl.store(num_found_ptr + row, -1)
        edge_key, last_tie = settle_by_row(
            logits_row, history_row, vocab_size, repetition, frequency, presence, temperature,
            top_k, top_p, floor, highest, has_history, tile,
        )  # fmt: skip
    tl.store(threshold_ptr + row, score_of(edge_key))
    tl.store(last_tie_ptr + row, last_tie)


@cache
def _tickets(device: torch.device, rows: int) -> torch.Tensor:
    """Zeros, which every launch leaves as it finds them. Launches that share them must not overlap: one stream."""
    return torch.zeros(rows, dtype=torch.int32, device=device)


def find_thresholds(
    logits: torch.Tensor, slot: torch.Tensor, parameters: SamplingParameters, state: SamplingState
) -> Thresholds:
    """What each row keeps. Rows that are not sampled get nothing.

    Args:
        logits: (rows, vocab_size), any float dtype.
        slot: Of each row; -1 if it is not sampled. (rows,) int32
        parameters: How each slot is sampled.
        state: With the slots' histories.
    """
    num_rows, vocab_size = logits.shape
    tiles = cdiv(vocab_size, TILE)
    chunk = cdiv(tiles, max(1, min(tiles, PROGRAMS // max(num_rows, 1)))) * TILE
    parts = cdiv(vocab_size, chunk)

    def empty(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device=logits.device)

    integers = empty(num_rows, dtype=torch.int32), empty(num_rows, dtype=torch.int32)
    found = Thresholds(empty(num_rows), *integers)
    bracket = empty(num_rows, 3)
    history = state.token_ids if state.history is None else state.history  # never read without a history
    tickets = _tickets(logits.device, next_power_of_2(num_rows))
    what = (
        tickets, logits, history, parameters.temperature, parameters.min_p, parameters.top_k, parameters.top_p, slot,
        parameters.repetition, parameters.frequency, parameters.presence,
        vocab_size, logits.stride(0), history.stride(0), chunk,
    )  # fmt: skip
    # No fused multiply-add: all kernels must come to the same scores in every bit, or a threshold would cut itself off.
    how = {
        "has_history": state.history is not None, "room": ROOM, "parts_padded": next_power_of_2(tiles),
        "num_warps": NUM_WARPS, "enable_fp_fusion": False, **early_launch(logits.device, num_rows, AFTER_ITS_WAIT),
    }  # fmt: skip
    part_best, part_sum = empty(num_rows, parts), empty(num_rows, parts)
    survey_kernel[(parts, num_rows)](*found, bracket, part_best, part_sum, *what, tile=TILE, **how)
    candidates = empty(num_rows, ROOM, dtype=torch.int32)
    above = empty(num_rows, parts, dtype=torch.int32)
    masses = (empty(num_rows, parts, dtype=torch.int64), empty(num_rows, parts, dtype=torch.int64))
    collect_kernel[(parts, num_rows)](
        found.lowest,
        found.last_tie,
        found.candidates,
        bracket,
        candidates,
        above,
        *masses,
        *what,
        tile=COLLECT_TILE,
        **how,
    )
    return found
