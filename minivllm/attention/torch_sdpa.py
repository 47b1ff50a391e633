"""Owns the reference attention backend: plain PyTorch, any device. Every other backend is compared with it.

Each kind of request takes the form that suits it:

    one new token     all such requests at once; on a CPU by a loop over their pages (layers/native.c), otherwise
                      gathered token by token through the block table: padded to the longest, the padding masked
    several tokens    one call per request: queries see the past, gathered too, and, causally, each other

Scores and sums are in float32 whatever the precision of the cache, as in vLLM's CPU backend.

A sliding window narrows what is gathered: of the tokens before it, a query sees the last few. Layers may differ in
their window, so a batch is prepared once for each.

Only slots that a request owns and has written are ever read: padding repeats the request's own last token, because a
masked NaN in somebody else's page would still turn the sum into NaN (0 * NaN).

Upstream: vllm/v1/attention/backends/cpu_attn.py.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from minivllm.attention.backend import AttentionBackend, AttentionMetadata
from minivllm.layers.native import native_ops
from minivllm.sourcemap.registry import on_map


@dataclass(frozen=True, slots=True)
class PagedDecodes:
    """The requests with one new token, for the loop over pages."""

    tokens: torch.Tensor  # (requests,) their rows in the flat batch
    block_table: torch.Tensor  # (requests, blocks), int32
    first: torch.Tensor  # (requests,), int32: the first token within the window
    seq_lens: torch.Tensor  # (requests,), int32
    block_size: int
    longest: int


@dataclass(frozen=True, slots=True)
class DecodeGroup:
    """The requests with one new token, to be gathered."""

    tokens: torch.Tensor  # (requests,) their rows in the flat batch
    context_slots: torch.Tensor  # (requests * longest,), longest within the window
    mask: torch.Tensor | None  # (requests, 1, 1, longest), 0 or -inf; None if all are equally long


@dataclass(frozen=True, slots=True)
class PrefillSpan:
    """One request with several new tokens."""

    start: int
    end: int
    # (context,): seq_len, or less where the window hides the first tokens from all queries. None if the whole sequence
    # is new and seen (plain causal): then nothing is gathered.
    context_slots: torch.Tensor | None
    mask: torch.Tensor | None  # (end - start, context), 0 or -inf; None if plain causal


@dataclass(frozen=True, slots=True)
class View:
    """Who sees what, under one window."""

    decodes: DecodeGroup | PagedDecodes | None
    prefills: list[PrefillSpan]


@dataclass(frozen=True, slots=True)
class SdpaBatch:
    """A step's batch, prepared for `TorchSdpaBackend.forward`."""

    slot_mapping: torch.Tensor  # (tokens,)
    views: dict[int | None, View]  # by window


class TorchSdpaBackend(AttentionBackend[SdpaBatch]):
    """Paged attention by gathering, then torch's scaled_dot_product_attention.

    Args:
        windows: The different sliding windows of the model's layers; None among them is full attention.
    """

    name = "torch_sdpa"

    def __init__(self, windows: Collection[int | None] = (None,)) -> None:
        self._windows = tuple(windows)

    def prepare(self, metadata: AttentionMetadata, device: torch.device, dtype: torch.dtype) -> SdpaBatch:
        return SdpaBatch(
            slot_mapping=torch.from_numpy(metadata.slot_mapping).to(device),
            views={window: _view(metadata, window, device, dtype) for window in self._windows},
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
        window: int | None = None,
    ) -> torch.Tensor:
        view = prepared.views[window]
        keys, values = kv_cache.flatten(1, 2)  # (slots, kv_heads, head_dim) each
        _write(keys, values, key, value, prepared.slot_mapping)
        if view.decodes is not None and not view.prefills:
            return _decode(query, keys, values, view.decodes)
        out = torch.empty_like(query)
        if view.decodes is not None:
            tokens = view.decodes.tokens
            out[tokens] = _decode(query[tokens], keys, values, view.decodes)
        for span in view.prefills:
            part = slice(span.start, span.end)
            if span.context_slots is None:
                out[part] = _prefill(query[part], key[part], value[part], None)
            else:
                k, v = keys.index_select(0, span.context_slots), values.index_select(0, span.context_slots)
                out[part] = _prefill(query[part], k, v, span.mask)
        return out


def _write(
    keys: torch.Tensor, values: torch.Tensor, key: torch.Tensor, value: torch.Tensor, slots: torch.Tensor
) -> None:
    """Put each token's key and value into its slot."""
    ops = native_ops(keys)
    if ops is not None:
        ops.write_cache(keys, values, key, value, slots)
    else:
        keys.index_copy_(0, slots, key)
        values.index_copy_(0, slots, value)


