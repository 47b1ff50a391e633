"""The sampler written down once more, as plainly as its definition: one row, Python lists, double precision.

Stages are functions in a list, so that a test can also ask what another order would give.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch

from minivllm.sample.filters import filtered
from minivllm.sample.metadata import RowRules, SamplingMetadata
from minivllm.sample.sampler import Sampler, apply_logits_processors
from minivllm.sampling_params import SamplingParams

NEVER = -math.inf


@dataclass
class Row:
    """One row: its logits, what its request asks, and what the request has so far."""

    logits: list[float]
    params: SamplingParams
    prompt: list[int] = field(default_factory=lambda: [0])
    output: list[int] = field(default_factory=list)


Stage = Callable[[list[float], Row], list[float]]


def allowed_ids(logits: list[float], row: Row) -> list[float]:
    allowed = row.params.allowed_token_ids
    return [x if allowed is None or i in allowed else NEVER for i, x in enumerate(logits)]


def bad_words(logits: list[float], row: Row) -> list[float]:
    def is_complete(with_next: list[int]) -> bool:
        return any(with_next[-len(word) :] == list(word) for word in row.params.bad_words_token_ids)

    return [NEVER if is_complete([*row.output, i]) else x for i, x in enumerate(logits)]


def min_tokens(logits: list[float], row: Row) -> list[float]:
    if len(row.output) >= row.params.min_tokens:
        return logits
    return [NEVER if i in row.params.all_stop_token_ids else x for i, x in enumerate(logits)]


def logit_bias(logits: list[float], row: Row) -> list[float]:
    return [x + (row.params.logit_bias or {}).get(i, 0.0) for i, x in enumerate(logits)]


def repetition(logits: list[float], row: Row) -> list[float]:
    penalty, seen = row.params.repetition_penalty, {*row.prompt, *row.output}
    return [x if i not in seen else x / penalty if x > 0 else x * penalty for i, x in enumerate(logits)]


def frequency_and_presence(logits: list[float], row: Row) -> list[float]:
    counts, params = Counter(row.output), row.params
    return [
        x - params.frequency_penalty * counts[i] - params.presence_penalty * (counts[i] > 0)
        for i, x in enumerate(logits)
    ]


def temperature(logits: list[float], row: Row) -> list[float]:
    return [x / (row.params.temperature or 1.0) for x in logits]


def softmax(logits: list[float]) -> list[float]:
    highest = max(logits)
    total = math.fsum(math.exp(x - highest) for x in logits)
    return [math.exp(x - highest) / total for x in logits]


def min_p(logits: list[float], row: Row) -> list[float]:
    if not row.params.temperature:
        return logits
    probabilities = softmax(logits)
    least = row.params.min_p * max(probabilities)
    return [x if p >= least else NEVER for x, p in zip(logits, probabilities, strict=True)]


def top_k(logits: list[float], row: Row) -> list[float]:
    if row.params.top_k <= 0 or not row.params.temperature:
        return logits
    least = sorted(logits, reverse=True)[: row.params.top_k][-1]
    return [x if x >= least else NEVER for x in logits]


def top_p(logits: list[float], row: Row) -> list[float]:
    if row.params.top_p == 1 or not row.params.temperature:
        return logits
    probabilities = softmax(logits)
    kept, mass = set(), 0.0
    for i in sorted(range(len(logits)), key=lambda i: -logits[i]):
        if mass >= row.params.top_p:
            break
        kept.add(i)
        mass += probabilities[i]
    return [x if i in kept else NEVER for i, x in enumerate(logits)]


BEFORE_ARGMAX: list[Stage] = [allowed_ids, bad_words, min_tokens, logit_bias, repetition, frequency_and_presence]
AFTER_ARGMAX: list[Stage] = [temperature, min_p, top_k, top_p]
ORDER = BEFORE_ARGMAX + AFTER_ARGMAX


def run(row: Row, stages: list[Stage] = ORDER) -> list[float]:
    """The row after some stages."""
    logits = row.logits
    for stage in stages:
        logits = stage(logits, row)
    return logits


def metadata_of(rows: list[Row], num_logprobs: list[int] | None = None, seed: int = 0) -> SamplingMetadata:
    """What the worker would tell the sampler of these rows."""

    def column(name: str, dtype: type) -> np.ndarray:
        return np.array([getattr(row.params, name) for row in rows], dtype=dtype)

    return SamplingMetadata(
        req_ids=[f"r{i}" for i in range(len(rows))],
        temperature=column("temperature", np.float32),
        top_k=np.maximum(column("top_k", np.int32), 0),
        top_p=column("top_p", np.float32),
        min_p=column("min_p", np.float32),
        seed=np.full(len(rows), seed, dtype=np.uint64),
        position=np.arange(len(rows)),
        rules=rules_of(rows),
        num_logprobs=None if num_logprobs is None else np.array(num_logprobs, dtype=np.int32),
    )


def rules_of(rows: list[Row]) -> list[RowRules]:
    return [
        RowRules(i, row.params, np.array(row.prompt, dtype=np.int32), np.array(row.output, dtype=np.int32))
        for i, row in enumerate(rows)
    ]


def tensor_of(rows: list[Row]) -> torch.Tensor:
    return torch.tensor([row.logits for row in rows], dtype=torch.float32)


def ours(rows: list[Row]) -> list[list[float]]:
    """What the sampler draws from: the rows after all stages."""
    logits = apply_logits_processors(tensor_of(rows), rules_of(rows))
    random = [i for i, row in enumerate(rows) if row.params.temperature]
    if random:
        logits[random] = filtered(logits[random], metadata_of(rows).take(np.array(random)))
    result: list[list[float]] = logits.tolist()
    return result


def sample(rows: list[Row], seed: int = 0) -> list[int]:
    tokens: list[int] = Sampler().forward(tensor_of(rows), metadata_of(rows, seed=seed)).sampled_token_ids.tolist()
    return tokens
