"""Owns attention by FlashAttention: one call for a batch of any kind, over the pages that our kernels have written.

FlashAttention is the family of kernels that made attention without its matrix of scores common; pages came later. Token
i of the query belongs to the request that `query_start_loc` says. That request has `seq_lens` tokens in the pages of
its row of the block table, and its new ones are the last of them: so the mask is causal from the lower right corner,
and a window is a number of tokens to the left.

    seq_len 6, of which 2 are new        keys  0 1 2 3 4 5
                                    query 4    x x x x x .
                                    query 5    x x x x x x        window 3: (2, 0), the last 3 of these

Three packages have it, each with a signature of its own, see `libraries.py`. Version 3 serves any batch from a recorded
call. Version 2 takes another way where each request has one token, so a graph of decodes serves no others, and none of
mixed steps is recorded.

Upstream: vllm/v1/attention/backends/flash_attn.py::FlashAttentionBackend.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from minivllm.attention.backend import AttentionCGSupport, AttentionMetadata
from minivllm.attention.libraries import AttentionNeeds, FlashAttnLibrary, find_flash_attn
from minivllm.attention.paged import PagedBackend, PagedMetadata


@dataclass(frozen=True, slots=True)
class FlashAttnBatch:
    """A step's batch, as the functions take it. Lengths on the host are bounds: they choose kernels and grids.

    Attributes:
        query_start_loc: (requests + 1,) int32.
        seq_lens: (requests,) int32; 0 is padding.
        block_table: (requests, max blocks) int32.
        slot_mapping: (tokens,) int64.
        num_tokens: How many rows of the query are the batch's.
        max_query_len: No request has more tokens in the step.
        max_seq_len: No request has more tokens in the cache.
    """

    query_start_loc: torch.Tensor
    seq_lens: torch.Tensor
    block_table: torch.Tensor
    slot_mapping: torch.Tensor
    num_tokens: int
    max_query_len: int
    max_seq_len: int


# Query, keys and values of a layer in pages, the batch, scale, window as (left, right) or None, and where to put it.
Attend = Callable[
    [torch.Tensor, torch.Tensor, torch.Tensor, FlashAttnBatch, float, tuple[int, int] | None, torch.Tensor | None],
    torch.Tensor,
]


class FlashAttnBackend(PagedBackend[FlashAttnBatch]):
    """Paged attention by FlashAttention.

    Args:
        needs: What the model asks for; `find_flash_attn` has a package for it.

    Raises:
        ImportError: The package is there, and cannot be imported.
    """

    name = "flash_attn"

    def __init__(self, needs: AttentionNeeds) -> None:
        super().__init__()
        library = find_flash_attn(needs)
        if isinstance(library, str):
            raise ImportError(library)
        self.library = library
        self._call = load(library)
        self._block_size = needs.block_size
        is_third = library.fa_version == 3
        self.graph_support = AttentionCGSupport.ALWAYS if is_third else AttentionCGSupport.UNIFORM_BATCH

    def on_device(self, batch: PagedMetadata, host: AttentionMetadata | None) -> FlashAttnBatch:
        if host is None:  # a graph serves whatever fits into the tables
            num_tokens, max_seq_len = len(batch.slot_mapping), batch.block_table.shape[1] * self._block_size
        else:
            num_tokens, max_seq_len = int(host.query_start_loc[-1]), int(host.seq_lens.max(initial=1))
        return FlashAttnBatch(
            batch.query_start_loc,
            batch.seq_lens,
            batch.block_table,
            batch.slot_mapping,
            num_tokens,
            batch.parts.longest_query,
            max_seq_len,
        )

    def attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        batch: FlashAttnBatch,
        window: int | None,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        num_tokens = batch.num_tokens
        if out is None:
            out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        to_the_left = None if window is None else (window - 1, 0)
        scale = query.shape[-1] ** -0.5
        part = out[:num_tokens]
        result = self._call(query[:num_tokens], kv_cache[0], kv_cache[1], batch, scale, to_the_left, part)
        if result.data_ptr() != part.data_ptr():
            part.copy_(result)
        return out


def load(library: FlashAttnLibrary) -> Attend:
    """A package's function behind the one signature. Raises ImportError."""
    module = importlib.import_module(library.package)
    if library.package == "flash_attn_interface":
        return _with_kv_cache(module.flash_attn_with_kvcache)
    if library.package == "flash_attn":
        return _with_key_starts(module.flash_attn_varlen_func)
    return _with_version(module.flash_attn_varlen_func, library.fa_version)


def _with_version(function: Any, fa_version: int) -> Attend:
    """vLLM's own build has both versions, tells lengths in the cache apart from starts, and writes where it is told."""

    def attend(query, keys, values, batch, scale, window, out):
        return function(
            q=query,
            k=keys,
            v=values,
            out=out,
            cu_seqlens_q=batch.query_start_loc,
            max_seqlen_q=batch.max_query_len,
            seqused_k=batch.seq_lens,
            max_seqlen_k=batch.max_seq_len,
            softmax_scale=scale,
            causal=True,
            window_size=None if window is None else list(window),
            block_table=batch.block_table,
            fa_version=fa_version,
        )

    return attend


def _with_kv_cache(function: Any) -> Attend:
    """Version 3's package: only the function for caches knows pages, and it takes ragged queries too."""

    def attend(query, keys, values, batch, scale, window, out):
        return function(
            query,
            keys,
            values,
            cache_seqlens=batch.seq_lens,
            page_table=batch.block_table,
            cu_seqlens_q=batch.query_start_loc,
            max_seqlen_q=batch.max_query_len,
            softmax_scale=scale,
            causal=True,
            window_size=window or (-1, -1),
        )

    return attend


def _with_key_starts(function: Any) -> Attend:
    """Version 2's package: lengths in the cache are differences of running sums, for pages as well."""

    def attend(query, keys, values, batch, scale, window, out):
        starts = torch.zeros_like(batch.query_start_loc)  # (requests + 1,)
        torch.cumsum(batch.seq_lens, 0, dtype=torch.int32, out=starts[1:])
        return function(
            query,
            keys,
            values,
            cu_seqlens_q=batch.query_start_loc,
            cu_seqlens_k=starts,
            max_seqlen_q=batch.max_query_len,
            max_seqlen_k=batch.max_seq_len,
            softmax_scale=scale,
            causal=True,
            window_size=window or (-1, -1),
            block_table=batch.block_table,
        )

    return attend