def _decode(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, group: DecodeGroup | PagedDecodes
) -> torch.Tensor:
    """Attention of one query token per request; query is (requests, heads, head_dim)."""
    if isinstance(group, PagedDecodes):
        ops = native_ops(query)
        assert ops is not None, "pages are walked where the batch was prepared for it"
        tables = (group.block_table, group.first, group.seq_lens)
        return ops.paged_decode(query, keys, values, *tables, group.block_size, group.longest)
    requests, heads, head_dim = query.shape
    kv_heads = keys.shape[1]
    # The query heads that share a KV head become its "sequence", so that keys are read once per group.
    grouped = query.view(requests, kv_heads, heads // kv_heads, head_dim)
    context = (requests, -1, kv_heads, head_dim)
    k = (
        keys.index_select(0, group.context_slots).view(context).transpose(1, 2)
    )  # (requests, kv_heads, longest, head_dim)
    v = values.index_select(0, group.context_slots).view(context).transpose(1, 2)
    out = F.scaled_dot_product_attention(grouped.float(), k.float(), v.float(), attn_mask=group.mask)
    return out.reshape(requests, heads, head_dim).to(query.dtype)


def _prefill(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """Attention of several query tokens of one request.

    Args:
        query: (tokens, heads, head_dim).
        keys, values: (context, kv_heads, head_dim).
        mask: (tokens, context); None is plain causal.
    """
    q, k, v = (x.transpose(0, 1).unsqueeze(0).float() for x in (query, keys, values))  # (1, heads, length, head_dim)
    out = F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=q.shape[1] != k.shape[1]
    )
    return out.squeeze(0).transpose(0, 1).to(query.dtype)


def _view(metadata: AttentionMetadata, window: int | None, device: torch.device, dtype: torch.dtype) -> View:
    query_lens = np.diff(metadata.query_start_loc)
    decodes = np.flatnonzero(query_lens == 1)
    spans = np.flatnonzero(query_lens > 1).tolist()
    return View(
        decodes=_decodes(metadata, decodes, window, device, dtype) if len(decodes) else None,
        prefills=[_prefill_span(metadata, i, window, device) for i in spans],
    )


def _decodes(
    metadata: AttentionMetadata,
    requests: NDArray[np.intp],
    window: int | None,
    device: torch.device,
    dtype: torch.dtype,
) -> DecodeGroup | PagedDecodes:
    if native_ops(torch.empty(0, device=device, dtype=dtype)) is None:
        return _decode_group(metadata, requests, window, device)
    seq_lens = metadata.seq_lens[requests].astype(np.int32)
    first = np.zeros_like(seq_lens) if window is None else np.maximum(seq_lens - window, 0)
    return PagedDecodes(
        tokens=torch.from_numpy(metadata.query_start_loc[requests].astype(np.int64)),
        block_table=torch.from_numpy(np.ascontiguousarray(metadata.block_table[requests], dtype=np.int32)),
        first=torch.from_numpy(first),
        seq_lens=torch.from_numpy(seq_lens),
        block_size=metadata.block_size,
        longest=int((seq_lens - first).max()),
    )


def _decode_group(
    metadata: AttentionMetadata,
    requests: NDArray[np.intp],
    window: int | None,
    device: torch.device,
) -> DecodeGroup:
    seq_lens = metadata.seq_lens[requests][:, None]  # (requests, 1)
    first = 0 if window is None else np.maximum(seq_lens - window, 0)
    positions = first + np.arange((seq_lens - first).max())[None, :]  # (requests or 1, longest)
    slots = _slots(metadata, requests[:, None], np.minimum(positions, seq_lens - 1))
    padding = torch.from_numpy(positions >= seq_lens).to(device)  # (requests, longest)
    mask = torch.zeros(padding.shape, device=device).masked_fill_(padding, float("-inf"))
    return DecodeGroup(
        tokens=torch.from_numpy(metadata.query_start_loc[requests].astype(np.int64)).to(device),
        context_slots=torch.from_numpy(slots.reshape(-1)).to(device),
        mask=mask[:, None, None, :] if (seq_lens != seq_lens[0]).any() else None,
    )


def _prefill_span(metadata: AttentionMetadata, request: int, window: int | None, device: torch.device) -> PrefillSpan:
    start, end = (int(x) for x in metadata.query_start_loc[request : request + 2])
    seq_len = int(metadata.seq_lens[request])
    computed = seq_len - (end - start)
    first = 0 if window is None else max(computed + 1 - window, 0)  # the first token that the first query sees
    if not computed and (window is None or window >= seq_len):
        return PrefillSpan(start, end, None, None)
    # Query i stands at position computed + i, and sees everything up to there, or its last `window` tokens.
    visible = torch.ones((end - start, seq_len - first), device=device, dtype=torch.bool).tril_(computed - first)
    if window is not None:
        visible = visible.triu_(computed - first + 1 - window)
    mask = torch.zeros(visible.shape, device=device).masked_fill_(~visible, float("-inf"))
    slots = _slots(metadata, np.array([request]), np.arange(first, seq_len))
    return PrefillSpan(start, end, torch.from_numpy(slots).to(device), mask)


def _slots(metadata: AttentionMetadata, requests: NDArray[np.intp], positions: NDArray[np.intp]) -> NDArray[np.int64]:
    """Where the tokens at some positions of some requests live in the cache."""
    blocks = metadata.block_table[requests, positions // metadata.block_size]
    return blocks.astype(np.int64) * metadata.block_size + positions % metadata.block_size
