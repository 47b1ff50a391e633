"""Owns what the sampler knows of the rows of one step: how to draw from each, and the rules of those that have any.

Upstream: vllm/v1/sample/metadata.py::SamplingMetadata.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from minivllm.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True)
class RowRules:
    """What changes the logits of one row before anything is drawn.

    Attributes:
        row: Of the logits.
        params: The request's.
        prompt_token_ids: The request's prompt.
        output_token_ids: What it has put out before this row's token, the drafts before it included.
    """

    row: int
    params: SamplingParams
    prompt_token_ids: NDArray[np.int32]  # (prompt tokens,)
    output_token_ids: NDArray[np.int32]  # (output tokens,)


@dataclass(frozen=True, slots=True)
class SamplingMetadata:
    """How to sample each row of logits. A request with drafts has several rows.

    Attributes:
        rules: Of the rows that have any. Empty costs nothing.
        num_logprobs: Most likely tokens to tell of each row, -1 for a row that does not ask; None if no row asks.
        logprob_token_ids: Of the rows that ask for certain tokens instead.
    """

    req_ids: list[str]
    temperature: NDArray[np.float32]  # (rows,); 0 is greedy
    top_k: NDArray[np.int32]  # 0 keeps all
    top_p: NDArray[np.float32]
    min_p: NDArray[np.float32]
    seed: NDArray[np.uint64]
    position: NDArray[np.int64]  # of the token that is sampled
    rules: list[RowRules] = field(default_factory=list)
    num_logprobs: NDArray[np.int32] | None = None
    logprob_token_ids: dict[int, tuple[int, ...]] = field(default_factory=dict)

    def take(self, rows: NDArray[np.intp]) -> SamplingMetadata:
        """How to draw from only some rows; what comes before and after the draw is left out."""
        return SamplingMetadata(
            [self.req_ids[row] for row in rows],
            self.temperature[rows],
            self.top_k[rows],
            self.top_p[rows],
            self.min_p[rows],
            self.seed[rows],
            self.position[rows],
        )
