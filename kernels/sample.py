"""Owns sampling without the host: from logits to the next step's inputs in four launches that a graph can capture.

    token = argmax of score[t] + noise(seed, position, t) over the kept t        (greedy: no noise, and all are kept)

    1. and 2. `threshold`   the lowest score that is kept of each row. Programs of rows that keep all end at once.
    3. `draw_kernel`        many programs a row: the best token of each chunk of the vocabulary. Noise is worked out
                            only where it can still make a token the best of its row.
    4. `finish_kernel`      one program a row: the best of the chunks; it is written where the next step reads it.

Upstream: vllm/v1/worker/gpu/sample/sampler.py::Sampler.
"""

from __future__ import annotations

import torch

from minivllm.kernels.gumbel import MAX_NOISE, gumbel_noise, gumbel_noise_reference, one_minus_uniform, random_words
from minivllm.kernels.scores import (
    SamplingParameters,
    SamplingRows,
    SamplingState,
    load_logits,
    scores_reference,
    to_scores,
)
from minivllm.kernels.threshold import find_thresholds, kept_reference
from minivllm.kernels.triton_guard import cdiv, jit, next_power_of_2, tl

# Tokens of a tile, and about how many programs `draw_kernel` has, if rows have so many tiles. An H200 runs some
# 900 at a time, and those that come later know how good the best token of the earlier ones is.
TILE, PROGRAMS = 1024, 4096
_MAX_NOISE = tl.constexpr(MAX_NOISE)
_LOG2_E = tl.constexpr(1.4426950408889634)
_LOWEST = tl.constexpr(-1.0e38)  # what is not above it counts as forbidden: no infinity less another one comes up
_ROUNDING = tl.constexpr(2.0**-22)  # more than what a sum, a product and a power lose, each 2**-24


def sample_reference(
    logits: torch.Tensor, rows: SamplingRows, parameters: SamplingParameters, state: SamplingState
) -> torch.Tensor:
    """What the kernels do, in plain PyTorch. Arguments as in `sample`."""
    out = torch.full((len(logits),), -1, dtype=torch.int64, device=logits.device)
    for row, (slot, position) in enumerate(zip(rows.slot.tolist(), rows.position.tolist(), strict=True)):
        if slot < 0:
            continue
        scores = scores_reference(logits[row].float(), slot, parameters, state)
        if not scores.max().isfinite():
            continue
        if parameters.temperature[slot] > 0:
            scores = scores.masked_fill(~kept_reference(scores, slot, parameters), float("-inf"))
            where = torch.tensor([position], device=logits.device)
            scores = scores + gumbel_noise_reference(parameters.seed[[slot]], where, len(scores))[0]
        token = int(scores.argmax())
        out[row] = token
        state.token_ids[slot, position] = token
        if state.history is not None:
            state.history[slot, token] += 2
    return out


@jit
def bar_below(best):
    """A number so far below the best that no sum as good as the best falls below it, however it was rounded."""
    finite = tl.clamp(best, _LOWEST, -_LOWEST)
    return finite - (0.001 + tl.abs(finite) * _ROUNDING)


@jit
def draw_kernel(
    best_score_ptr,
    best_token_ptr,
    row_best_ptr,
    threshold_ptr,
    last_tie_ptr,
    logits_ptr,
    history_ptr,
    temperature_ptr,
    seed_ptr,
    position_ptr,
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
):
    """The best token of one chunk of one row; of equal ones the lowest.

    row    | chunk 0: tile, tile, tile, tile | chunk 1 | ... | part |

    Of most tiles no token can win, by what is known before its noise (`gumbel`): not at all, given the highest score;
    not with these bits. Both bounds are of the row's best so far, of any chunk that has ended: its programs are started
    chunk by chunk. What is skipped depends on which ended, what is drawn does not.
    """
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slot_ptr + row)
    if slot < 0:
        return
    temperature = tl.load(temperature_ptr + slot)
    seed = tl.load(seed_ptr + slot)
    position = tl.load(position_ptr + row).to(tl.int64)
    threshold = tl.load(threshold_ptr + row)
    last_tie = tl.load(last_tie_ptr + row)
    repetition = tl.load(repetition_ptr + slot)
    frequency = tl.load(frequency_ptr + slot)
    presence = tl.load(presence_ptr + slot)
    logits_row = logits_ptr + row * logits_stride
    history_row = history_ptr + slot.to(tl.int64) * history_stride

    is_drawn = temperature > 0.0
    reach = tl.where(is_drawn, _MAX_NOISE, 0.0)
    # Read by an atomic operation: one thread does it, and all get what it got. Of a plain load each thread would get
    # its own number, since other programs change it meanwhile, and the branches below would part the threads.
    bar = bar_below(tl.atomic_max(row_best_ptr + row, float("-inf"), sem="relaxed"))
    highest = float("-inf")
    best_token = 0
    first = tl.program_id(1) * chunk
    last = tl.minimum(first + chunk, vocab_size)
    ahead = load_logits(logits_row, first + tl.arange(0, tile), last)
    for start in range(first, last, tile):
        token = start + tl.arange(0, tile)
        logits = ahead
        ahead = load_logits(logits_row, token + tile, last)
        scores = to_scores(
            logits, history_row, token, vocab_size, repetition, frequency, presence, temperature, has_history
        )
        floor = tl.maximum(bar - reach, threshold)
        if tl.max(scores, 0) >= floor:
            can_win = True
            if is_drawn:
                words = random_words(seed, position, start, tile)
                # A token wins if score + noise > bar, so only if 1 - u < exp(score - bar).
                nearest = tl.exp2(tl.fma(scores, _LOG2_E, tl.zeros([tile], tl.float32) - bar * _LOG2_E))
                can_win = tl.max(nearest - one_minus_uniform(words), 0) > 0.0
                if can_win:
                    is_kept = (scores > threshold) | ((scores == threshold) & (token <= last_tie))
                    scores = tl.where(is_kept, scores + gumbel_noise(words), float("-inf"))
            top = tl.max(scores, 0)
            if can_win & (top > highest):
                highest = top
                best_token = tl.min(tl.where(scores == top, token, vocab_size), 0)
                bar = tl.maximum(bar, bar_below(highest))
    tl.atomic_max(row_best_ptr + row, highest, sem="relaxed")
    place = row * tl.num_programs(1) + tl.program_id(1)
    tl.store(best_score_ptr + place, highest)
    tl.store(best_token_ptr + place, best_token)


