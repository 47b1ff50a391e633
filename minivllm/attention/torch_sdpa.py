"""Owns the reference attention backend: plain PyTorch, any device. Every other backend is compared with it.

Pages are gathered token by token through the block table, and each kind of request takes the form that suits it:

    one new token     all such requests at once: keys padded to the longest, the padding masked
    several tokens    one call per request: queries see the past and, causally, each other

Only slots that a request owns and has written are ever read: padding repeats the request's own last token, because a
masked NaN in somebody else's page would still turn the sum into NaN (0 * NaN).

Upstream: vllm/v1/attention/backends/cpu_attn.py.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from minivllm.attention.backend import AttentionBackend, AttentionMetadata
from minivllm.sourcemap.registry import on_map


@dataclass(frozen=True, slots=True)
class DecodeGroup:
    """The requests with one new token."""

    tokens: torch.Tensor  # (requests,) their rows in the flat batch
    context_slots: torch.Tensor  # (requests * longest,)
    mask: torch.Tensor | None  # (requests, 1, 1, longest), 0 or -inf; None if all are equally long


@dataclass(frozen=True, slots=True)
class PrefillSpan:
    """One request with several new tokens."""

    start: int
    end: int
    context_slots: torch.Tensor  # (seq_len,)
    mask: torch.Tensor | None  # (end - start, seq_len), 0 or -inf; None if the whole sequence is new (plain causal)


@dataclass(frozen=True, slots=True)
class SdpaBatch:
    """A step's batch, prepared for `TorchSdpaBackend.forward`."""

    slot_mapping: torch.Tensor  # (tokens,)
    decodes: DecodeGroup | None
    prefills: list[PrefillSpan]


class TorchSdpaBackend(AttentionBackend[SdpaBatch]):
    """Paged attention by gathering, then torch's scaled_dot_product_attention."""

    name = "torch_sdpa"

    def prepare(self, metadata: AttentionMetadata, device: torch.device, dtype: torch.dtype) -> SdpaBatch:
        query_lens = np.diff(metadata.query_start_loc)
        decodes = np.flatnonzero(query_lens == 1)
        return SdpaBatch(
            slot_mapping=torch.from_numpy(metadata.slot_mapping).to(device),
            decodes=_decode_group(metadata, decodes, device, dtype) if len(decodes) else None,
            prefills=[_prefill_span(metadata, i, device, dtype) for i in np.flatnonzero(query_lens > 1).tolist()],
        )

    @on_map(
        "attention over pages",
        vllm="vllm/v1/attention/backends/cpu_attn.py::CPUAttentionBackendImpl.forward",
        plane="data",
        process="worker",
    )
    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        prepared: SdpaBatch,
    ) -> torch.Tensor:
        keys, values = kv_cache.flatten(1, 2)  # (slots, kv_heads, head_dim) each
        keys.index_copy_(0, prepared.slot_mapping, key)
        values.index_copy_(0, prepared.slot_mapping, value)
        if prepared.decodes is not None and not prepared.prefills:
            return _decode(query, keys, values, prepared.decodes)
        out = torch.empty_like(query)
        if prepared.decodes is not None:
            tokens = prepared.decodes.tokens
            out[tokens] = _decode(query[tokens], keys, values, prepared.decodes)
        for span in prepared.prefills:
            out[span.start : span.end] = _prefill(query[span.start : span.end], keys, values, span)
        return out


def _decode(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, group: DecodeGroup) -> torch.Tensor:
    """Attention of one query token per request; query is (requests, heads, head_dim)."""
    requests, heads, head_dim = query.shape
    kv_heads = keys.shape[1]
    # The query heads that share a KV head become its "sequence", so that keys are read once per group.
    grouped = query.view(requests, kv_heads, heads // kv_heads, head_dim)
    context = (requests, -1, kv_heads, head_dim)
    k = (
        keys.index_select(0, group.context_slots).view(context).transpose(1, 2)
    )  # (requests, kv_heads, longest, head_dim)
    v = values.index_select(0, group.context_slots).view(context).transpose(1, 2)
    out = F.scaled_dot_product_attention(grouped, k, v, attn_mask=group.mask)
    return out.reshape(requests, heads, head_dim)


def _prefill(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, span: PrefillSpan) -> torch.Tensor:
    """Attention of several query tokens of one request; query is (tokens, heads, head_dim)."""
    q = query.transpose(0, 1).unsqueeze(0)  # (1, heads, tokens, head_dim)
    k = keys.index_select(0, span.context_slots).transpose(0, 1).unsqueeze(0)  # (1, kv_heads, seq_len, head_dim)
    v = values.index_select(0, span.context_slots).transpose(0, 1).unsqueeze(0)
    out = F.scaled_dot_product_attention(
        q, k, v, attn_mask=span.mask, is_causal=span.mask is None, enable_gqa=q.shape[1] != k.shape[1]
    )
    return out.squeeze(0).transpose(0, 1)


def _decode_group(
    metadata: AttentionMetadata, requests: NDArray[np.intp], device: torch.device, dtype: torch.dtype
) -> DecodeGroup:
    seq_lens = metadata.seq_lens[requests][:, None]  # (requests, 1)
    positions = np.arange(seq_lens.max())[None, :]  # (1, longest)
    slots = _slots(metadata, requests[:, None], np.minimum(positions, seq_lens - 1))
    padding = torch.from_numpy(positions >= seq_lens).to(device)  # (requests, longest)
    mask = torch.zeros(padding.shape, device=device, dtype=dtype).masked_fill_(padding, float("-inf"))
    return DecodeGroup(
        tokens=torch.from_numpy(metadata.query_start_loc[requests].astype(np.int64)).to(device),
        context_slots=torch.from_numpy(slots.reshape(-1)).to(device),
        mask=mask[:, None, None, :] if (seq_lens != seq_lens[0]).any() else None,
    )


def _prefill_span(metadata: AttentionMetadata, request: int, device: torch.device, dtype: torch.dtype) -> PrefillSpan:
    start, end = (int(x) for x in metadata.query_start_loc[request : request + 2])
    seq_len = int(metadata.seq_lens[request])
    computed = seq_len - (end - start)
    mask = None
    if computed:
        # Query i stands at position computed + i, and sees everything up to there.
        mask = torch.full((end - start, seq_len), float("-inf"), device=device, dtype=dtype).triu_(computed + 1)
    slots = _slots(metadata, np.array([request]), np.arange(seq_len))
    return PrefillSpan(start, end, torch.from_numpy(slots).to(device), mask)


def _slots(metadata: AttentionMetadata, requests: NDArray[np.intp], positions: NDArray[np.intp]) -> NDArray[np.int64]:
    """Where the tokens at some positions of some requests live in the cache."""
    blocks = metadata.block_table[requests, positions // metadata.block_size]
    return blocks.astype(np.int64) * metadata.block_size + positions % metadata.block_size
