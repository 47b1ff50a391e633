"""Owns the scores of prompt tokens: collected chunk by chunk, and handed out with the first sampled token.

The logits at position p score the token at p + 1, so the first token has no score, and a prompt of n tokens has n - 1.
What is not computed has no logits: a request that asks never reads the prefix cache. One that is preempted and computes
its prompt again collects it again from the first position that it computes.

Upstream: vllm/v1/worker/gpu/sample/prompt_logprob.py::PromptLogprobsWorker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from minivllm.config import LogprobsMode
from minivllm.core.scheduler_output import LogprobsLists
from minivllm.sample import logprobs
from minivllm.sourcemap.registry import on_map

# Positions whose logits are held at once: a vocabulary of 150,000 is 0.6 MB a position.
_POSITIONS = 128


@dataclass(frozen=True, slots=True)
class PromptChunk:
    """What a step computes of one request that asks.

    Attributes:
        req_id: Whose.
        count: Most likely tokens to tell at each position.
        prompt_token_ids: Its prompt.
        start, end: Positions of this step, in the request.
        offset: Of the first of them in the flat batch.
        samples: Whether the step samples a token of it, too.
    """

    req_id: str
    count: int
    prompt_token_ids: NDArray[np.int32]  # (prompt tokens,)
    start: int
    end: int
    offset: int
    samples: bool


class PromptLogprobsWorker:
    """Scores of prompts that are not complete yet.

    Args:
        logprobs_mode: Which scores are told; prompt tokens are never processed, only raw or as logits.
    """

    def __init__(self, logprobs_mode: LogprobsMode) -> None:
        self.logprobs_mode = logprobs_mode
        self._collected: dict[str, LogprobsLists] = {}

    def forget(self, req_ids: Iterable[str]) -> None:
        """Drop what was collected for requests that have ended."""
        for req_id in req_ids:
            self._collected.pop(req_id, None)

    @on_map(
        "prompt logprobs",
        vllm="vllm/v1/worker/gpu/sample/prompt_logprob.py::PromptLogprobsWorker",
        plane="data",
        process="worker",
    )
    def compute(
        self,
        chunks: Iterable[PromptChunk],
        hidden: torch.Tensor,
        compute_logits: Callable[[torch.Tensor], torch.Tensor],
    ) -> dict[str, LogprobsLists] | None:
        """Collect the scores of a step, and hand out those of complete prompts.

        Args:
            chunks: What the step computed of the requests that ask.
            hidden: Hidden states of the step, (tokens, hidden_size).
            compute_logits: The model's head.
        """
        complete = {}
        for chunk in chunks:
            end = min(chunk.end, len(chunk.prompt_token_ids) - 1)
            for start in range(chunk.start, end, _POSITIONS):
                self._collect(chunk, start, min(start + _POSITIONS, end), hidden, compute_logits)
            if not chunk.samples:
                continue
            if len(chunk.prompt_token_ids) == 1 and chunk.start == 0:
                complete[chunk.req_id] = LogprobsLists([], [], [])
            elif (collected := self._collected.pop(chunk.req_id, None)) is not None:
                complete[chunk.req_id] = collected
        return complete or None

    def _collect(
        self,
        chunk: PromptChunk,
        start: int,
        end: int,
        hidden: torch.Tensor,
        compute_logits: Callable[[torch.Tensor], torch.Tensor],
    ) -> None:
        """Score the tokens after positions start to end - 1."""
        first = chunk.offset + start - chunk.start
        scores = logprobs.compute_scores(compute_logits(hidden[first : first + end - start]), self.logprobs_mode)
        targets = torch.from_numpy(chunk.prompt_token_ids[start + 1 : end + 1]).to(scores.device, torch.int64)
        new = logprobs.gather_logprobs(scores, [chunk.count] * (end - start), targets)
        old = self._collected.get(chunk.req_id, LogprobsLists([], [], [])).slice(0, start)
        assert len(old.logprobs) == start, "every position before this one was computed, so it has its score"
        self._collected[chunk.req_id] = LogprobsLists(
            old.logprob_token_ids + new.logprob_token_ids,
            old.logprobs + new.logprobs,
            old.sampled_token_ranks + new.sampled_token_ranks,
        )
