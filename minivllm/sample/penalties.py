"""Owns the penalties on tokens that were there before: repetition, then frequency, then presence.

Repetition looks at prompt and output, the other two at the output only:

    logit > 0:  logit / repetition        logit - frequency * (times in the output)
    logit <= 0: logit * repetition              - presence * (1 if in the output)

Only the tokens of a history are touched, so the cost follows the length of the histories and not the vocabulary. They
are counted anew for every row: nothing is kept that a preemption, a rejected draft or a moved row could make wrong.

Upstream: vllm/v1/sample/ops/penalties.py::apply_all_penalties.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from minivllm.sample.metadata import RowRules
from minivllm.sampling_params import SamplingParams
from minivllm.sourcemap.registry import on_map

# Far beyond any logit of a working model, and far enough from infinity to be divided by the lowest temperature. What is
# forbidden is minus infinity, and nothing else ever is: a token is always left.
LARGEST = 1e30


def has_penalties(params: SamplingParams) -> bool:
    return params.repetition_penalty != 1 or params.frequency_penalty != 0 or params.presence_penalty != 0


@on_map("penalties", vllm="vllm/v1/sample/ops/penalties.py::apply_all_penalties", plane="data", process="worker")
def apply_all_penalties(logits: torch.Tensor, rules: list[RowRules]) -> None:
    """Change the logits, (rows, vocab_size), of the rows that have penalties."""
    for rule in rules:
        if has_penalties(rule.params):
            _apply(logits[rule.row], rule)


def _apply(logits: torch.Tensor, rule: RowRules) -> None:
    """One row, (vocab_size,)."""
    params = rule.params
    tokens, in_output = _histogram(rule)
    index = torch.from_numpy(tokens).to(logits.device)
    count = torch.from_numpy(in_output).to(logits.device, logits.dtype)  # (tokens,)
    seen = logits[index]  # (tokens,)
    is_forbidden = seen == float("-inf")
    # A tensor: a GPU multiplies with the inverse of a plain number, which is not the same in the last bit.
    repetition = seen.new_tensor(min(max(params.repetition_penalty, 1 / LARGEST), LARGEST))
    seen = torch.where(seen > 0, seen / repetition, seen * repetition)
    seen -= params.frequency_penalty * count
    seen -= params.presence_penalty * (count > 0)
    logits[index] = seen.clamp_(-LARGEST, LARGEST).masked_fill_(is_forbidden, float("-inf"))


def _histogram(rule: RowRules) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The different tokens of a history, and how often the output has each."""
    output = rule.output_token_ids[rule.output_token_ids >= 0]  # an unknown draft is no token
    history = np.concatenate((rule.prompt_token_ids, output))
    tokens, place = np.unique(history, return_inverse=True)
    in_output = np.bincount(place[len(rule.prompt_token_ids) :], minlength=len(tokens))
    return tokens.astype(np.int64), in_output
