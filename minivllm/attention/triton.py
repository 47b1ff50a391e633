"""Owns attention on a GPU: which of our kernels serves which part of a batch. The kernels themselves are in `kernels/`.

    the batch     [ d d d d |  ppp d ppppp   |   pppp ppppppp  ]
                    decodes    what goes on      whole new prompts
    kernel        paged_decode   paged_prefill     the same on the step's own keys and values, or hopper_prefill

In front stand the requests with one new token: there the context is split among programs, and nothing else is faster.
New prompts at the end need no table of blocks: their keys and values are there in one piece, as the step has computed
them, and long ones on a Hopper GPU have a kernel of their own. Everything between goes through the kernel that takes
any number of tokens after any context. Slots sort a batch in this way; rows do not, and a request that stands in a part
before its own is right there too, only slower.

Upstream: vllm/v1/attention/backends/triton_attn.py::TritonAttentionBackend.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from minivllm.attention.backend import AttentionBackend, AttentionMetadata
from minivllm.kernels.hopper_prefill import hopper_prefill, is_for
from minivllm.kernels.launch import UNSCALED, KVScales
from minivllm.kernels.paged_decode import paged_decode
from minivllm.kernels.paged_prefill import paged_prefill
from minivllm.kernels.reshape_and_cache import reshape_and_cache
from minivllm.kernels.rotary_and_cache import rotary_and_cache


@dataclass(frozen=True, slots=True)
class TritonBatch:
    """A step's batch on the device.

    The numbers on the host decide which kernels are launched with which grids: they are what a captured graph fixes.
    Lengths, tables and slots are read on the device, so a replay serves whatever the tensors hold by then.

    Attributes:
        query_start_loc: (requests + 1,) int32.
        seq_lens: (requests,) int32; 0 is padding.
        block_table: (requests, max blocks) int32.
        slot_mapping: (tokens,) int64; -1 is padding.
        num_decodes: Requests in front with one token each.
        num_fresh: Requests at the end of which nothing was computed before.
        max_query_len: The most tokens of a request between those.
        max_fresh_len: The most tokens of one of the fresh ones.
    """

    query_start_loc: torch.Tensor
    seq_lens: torch.Tensor
    block_table: torch.Tensor
    slot_mapping: torch.Tensor
    num_decodes: int
    num_fresh: int
    max_query_len: int
    max_fresh_len: int


class TritonBackend(AttentionBackend[TritonBatch]):
    """Paged attention by our own kernels.

    Args:
        scales: What the numbers of an FP8 cache are multiplied with.
    """

    name = "triton"
    takes_unrotated = True

    def __init__(self, scales: KVScales = UNSCALED) -> None:
        self._scales = scales

    def prepare(self, metadata: AttentionMetadata, device: torch.device, dtype: torch.dtype) -> TritonBatch:
        parts = parts_of(np.diff(metadata.query_start_loc), metadata.seq_lens)
        return TritonBatch(
            query_start_loc=torch.from_numpy(metadata.query_start_loc).to(device),
            seq_lens=torch.from_numpy(metadata.seq_lens).to(device),
            block_table=torch.from_numpy(metadata.block_table).to(device),
            slot_mapping=torch.from_numpy(metadata.slot_mapping).to(device),
            **parts._asdict(),
        )

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        prepared: TritonBatch,
        window: int | None = None,
    ) -> torch.Tensor:
        reshape_and_cache(key, value, kv_cache[0], kv_cache[1], prepared.slot_mapping, self._scales)
        return self._attend(query, key, value, kv_cache, prepared, window)

    def forward_unrotated(
        self,
        qkv: torch.Tensor,
        positions: torch.Tensor,
        cos_sin: torch.Tensor,
        norms: tuple[torch.Tensor, torch.Tensor] | None,
        eps: float,
        kv_cache: torch.Tensor,
        prepared: TritonBatch,
        window: int | None = None,
    ) -> torch.Tensor:
        """The same from a projection's output: norm, rotation and KV write are one kernel."""
        num_kv_heads, head_dim = kv_cache.shape[3:]
        heads = qkv.view(len(qkv), -1, head_dim)  # (tokens, all heads, head_dim)
        num_heads = heads.shape[1] - 2 * num_kv_heads
        rotary_and_cache(qkv, cos_sin, positions, prepared.slot_mapping, kv_cache, num_heads, norms, eps, self._scales)
        query, key, value = heads.split((num_heads, num_kv_heads, num_kv_heads), dim=1)
        return self._attend(query, key, value, kv_cache, prepared, window)

    def _attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        batch: TritonBatch,
        window: int | None,
    ) -> torch.Tensor:
        """Attention over what has been written; query is (tokens, num_heads, head_dim)."""
        out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        front, num_requests = batch.num_decodes, len(batch.seq_lens)
        if front:
            paged_decode(
                query[:front],
                kv_cache,
                batch.block_table[:front],
                batch.seq_lens[:front],
                window,
                self._scales,
                out[:front],
            )
        # A cache of 8 bits must be read back: a token's attention must not depend on the step it was computed in.
        can_be_fresh = kv_cache.dtype == key.dtype and key.stride() == value.stride()
        middle = num_requests - (batch.num_fresh if can_be_fresh else 0)
        prefill = partial(paged_prefill, query, kv_cache, window=window, scales=self._scales, out=out)
        if front < middle:
            most = batch.max_query_len if can_be_fresh else max(batch.max_query_len, batch.max_fresh_len)
            between = slice(front, middle)
            starts = batch.query_start_loc[front : middle + 1]
            prefill(batch.block_table[between], starts, batch.seq_lens[between], most)
        if middle < num_requests and is_for(query, batch.max_fresh_len, window):
            hopper_prefill(query, key, value, batch.query_start_loc[middle:], out)
        elif middle < num_requests:
            starts, lens, table = batch.query_start_loc[middle:], batch.seq_lens[middle:], batch.block_table[middle:]
            prefill(table, starts, lens, batch.max_fresh_len, fresh=(key, value))
        return out


class Parts(NamedTuple):
    """How the requests of a batch are parted among kernels, see `TritonBatch`."""

    num_decodes: int
    num_fresh: int
    max_query_len: int
    max_fresh_len: int


def parts_of(query_lens: NDArray[np.int32], seq_lens: NDArray[np.int32]) -> Parts:
    """The parts of a batch, whatever its order.

    Args:
        query_lens: (requests,), tokens of this step.
        seq_lens: (requests,), tokens in the cache after it.
    """
    others = np.flatnonzero(query_lens != 1)
    num_decodes = int(others[0]) if len(others) else len(query_lens)
    gone_on = np.flatnonzero(query_lens != seq_lens)
    first_fresh = max(num_decodes, int(gone_on[-1]) + 1 if len(gone_on) else 0)
    between, fresh = query_lens[num_decodes:first_fresh], query_lens[first_fresh:]
    return Parts(num_decodes, len(fresh), int(between.max(initial=0)), int(fresh.max(initial=0)))
