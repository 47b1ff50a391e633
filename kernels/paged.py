"""Owns the few lines that attention kernels share: pages, splits, one step of the online softmax, and what one kernel
leaves for another."""

from __future__ import annotations

from typing import NamedTuple

import torch

from minivllm.kernels.triton_guard import jit, tl


class SharedPrefix(NamedTuple):
    """Attention of every request to the first tokens of its context, which are the same tokens for all of them.

    `prefix_attention` makes it, and `paged_decode` joins it with attention to the tokens behind. Like the splits of one
    context, each part is normalised for itself, and its softmax sum says what share of the whole it has.

    Attributes:
        num_tokens: (1,) int32 on the device: how many tokens. No context is shorter, but a padding row's.
        out: (requests, num_heads, splits, head_dim) float32, the scale of an FP8 cache's values is in it; 0 where
            a split has no tokens.
        lse: (requests, num_heads, splits) float32, log2 of the softmax sums; -inf where a split has no tokens, and for
            a request without any (a padding row).
    """

    num_tokens: torch.Tensor
    out: torch.Tensor
    lse: torch.Tensor


@jit
def load_page_ids(table_row_ptr, token, end, block_size: tl.constexpr):
    """Which page holds each token: block_table[request, token // block_size]; past `end` nothing is read."""
    return tl.load(table_row_ptr + token // block_size, mask=token < end, other=0)


@jit
def softmax_step(scores, highest, total, acc):
    """Take one more tile of scores into a softmax whose sum is not known yet.

    The sum is kept relative to the highest score so far. When a higher one comes, everything so far shrinks:

        new = max(highest, max(scores))        shrink = 2^(highest - new)        weights = 2^(scores - new)
        total = total * shrink + sum(weights)  acc = acc * shrink  (and the caller adds weights @ values)

    2^x and not e^x, because that is what the hardware computes; log2(e) is in the scale of the scores already.
    scores (rows, tile); highest, total (rows,); acc (rows, dim). Returns weights, then the three anew.
    """
    new = tl.maximum(highest, tl.max(scores, 1))  # (rows,)
    # A row that has seen no token yet: -inf - -inf would be NaN.
    reference = tl.where(new == float("-inf"), 0.0, new)
    shrink = tl.exp2(highest - reference)
    weights = tl.exp2(scores - reference[:, None])  # (rows, tile)
    return weights, new, total * shrink + tl.sum(weights, 1), acc * shrink[:, None]


@jit
def join_splits(lse, outputs, highest, total, acc):
    """Take more splits, (splits, dim), into their joined output: each weighted by its share of the whole softmax sum.

    The same step as `softmax_step`, with a split in the place of a token: highest and total are numbers here, acc is
    (dim,), and acc / total is the output. A split without tokens has lse -inf and weight 0.
    """
    new = tl.maximum(highest, tl.max(lse, 0))
    reference = tl.where(new == float("-inf"), 0.0, new)
    shrink = tl.exp2(highest - reference)
    weights = tl.exp2(lse - reference)  # (splits,)
    return new, total * shrink + tl.sum(weights, 0), acc * shrink + tl.sum(outputs * weights[:, None], 0)
