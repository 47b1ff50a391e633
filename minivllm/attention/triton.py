"""Owns attention on a GPU: which of our kernels serves which part of a batch. The kernels themselves are in `kernels/`.

    the batch     [ d d d d | ppppp ppp d pppppppp ]
                    decodes    the rest: prompts, chunks, and decodes that do not stand in front
    kernel        paged_decode   paged_prefill

In front stand the requests with one new token: there the context is split among programs, and nothing else is faster.
Everything else goes through the kernel that takes any number of tokens (long new prompts on a Hopper GPU through
`hopper_prefill`, which takes nothing else). Slots sort a batch so that all decodes come
first; rows do not, and a decode that stands behind is right there too, only slower.

Upstream: vllm/v1/attention/backends/triton_attn.py::TritonAttentionBackend.
"""

from __future__ import annotations

from dataclasses import dataclass

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
        max_query_len: The most tokens of a request behind them.
        is_fresh: Of no request behind them anything was computed before.
    """

    query_start_loc: torch.Tensor
    seq_lens: torch.Tensor
    block_table: torch.Tensor
    slot_mapping: torch.Tensor
    num_decodes: int
    max_query_len: int
    is_fresh: bool


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
        query_lens = np.diff(metadata.query_start_loc)
        num_decodes = leading_decodes(query_lens)
        behind = query_lens[num_decodes:]
        return TritonBatch(
            query_start_loc=torch.from_numpy(metadata.query_start_loc).to(device),
            seq_lens=torch.from_numpy(metadata.seq_lens).to(device),
            block_table=torch.from_numpy(metadata.block_table).to(device),
            slot_mapping=torch.from_numpy(metadata.slot_mapping).to(device),
            num_decodes=num_decodes,
            max_query_len=int(behind.max(initial=0)),
            is_fresh=bool((metadata.seq_lens[num_decodes:] == behind).all()),
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
        if front < num_requests:
            # A cache of 8 bits must be read back: a token's attention must not depend on the step it was computed in.
            is_fresh = batch.is_fresh and kv_cache.dtype == key.dtype and key.stride() == value.stride()
            if is_fresh and is_for(query, batch.max_query_len, window):
                hopper_prefill(query, key, value, batch.query_start_loc[front:], out)
                return out
            paged_prefill(
                query,
                kv_cache,
                batch.block_table[front:],
                batch.query_start_loc[front:],
                batch.seq_lens[front:],
                batch.max_query_len,
                window,
                self._scales,
                (key, value) if is_fresh else None,
                out,
            )
        return out


def leading_decodes(query_lens: NDArray[np.int32]) -> int:
    """How many requests with one token stand in front."""
    others = np.flatnonzero(query_lens != 1)
    return int(others[0]) if len(others) else len(query_lens)
