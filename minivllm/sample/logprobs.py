"""Owns the scores that requests ask for: which scores, the most likely tokens by them, and the rank of a token.

Upstream: vllm/v1/sample/sampler.py::Sampler.gather_logprobs.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from minivllm.config import LogprobsMode
from minivllm.core.scheduler_output import LogprobsLists
from minivllm.sourcemap.registry import on_map


def compute_scores(logits: torch.Tensor, mode: LogprobsMode) -> torch.Tensor:
    """What is told of each token: its log probability or its logit, in float32, (rows, vocab_size)."""
    if mode in ("raw_logits", "processed_logits"):
        return logits.float()
    return logits.log_softmax(dim=-1, dtype=torch.float32)


@on_map(
    "gather logprobs",
    vllm="vllm/v1/sample/sampler.py::Sampler.gather_logprobs",
    plane="data",
    process="worker",
)
def gather_logprobs(
    scores: torch.Tensor,
    num_logprobs: list[int],
    token_ids: torch.Tensor,
    wanted: Sequence[tuple[int, ...] | None] = (),
) -> LogprobsLists:
    """The score and the rank of one token per row, and the most likely tokens or those that are wanted.

    Args:
        scores: (rows, vocab_size).
        num_logprobs: Most likely tokens to tell of each row.
        token_ids: (rows,), int64.
        wanted: The tokens to tell of each row instead of the most likely ones; None for a row that wants those.
    """
    widest = min(max(num_logprobs, default=0), scores.shape[-1])
    best, best_ids = scores.topk(widest, dim=-1)  # (rows, widest)
    own_ids = token_ids.unsqueeze(1)  # (rows, 1)
    own = scores.gather(1, own_ids)
    # Like vLLM: a token that ties with others gets the last of their ranks.
    ranks = (scores >= own).sum(dim=-1)
    all_ids = torch.cat((own_ids, best_ids), dim=1).tolist()
    all_scores = torch.cat((own, best), dim=1).tolist()
    told = LogprobsLists(
        [row[: 1 + count] for row, count in zip(all_ids, num_logprobs, strict=True)],
        [row[: 1 + count] for row, count in zip(all_scores, num_logprobs, strict=True)],
        ranks.tolist(),
    )
    for row, ids in enumerate(wanted):
        if ids is not None:
            told.logprob_token_ids[row][1:] = ids
            told.logprobs[row][1:] = scores[row, list(ids)].tolist()
    return told