@jit
def finish_kernel(
    out_ptr,
    token_ids_ptr,
    history_ptr,
    best_score_ptr,
    best_token_ptr,
    position_ptr,
    slot_ptr,
    token_ids_stride,
    history_stride,
    num_chunks,
    chunks_padded: tl.constexpr,
    has_history: tl.constexpr,
):
    """The best of a row's chunks; -1 for a row that is not sampled, and for one whose maximum is no finite number."""
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slot_ptr + row).to(tl.int64)
    if slot < 0:
        tl.store(out_ptr + row, -1)
        return
    chunk = tl.arange(0, chunks_padded)
    place = row * num_chunks + chunk
    best = tl.load(best_score_ptr + place, mask=chunk < num_chunks, other=float("-inf"))
    token = tl.load(best_token_ptr + place, mask=chunk < num_chunks, other=0)
    highest = tl.max(best, 0)
    first_best = tl.min(tl.where(best == highest, token, 2147483647), 0)
    is_broken = (highest == float("inf")) | (highest == float("-inf"))
    tl.store(out_ptr + row, tl.where(is_broken, -1, first_best).to(tl.int64))
    if is_broken == 0:
        tl.store(token_ids_ptr + slot * token_ids_stride + tl.load(position_ptr + row), first_best)
        if has_history:
            tl.atomic_add(history_ptr + slot * history_stride + first_best, 2)


def sample(
    logits: torch.Tensor,
    rows: SamplingRows,
    parameters: SamplingParameters,
    state: SamplingState,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Sample a token for each row, and put it where the next step reads its inputs.

    Args:
        logits: (rows, vocab_size), any float dtype; they are not changed.
        rows: Whose token each row gives. With a history, no slot may occur twice.
        parameters: How each slot is sampled.
        state: The slots' tokens and histories, changed in place.
        out: Written if given. (rows,) int64

    Returns:
        (rows,) int64; -1 for a row that is not sampled, or whose logits' maximum is not a finite number.
    """
    num_rows, vocab_size = logits.shape
    device, tiles = logits.device, cdiv(vocab_size, TILE)
    chunk = cdiv(tiles, max(1, min(tiles, PROGRAMS // max(num_rows, 1)))) * TILE
    chunks = cdiv(vocab_size, chunk)
    out = torch.empty(num_rows, dtype=torch.int64, device=device) if out is None else out
    if num_rows == 0:
        return out
    found = find_thresholds(logits, rows.slot, parameters, state)
    best_score = torch.empty((num_rows, chunks), dtype=torch.float32, device=device)
    best_token = torch.empty((num_rows, chunks), dtype=torch.int32, device=device)
    has_history = state.history is not None
    history = state.token_ids if state.history is None else state.history  # never read without a history
    penalties = (parameters.repetition, parameters.frequency, parameters.presence)
    sizes = (vocab_size, logits.stride(0), history.stride(0))
    # No fused multiply-add: the scores must be those that a threshold was found among, in every bit.
    draw_kernel[(num_rows, chunks)](
        best_score, best_token, found.row_best, found.lowest, found.last_tie, logits, history, parameters.temperature,
        parameters.seed, rows.position, rows.slot, *penalties, *sizes, chunk,
        has_history=has_history, tile=TILE, num_warps=4, enable_fp_fusion=False,
    )  # fmt: skip
    finish_kernel[(num_rows,)](
        out, state.token_ids, history, best_score, best_token, rows.position, rows.slot,
        state.token_ids.stride(0), history.stride(0),
        num_chunks=chunks, chunks_padded=next_power_of_2(tiles), has_history=has_history, num_warps=1,
    )  # fmt: skip
    return out
