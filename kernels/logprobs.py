"""Owns the score of a token that was sampled: its log probability, and its rank.

    logprob = logit[token] - log sum_t e^logit[t]        rank = number of t with logit[t] >= logit[token]

One look at the row gives both: the sum is kept relative to the highest logit so far, as in attention's softmax. (The
most likely tokens beside it are torch.topk's.)

Upstream: vllm/v1/worker/gpu/sample/logprob.py::compute_token_logprobs.
"""

from __future__ import annotations

import torch

from minivllm.kernels.triton_guard import jit, tl

TILE = 4096
NUM_WARPS = 8


def token_logprobs_reference(logits: torch.Tensor, token_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What the kernel does, in plain PyTorch. Arguments as in `token_logprobs`."""
    wide = logits if logits.dtype == torch.float64 else logits.float()
    own = wide.gather(1, token_ids[:, None])  # (rows, 1)
    return (own - wide.logsumexp(dim=-1, keepdim=True)).squeeze(1), (wide >= own).sum(dim=-1)


@jit
def token_logprobs_kernel(
    logprob_ptr, rank_ptr, logits_ptr, token_ids_ptr, vocab_size, logits_stride, tile: tl.constexpr
):
    """One row. Each thread keeps the highest logit, the sum and the count of its own places; at the end they join."""
    row = tl.program_id(0).to(tl.int64)
    logits_row = logits_ptr + row * logits_stride
    own = tl.load(logits_row + tl.load(token_ids_ptr + row)).to(tl.float32)
    highest = tl.full([tile], float("-inf"), tl.float32)
    total = tl.zeros([tile], tl.float32)
    rank = tl.zeros([tile], tl.int32)
    for start in range(0, vocab_size, tile):
        token = start + tl.arange(0, tile)
        logits = tl.load(logits_row + token, mask=token < vocab_size, other=float("-inf")).to(tl.float32)
        new = tl.maximum(highest, logits)
        reference = tl.where(new == float("-inf"), 0.0, new)
        total = total * tl.exp(highest - reference) + tl.exp(logits - reference)
        highest = new
        rank += ((logits >= own) & (token < vocab_size)).to(tl.int32)
    best = tl.max(highest, 0)
    log_total = best + tl.log(tl.sum(total * tl.exp(highest - best), 0))
    tl.store(logprob_ptr + row, own - log_total)
    tl.store(rank_ptr + row, tl.sum(rank, 0).to(tl.int64))


def token_logprobs(logits: torch.Tensor, token_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Score and rank of one token per row.

    Args:
        logits: (rows, vocab_size)
        token_ids: (rows,) int64

    Returns:
        Log probabilities (rows,) float32, and ranks (rows,) int64; 1 is the most likely. Ties get the last rank.
    """
    rows, vocab_size = logits.shape
    logprobs = torch.empty(rows, dtype=torch.float32, device=logits.device)
    ranks = torch.empty(rows, dtype=torch.int64, device=logits.device)
    if rows:
        token_logprobs_kernel[(rows,)](
            logprobs, ranks, logits, token_ids, vocab_size, logits.stride(0), tile=TILE, num_warps=NUM_WARPS
        )
    return logprobs, ranks
