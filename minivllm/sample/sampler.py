"""Owns the way from logits to tokens, in the order of vLLM's first runner:

    scores of the raw logits -> float32 -> allowed ids -> bad words -> min_tokens -> logit bias -> penalties
    -> greedy argmax -> temperature -> min_p -> top_k, top_p -> draw -> scores and ranks of the tokens

docs/sampling.md follows one row through all of it.

Upstream: vllm/v1/sample/sampler.py::Sampler.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from minivllm.config import LogprobsMode
from minivllm.core.scheduler_output import LogprobsLists
from minivllm.sample import filters, logits_processor, logprobs, penalties
from minivllm.sample.device_sampler import draw_on_device
from minivllm.sample.metadata import RowRules, SamplingMetadata
from minivllm.sample.noise import gumbel_noise
from minivllm.sourcemap.registry import on_map


class SamplerOutput(NamedTuple):
    """A token for each row, and its scores.

    Attributes:
        logprobs: Of the rows that ask, in their order; None if none does.
    """

    sampled_token_ids: torch.Tensor  # (rows,)
    logprobs: LogprobsLists | None


class Sampler:
    """Stateless: everything it needs is in the logits and the metadata.

    Args:
        logprobs_mode: Which scores are told.
        with_kernels: Whether tokens are drawn by the kernels of a device, with their noise.
    """

    def __init__(self, logprobs_mode: LogprobsMode = "raw_logprobs", with_kernels: bool = False) -> None:
        self.logprobs_mode = logprobs_mode
        self._with_kernels = with_kernels

    @on_map("sample", vllm="vllm/v1/sample/sampler.py::Sampler.forward", plane="data", process="worker")
    def forward(self, logits: torch.Tensor, metadata: SamplingMetadata) -> SamplerOutput:
        """Sample one token per row.

        Args:
            logits: (rows, vocab_size). Rows with rules are overwritten.
            metadata: One entry per row.

        Raises:
            FloatingPointError: The maximum of a row is not a finite number. There is no right token then, and a
                wrong one would hide the fault.
        """
        told = _rows_that_ask(metadata, logits.device)
        is_raw = self.logprobs_mode.startswith("raw_")
        scores = logprobs.compute_scores(logits[told], self.logprobs_mode) if told is not None and is_raw else None

        logits = apply_logits_processors(logits.float(), metadata.rules)
        tokens = _argmax(logits)  # NaN wins any maximum, so this also finds it
        highest = logits.gather(1, tokens.unsqueeze(1)).squeeze(1)
        _refuse_nan(highest, metadata)
        random_rows = np.flatnonzero(metadata.temperature > 0)
        if self._with_kernels:
            tokens = draw_on_device(logits, metadata)  # greedy rows, too: of equal logits the same one as in a graph
        shows_kept = told is not None and not is_raw
        if len(random_rows) > 0 and (shows_kept or not self._with_kernels):
            rows = torch.from_numpy(random_rows).to(logits.device)
            how = metadata.take(random_rows)
            kept = filters.filtered(logits[rows], how)
            if not self._with_kernels:
                tokens[rows] = draw(kept, how)
            if shows_kept:
                logits = logits.index_copy(0, rows, kept)

        if told is None or metadata.num_logprobs is None:
            return SamplerOutput(tokens, None)
        if scores is None:
            scores = logprobs.compute_scores(logits[told], self.logprobs_mode)
        rows_told = told.tolist()
        counts = metadata.num_logprobs[rows_told].tolist()
        wanted = [metadata.logprob_token_ids.get(row) for row in rows_told]
        return SamplerOutput(tokens, logprobs.gather_logprobs(scores, counts, tokens[told], wanted))


def apply_logits_processors(logits: torch.Tensor, rules: list[RowRules]) -> torch.Tensor:
    """Everything that can change which token is the most likely one. logits: (rows, vocab_size), overwritten.

    Stages are called through their modules, so that a trace can put itself around each of them.
    """
    if rules:
        logits_processor.apply_allowed_token_ids(logits, rules)
        logits_processor.apply_bad_words(logits, rules)
        logits_processor.apply_min_tokens(logits, rules)
        logits_processor.apply_logit_bias(logits, rules)
        penalties.apply_all_penalties(logits, rules)
    return logits


@on_map(
    "exponential trick",
    vllm="vllm/v1/sample/ops/topk_topp_sampler.py::random_sample",
    plane="data",
    process="worker",
)
def draw(logits: torch.Tensor, metadata: SamplingMetadata) -> torch.Tensor:
    """One random token per row, (rows,), from logits that are filtered already."""
    noise = gumbel_noise(metadata.seed, metadata.position, logits.shape[-1])
    return _argmax(noise.to(logits.device).add_(logits))


def _argmax(logits: torch.Tensor) -> torch.Tensor:
    """The most likely token of each row, (rows,). On a CPU by NumPy, which is ten times as fast there."""
    return torch.from_numpy(logits.numpy().argmax(axis=-1)) if logits.is_cpu else logits.argmax(dim=-1)


def _rows_that_ask(metadata: SamplingMetadata, device: torch.device) -> torch.Tensor | None:
    """Rows whose scores are told, (rows that ask,); None if there are none."""
    if metadata.num_logprobs is None:
        return None
    return torch.from_numpy(np.flatnonzero(metadata.num_logprobs >= 0)).to(device)


def _refuse_nan(highest: torch.Tensor, metadata: SamplingMetadata) -> None:
    broken = ~highest.isfinite()
    if broken.any():
        row = int(broken.nonzero()[0])
        what = "are not numbers (NaN)" if highest[row].isnan() else f"have {highest[row]:+} as their maximum"
        raise FloatingPointError(
            f"request {metadata.req_ids[row]}: its logits at position {metadata.position[row]} {what}: "
            "the weights or a kernel are broken"
        )
