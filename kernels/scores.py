"""Owns the score of a token before anything is left out or drawn: its logit after penalties and temperature.

    score[t] = penalised logit of t / temperature            (temperature 0: greedy, as if 1)

Scores are never stored: each kernel that needs them makes them anew from the logits, which costs no traffic and rounds
nothing to 16 bits on the way.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from minivllm.kernels.penalties import LARGEST, penalize, penalize_reference
from minivllm.kernels.triton_guard import jit, tl

_LARGEST = tl.constexpr(LARGEST)


class SamplingParameters(NamedTuple):
    """How each slot's request is sampled: written when it takes the slot. All (slots,)."""

    temperature: torch.Tensor  # float32; 0 is greedy
    min_p: torch.Tensor  # float32; 0 is off
    top_k: torch.Tensor  # int32; 0 is off
    top_p: torch.Tensor  # float32; 1 is off
    seed: torch.Tensor  # int64, the bits of an unsigned seed
    repetition: torch.Tensor  # float32; 1 is off
    frequency: torch.Tensor  # float32; 0 is off
    presence: torch.Tensor  # float32; 0 is off


class SamplingRows(NamedTuple):
    """Whose token each row of a step's logits gives. Both (rows,)."""

    slot: torch.Tensor  # int32; -1 for a row that is computed but not sampled: padding, or a chunk that ends too early
    position: torch.Tensor  # int32, of the token that is sampled


class SamplingState(NamedTuple):
    """What sampling reads and changes of every slot."""

    token_ids: torch.Tensor  # (slots, max_model_len) int32: each new token is put at its position
    history: torch.Tensor | None  # (slots, vocab_size) int32, see `penalties`; None where no request has penalties


def scores_reference(
    logits: torch.Tensor, slot: int, parameters: SamplingParameters, state: SamplingState
) -> torch.Tensor:
    """Penalties and temperature of a row of some slot: (vocab_size,)."""
    if state.history is not None:
        how = (parameters.repetition, parameters.frequency, parameters.presence)
        logits = penalize_reference(logits, state.history[slot], *(float(column[slot]) for column in how))
    temperature = float(parameters.temperature[slot])
    # Both multiply by the same rounded number: as many products as there are tokens cost less than divisions.
    return logits * torch.tensor(temperature).reciprocal() if temperature > 0 else logits


@jit
def load_scores(
    logits_row_ptr, history_row_ptr, token, vocab_size, repetition, frequency, presence, temperature,
    has_history: tl.constexpr,
):  # fmt: skip
    """The scores of a tile of tokens; -inf past the vocabulary, +inf for NaN, so that it wins and is found out."""
    logits = load_logits(logits_row_ptr, token, vocab_size)
    return to_scores(
        logits, history_row_ptr, token, vocab_size, repetition, frequency, presence, temperature, has_history
    )


@jit
def load_logits(logits_row_ptr, token, end):
    """A tile of logits as they are stored; -inf from `end` on."""
    return tl.load(logits_row_ptr + token, mask=token < end, other=float("-inf"))


@jit
def to_scores(
    logits, history_row_ptr, token, vocab_size, repetition, frequency, presence, temperature, has_history: tl.constexpr
):
    """The scores of loaded logits."""
    logits = logits.to(tl.float32)
    if has_history:
        is_punished = (repetition != 1.0) | (frequency != 0.0) | (presence != 0.0)
        history = tl.load(history_row_ptr + token, mask=token < tl.where(is_punished, vocab_size, 0), other=0)
        logits = penalize(logits, history, repetition, frequency, presence, _LARGEST)
    scores = logits * tl.div_rn(1.0, tl.where(temperature > 0, temperature, 1.0))
    return tl.where(scores != scores, float("inf"), scores)
