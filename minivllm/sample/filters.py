"""Owns what narrows a distribution before the draw: temperature, then min_p, then top_k, then top_p.

None of it changes which token is the most likely one, so greedy rows never come here.

Upstream: vllm/v1/sample/ops/topk_topp_sampler.py, vllm/v1/sample/logits_processor/builtin.py::MinPLogitsProcessor.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from minivllm.sample.metadata import SamplingMetadata
from minivllm.sourcemap.registry import on_map

# Tokens that top_k and top_p try before they sort the whole vocabulary.
_CANDIDATES = 512


def filtered(logits: torch.Tensor, metadata: SamplingMetadata) -> torch.Tensor:
    """Logits after temperature, with -inf for the tokens that min_p, top_k and top_p leave out: (rows, vocab_size)."""
    logits = logits / _column(metadata.temperature, logits)
    if (metadata.min_p > 0).any():
        logits = apply_min_p(logits, _column(metadata.min_p, logits))
    if (metadata.top_k > 0).any() or (metadata.top_p < 1).any():
        logits = apply_top_k_top_p(logits, metadata)
    return logits


@on_map(
    "min-p",
    vllm="vllm/v1/sample/logits_processor/builtin.py::MinPLogitsProcessor.apply",
    plane="data",
    process="worker",
)
def apply_min_p(logits: torch.Tensor, min_p: torch.Tensor) -> torch.Tensor:
    """p < min_p * max(p) is, in logarithms, logit < max + log(min_p)."""
    threshold = logits.max(dim=-1, keepdim=True).values + min_p.log()
    return logits.masked_fill(logits < threshold, float("-inf"))


@on_map(
    "top-k/top-p",
    vllm="vllm/v1/sample/ops/topk_topp_sampler.py::apply_top_k_top_p",
    plane="data",
    process="worker",
)
def apply_top_k_top_p(logits: torch.Tensor, metadata: SamplingMetadata) -> torch.Tensor:
    """Filter the rows that ask for it. Sorting a whole vocabulary costs more than a decode step of a small model, so
    the most likely tokens are tried first, and are enough unless the last of them is still kept."""
    rows = np.flatnonzero((metadata.top_k > 0) | (metadata.top_p < 1))
    chosen, how = torch.from_numpy(rows).to(logits.device), metadata.take(rows)
    kept, complete = _top_candidates(logits[chosen], how, min(_CANDIDATES, logits.shape[-1]))
    if not complete:
        kept, _ = _top_candidates(logits[chosen], how, logits.shape[-1])
    return logits.index_copy(0, chosen, kept)


def _top_candidates(logits: torch.Tensor, metadata: SamplingMetadata, width: int) -> tuple[torch.Tensor, bool]:
    """Apply top_k, then top_p to what it left, among the `width` most likely tokens; and say whether that was all."""
    ordered, tokens = logits.topk(width, dim=-1)  # (rows, width), most likely first
    top_k = np.where(metadata.top_k > 0, metadata.top_k, logits.shape[-1])
    few = torch.from_numpy(top_k <= width).to(logits.device)
    # The k-th token's logit is the bound, so that those which tie with it stay, too; where k is beyond the width, all.
    last = torch.from_numpy(np.minimum(top_k, width) - 1).to(logits.device, torch.int64)
    in_top_k = ordered >= ordered.gather(1, last.unsqueeze(1))
    ordered = ordered.masked_fill(~in_top_k, float("-inf"))
    # top_p is a share of what top_k left: the candidates themselves, or everything.
    total = torch.where(few, ordered.logsumexp(dim=-1), logits.logsumexp(dim=-1)).unsqueeze(1)
    probability = (ordered - total).exp()
    before = probability.cumsum(dim=-1) - probability
    # A token stays while those before it have not reached top_p: at least one always does. Rounding can lift the sum
    # to 1 before the last token, which must not drop anything where top_p is off.
    top_p = np.where(metadata.top_p < 1, metadata.top_p, np.float32(np.inf))
    stays = in_top_k & (before < _column(top_p, logits))
    ordered = ordered.masked_fill(~stays, float("-inf"))
    complete = width == logits.shape[-1] or not bool((ordered[:, -1] > float("-inf")).any())
    return torch.full_like(logits, float("-inf")).scatter_(1, tokens, ordered), complete


def _column(values: NDArray[np.float32], like: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(values).to(like.device).unsqueeze(1)  # (rows, 1)
