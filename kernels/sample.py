"""Owns sampling without the host: from logits to the next step's inputs in four launches that a graph can capture.

    token = argmax of score[t]                              greedy
    tile  = argmax of log mass[k] + noise(k)                drawn: mass[k] is the sum of exp(score[t]) over the kept t
    token = argmax of score[t] + noise(t)                          of tile k; then among its kept tokens

    1. and 2. `threshold`   the lowest score that is kept of each row. Programs of rows that keep all end at once.
    3. `weigh_kernel`       many programs a row: the logarithm of each tile's mass; its highest score if greedy.
    4. `finish_kernel`      one program a row: chooses a tile, and a token of it, which is written where the next step
                            reads it.

To draw a tile by its mass, and a token in it by its own, is to draw a token by its own mass. Noise for every token
would cost ten times what reading its logit does; an exponential costs little.

Upstream: vllm/v1/worker/gpu/sample/sampler.py::Sampler.
"""

from __future__ import annotations

import torch

from minivllm.kernels.early_launch import AFTER_ITS_WAIT, begin_early, early_launch, wait_for_earlier
from minivllm.kernels.gumbel import OF_TILES, OF_TOKENS, gumbel_noise, gumbel_noise_reference, random_words
from minivllm.kernels.scores import (
    SamplingParameters,
    SamplingRows,
    SamplingState,
    load_logits,
    load_scores,
    scores_reference,
    to_scores,
)
from minivllm.kernels.threshold import find_thresholds, kept_reference
from minivllm.kernels.triton_guard import cdiv, jit, next_power_of_2, tl

# Tokens of a tile, and about how many programs `weigh_kernel` has, if rows have so many tiles. A draw depends on how
# long tiles are, and not on how many programs share them.
TILE, PROGRAMS = 1024, 4096
_OF_TOKENS, _OF_TILES = tl.constexpr(OF_TOKENS), tl.constexpr(OF_TILES)


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
            scores = noisy_reference(scores, parameters.seed[[slot]], position)
        token = int(scores.argmax())
        out[row] = token
        state.token_ids[slot, position] = token
        if state.history is not None:
            state.history[slot, token] += 2
    return out


def noisy_reference(scores: torch.Tensor, seed: torch.Tensor, position: int) -> torch.Tensor:
    """Scores of a row, (vocab_size,), with noise, whose maximum is the draw: minus infinity outside of the tile that is
    drawn first."""
    weights = tile_weights_reference(scores)
    where = torch.tensor([position], device=scores.device)
    tile = int((weights + gumbel_noise_reference(seed, where, len(weights), OF_TILES)[0]).argmax())
    noisy = scores + gumbel_noise_reference(seed, where, len(scores))[0]
    is_in_tile = torch.arange(len(scores), device=scores.device) // TILE == tile
    return noisy.masked_fill(~is_in_tile, float("-inf"))


def tile_weights_reference(scores: torch.Tensor) -> torch.Tensor:
    """The logarithm of each tile's mass: (tiles,)."""
    tiles = cdiv(len(scores), TILE)
    padded = torch.full((tiles * TILE,), float("-inf"), dtype=scores.dtype, device=scores.device)
    padded[: len(scores)] = scores
    return padded.view(tiles, TILE).logsumexp(1)


@jit
def is_kept(scores, token, threshold, last_tie):
    """Whether tokens are above what cuts a row, or among those at the edge that are needed."""
    return (scores > threshold) | ((scores == threshold) & (token <= last_tie))


