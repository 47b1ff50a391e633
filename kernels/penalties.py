"""Owns the penalties on tokens that were there before, and the device's memory of which were.

    logit > 0:  logit / repetition        logit - frequency * (times in the output)
    logit <= 0: logit * repetition              - presence * (1 if in the output)

Repetition looks at prompt and output, the other two at the output only. So each slot keeps one number a token of the
vocabulary, its *history word*:

    word = 2 * (times in the output) + (1 if in the prompt)

At 150,000 tokens a slot that is 0.6 MB: memory, but no time, since rows without penalties never read it.

Upstream: vllm/v1/worker/gpu/sample/penalties.py::apply_penalties.
"""

from __future__ import annotations

import torch

from minivllm.kernels.triton_guard import cdiv, jit, jit_for_any, tl

# Far beyond any logit of a working model, and far enough from infinity to be divided by the lowest temperature.
LARGEST = 1e30
_TILE = 1024


def count_history_reference(history: torch.Tensor, slot: int, token_ids: torch.Tensor, num_prompt_tokens: int) -> None:
    """What the kernel does, in plain PyTorch. Arguments as in `count_history`."""
    history[slot] = 2 * torch.bincount(token_ids[num_prompt_tokens:].long(), minlength=history.shape[1])
    history[slot, token_ids[:num_prompt_tokens].long()] |= 1


def penalize_reference(
    logits: torch.Tensor, history: torch.Tensor, repetition: float, frequency: float, presence: float
) -> torch.Tensor:
    """One row of logits, float32, after its penalties; history is the row of its slot. (vocab_size,) each."""
    count = (history >> 1).to(logits.dtype)
    punished = torch.where(logits > 0, logits / repetition, logits * repetition)
    punished = punished - frequency * count - presence * (count > 0)
    is_touched = (history > 0) & (logits > float("-inf"))
    return torch.where(is_touched, punished.clamp(-LARGEST, LARGEST), logits)


@jit
def penalize(logits, history, repetition, frequency, presence, largest: tl.constexpr):
    """The same in a kernel, for a tile of tokens."""
    count = (history >> 1).to(tl.float32)
    punished = tl.where(logits > 0, logits / repetition, logits * repetition)
    punished = punished - frequency * count - tl.where(count > 0, presence, 0.0)
    punished = tl.minimum(tl.maximum(punished, -largest), largest)
    return tl.where((history > 0) & (logits > float("-inf")), punished, logits)


@jit_for_any("history_row_ptr", "num_prompt_tokens", "num_tokens")
def count_history_kernel(history_row_ptr, token_ids_ptr, num_prompt_tokens, num_tokens, tile: tl.constexpr):
    """A tile of the tokens of one request. Equal tokens meet in one word, so additions are atomic."""
    place = tl.program_id(0) * tile + tl.arange(0, tile)
    token = tl.load(token_ids_ptr + place, mask=place < num_tokens, other=0)
    is_output = (place >= num_prompt_tokens) & (place < num_tokens)
    tl.atomic_or(history_row_ptr + token, 1, mask=place < num_prompt_tokens)
    tl.atomic_add(history_row_ptr + token, 2, mask=is_output)


def count_history(history: torch.Tensor, slot: int, token_ids: torch.Tensor, num_prompt_tokens: int) -> None:
    """Fill a slot's history words anew: when a request with penalties takes the slot.

    Args:
        history: (slots, vocab_size) int32.
        slot: Whose.
        token_ids: (tokens,) int32, prompt, then output.
        num_prompt_tokens: How many of them are prompt.
    """
    history[slot].zero_()
    if len(token_ids):
        count_history_kernel[(cdiv(len(token_ids), _TILE),)](
            history[slot], token_ids, num_prompt_tokens, len(token_ids), tile=_TILE, num_warps=4
        )
