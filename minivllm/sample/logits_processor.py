"""Owns the rules that forbid or favour tokens by their ids, each on the rows of the requests that ask for it.

Upstream: vllm/v1/sample/logits_processor/builtin.py, vllm/v1/sample/ops/bad_words.py.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch

from minivllm.sample.metadata import RowRules
from minivllm.sample.penalties import LARGEST, has_penalties
from minivllm.sampling_params import SamplingParams
from minivllm.sourcemap.registry import on_map

_NEVER = float("-inf")


def has_rules(params: SamplingParams) -> bool:
    """Whether anything stands between a request's logits and its most likely token."""
    return bool(
        params.allowed_token_ids is not None
        or params.bad_words_token_ids
        or params.min_tokens
        or params.logit_bias
        or has_penalties(params)
    )


def has_lasting_rules(params: SamplingParams) -> bool:
    """Whether such a rule holds for the whole output and only the host knows it: not the least length, which ends, nor
    penalties, which a device counts itself."""
    return params.allowed_token_ids is not None or bool(params.bad_words_token_ids or params.logit_bias)


def apply_allowed_token_ids(logits: torch.Tensor, rules: list[RowRules]) -> None:
    """Leave only the allowed tokens. logits: (rows, vocab_size)."""
    for rule in rules:
        if rule.params.allowed_token_ids is not None:
            allowed = torch.tensor(rule.params.allowed_token_ids, device=logits.device)
            kept = logits[rule.row, allowed]  # (allowed tokens,)
            logits[rule.row] = _NEVER
            logits[rule.row, allowed] = kept


@on_map("bad words", vllm="vllm/v1/sample/ops/bad_words.py::apply_bad_words", plane="data", process="worker")
def apply_bad_words(logits: torch.Tensor, rules: list[RowRules]) -> None:
    """Forbid the last token of every bad word that would be complete with it."""
    for rule in rules:
        _forbid(logits, rule.row, (word[-1] for word in rule.params.bad_words_token_ids if _is_next(word, rule)))


def _is_next(word: tuple[int, ...], rule: RowRules) -> bool:
    """Whether the output ends with all of a word but its last token."""
    beginning = word[:-1]
    if len(beginning) > len(rule.output_token_ids):
        return False
    return not beginning or bool(np.array_equal(rule.output_token_ids[-len(beginning) :], beginning))


@on_map(
    "min tokens",
    vllm="vllm/v1/sample/logits_processor/builtin.py::MinTokensLogitsProcessor.apply",
    plane="data",
    process="worker",
)
def apply_min_tokens(logits: torch.Tensor, rules: list[RowRules]) -> None:
    """Forbid what would stop a request before it has its least number of output tokens."""
    for rule in rules:
        if len(rule.output_token_ids) < rule.params.min_tokens:
            _forbid(logits, rule.row, rule.params.all_stop_token_ids)


@on_map(
    "logit bias",
    vllm="vllm/v1/sample/logits_processor/builtin.py::LogitBiasLogitsProcessor.apply",
    plane="data",
    process="worker",
)
def apply_logit_bias(logits: torch.Tensor, rules: list[RowRules]) -> None:
    """Add what the request wants added."""
    for rule in rules:
        if rule.params.logit_bias:
            tokens = torch.tensor(list(rule.params.logit_bias), device=logits.device)
            bias = torch.tensor(list(rule.params.logit_bias.values()), dtype=torch.float64).clamp_(-LARGEST, LARGEST)
            logits[rule.row, tokens] += bias.to(logits.device, logits.dtype)


def _forbid(logits: torch.Tensor, row: int, token_ids: Iterable[int]) -> None:
    forbidden = list(token_ids)
    if forbidden:
        logits[row, torch.tensor(forbidden, device=logits.device)] = _NEVER