@jit
def weigh_kernel(
    weight_ptr,
    threshold_ptr,
    last_tie_ptr,
    logits_ptr,
    history_ptr,
    temperature_ptr,
    slot_ptr,
    repetition_ptr,
    frequency_ptr,
    presence_ptr,
    vocab_size,
    logits_stride,
    history_stride,
    chunk,
    num_tiles,
    has_history: tl.constexpr,
    tile: tl.constexpr,
    early: tl.constexpr,
):
    """The weights of some tiles of a row.

    row    | chunk 0: tile, tile, tile, tile | chunk 1 | ... | part |
    """
    begin_early(early)
    wait_for_earlier(early)
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slot_ptr + row)
    if slot < 0:
        return
    temperature = tl.load(temperature_ptr + slot)
    threshold = tl.load(threshold_ptr + row)
    last_tie = tl.load(last_tie_ptr + row)
    repetition = tl.load(repetition_ptr + slot)
    frequency = tl.load(frequency_ptr + slot)
    presence = tl.load(presence_ptr + slot)
    logits_row = logits_ptr + row * logits_stride
    history_row = history_ptr + slot.to(tl.int64) * history_stride
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
        weight = tl.max(scores, 0)
        if temperature > 0.0:
            top = weight
            # Nothing of a tile may be kept, or all be forbidden: then its weight is log(0).
            base = tl.where(top > float("-inf"), top, 0.0)
            mass = tl.exp(scores - base)  # the difference first: scores may be very large
            if threshold > float("-inf"):
                mass = tl.where(is_kept(scores, token, threshold, last_tie), mass, 0.0)
            weight = tl.where(top < float("inf"), base + tl.log(tl.sum(mass, 0)), top)
        tl.store(weight_ptr + row * num_tiles + start // tile, weight)


@jit
def finish_kernel(
    out_ptr,
    token_ids_ptr,
    history_ptr,
    weight_ptr,
    threshold_ptr,
    last_tie_ptr,
    logits_ptr,
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
    token_ids_stride,
    num_tiles,
    tiles_padded: tl.constexpr,
    has_history: tl.constexpr,
    tile: tl.constexpr,
    early: tl.constexpr,
):
    """A row's tile, and the token of it; -1 for a row that is not sampled, and for one whose maximum is no finite
    number. Of equal ones the lowest."""
    begin_early(early)
    wait_for_earlier(early)
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slot_ptr + row).to(tl.int64)
    if slot < 0:
        tl.store(out_ptr + row, -1)
        return
    temperature = tl.load(temperature_ptr + slot)
    seed = tl.load(seed_ptr + slot)
    position = tl.load(position_ptr + row).to(tl.int64)
    index = tl.arange(0, tiles_padded)
    weights = tl.load(weight_ptr + row * num_tiles + index, mask=index < num_tiles, other=float("-inf"))
    if temperature > 0.0:
        weights += gumbel_noise(random_words(seed, position, 0, tiles_padded, _OF_TILES))
    highest = tl.max(weights, 0)
    if (highest == float("inf")) | (highest == float("-inf")):
        tl.store(out_ptr + row, -1)
        return
    first = tl.min(tl.where(weights == highest, index, tiles_padded), 0) * tile

    history_row = history_ptr + slot * history_stride
    token = first + tl.arange(0, tile)
    scores = load_scores(
        logits_ptr + row * logits_stride, history_row, token, vocab_size, tl.load(repetition_ptr + slot),
        tl.load(frequency_ptr + slot), tl.load(presence_ptr + slot), temperature, has_history,
    )  # fmt: skip
    if temperature > 0.0:
        kept = is_kept(scores, token, tl.load(threshold_ptr + row), tl.load(last_tie_ptr + row))
        noise = gumbel_noise(random_words(seed, position, first, tile, _OF_TOKENS))
        scores = tl.where(kept, scores + noise, float("-inf"))
    best = tl.min(tl.where(scores == tl.max(scores, 0), token, vocab_size), 0)
    tl.store(out_ptr + row, best.to(tl.int64))
    tl.store(token_ids_ptr + slot * token_ids_stride + position, best)
    if has_history:  # read above: all threads have, since each has its part in the best
        tl.atomic_add(history_row + best, 2)


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
    out = torch.empty(num_rows, dtype=torch.int64, device=device) if out is None else out
    if num_rows == 0:
        return out
    found = find_thresholds(logits, rows.slot, parameters, state)
    weights = torch.empty((num_rows, tiles), dtype=torch.float32, device=device)
    has_history = state.history is not None
    history = state.token_ids if state.history is None else state.history  # never read without a history
    penalties = (parameters.repetition, parameters.frequency, parameters.presence)
    sizes = (vocab_size, logits.stride(0), history.stride(0))
    # No fused multiply-add: the scores must be those that a threshold was found among, in every bit.
    how = {"has_history": has_history, "tile": TILE, "num_warps": 4, "enable_fp_fusion": False}
    how |= early_launch(device, num_rows, AFTER_ITS_WAIT)
    weigh_kernel[(num_rows, cdiv(vocab_size, chunk))](
        weights, found.lowest, found.last_tie, logits, history, parameters.temperature, rows.slot, *penalties, *sizes,
        chunk, tiles, **how,
    )  # fmt: skip
    finish_kernel[(num_rows,)](
        out, state.token_ids, history, weights, found.lowest, found.last_tie, logits, parameters.temperature,
        parameters.seed, rows.position, rows.slot, *penalties, *sizes, state.token_ids.stride(0), tiles,
        tiles_padded=max(4, next_power_of_2(tiles)), **how,
    )  # fmt: skip
    return out
