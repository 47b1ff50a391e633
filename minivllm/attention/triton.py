"""Owns attention on a GPU: which of our kernels serves which part of a batch. The kernels themselves are in `kernels/`.

    the batch     [ d d d d |  ppp d ppppp   |   pppp ppppppp  ]
                    decodes    what goes on      whole new prompts
    kernel        paged_decode   paged_prefill     the same on the step's own keys and values
    on Hopper     hopper_decode  hopper_prefill, for both, where tiles are filled
                  of 17 and more

In front stand the requests with one new token: there contexts are cut among programs, and nothing else is faster. If
all of them begin with the same long prefix, `prefix_attention` reads it once for many, and `paged_decode` the rest.
New prompts at the end need no table of blocks: their keys and values are there in one piece, as the step has computed
them. Everything between (chunks of prompts, prompts behind a hit of the prefix cache, decodes with drafts) goes through
the pages, any number of tokens after any context. Of both, long ones on a Hopper GPU have a kernel of their own. Slots
sort a batch in this way; rows do not, and a request that stands in a part before its own is right there too, only
slower.

Upstream: vllm/v1/attention/backends/triton_attn.py::TritonAttentionBackend.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch

from minivllm.attention.backend import AttentionCGSupport, AttentionMetadata
from minivllm.attention.paged import PagedBackend, PagedMetadata, Parts
from minivllm.kernels import hopper_decode
from minivllm.kernels.hopper_decode import RangesPlan, plan_ranges
from minivllm.kernels.hopper_decode import hopper_decode as decode_ranges
from minivllm.kernels.hopper_linear import empty_blocks
from minivllm.kernels.hopper_prefill import hopper_prefill, is_for
from minivllm.kernels.launch import LayerLaunch, LayerTensors
from minivllm.kernels.paged_decode import DecodePlan, paged_decode, plan_decode
from minivllm.kernels.paged_prefill import paged_prefill
from minivllm.kernels.prefix_attention import is_worth_it, prefix_attention


@dataclass(frozen=True, slots=True)
class TritonBatch(PagedMetadata):
    """A step's batch, and what its first layer works out for the others.

    Attributes:
        plans: By window, how the contexts of the decodes are cut.
        launches: By window, the launches of the first such layer, which the others repeat.
    """

    plans: dict[int | None, DecodePlan | RangesPlan] = field(default_factory=dict)
    launches: dict[int | None, list[LayerLaunch]] = field(default_factory=dict)

    def prefix_of(self, window: int | None) -> torch.Tensor | None:
        """How much of their contexts decodes attend to together in a layer: nothing in one that sees a window."""
        return self.prefix_tokens if window is None else None

    def plan(self, query: torch.Tensor, kv_cache: torch.Tensor, window: int | None) -> DecodePlan | RangesPlan:
        """How the contexts of the decodes in front are cut."""
        if window not in self.plans:
            seq_lens, prefix_tokens = self.seq_lens[: len(query)], self.prefix_of(window)
            if prefix_tokens is None and hopper_decode.is_for(query, kv_cache):
                self.plans[window] = plan_ranges(query, kv_cache, seq_lens, window)
            else:
                self.plans[window] = plan_decode(query, kv_cache, seq_lens, window, prefix_tokens)
        return self.plans[window]


class TritonBackend(PagedBackend[TritonBatch]):
    """Paged attention by our own kernels.

    The numbers on the host decide which kernels are launched with which grids: they are what a captured graph fixes.
    Lengths, tables and slots are read on the device, so a replay serves whatever the tensors hold by then.
    """

    name = "triton"
    graph_support = AttentionCGSupport.ALWAYS

    def on_device(self, batch: PagedMetadata, host: AttentionMetadata | None) -> TritonBatch:
        tables = batch.query_start_loc, batch.seq_lens, batch.block_table, batch.slot_mapping
        return TritonBatch(*tables, batch.parts, batch.prefix_tokens)

    def use_cascade_attention(self, num_decodes: int, prefix_tokens: int, token_bytes: int) -> bool:
        return is_worth_it(num_decodes, prefix_tokens, token_bytes)

    def can_read_ahead(self, num_decodes: int, num_heads: int, kv_cache: torch.Tensor) -> bool:
        return hopper_decode.is_for(kv_cache.new_empty(num_decodes, num_heads, kv_cache.shape[4]), kv_cache)

    def plan_decodes(
        self, num_heads: int, kv_cache: torch.Tensor, prepared: TritonBatch, windows: Iterable[int | None]
    ) -> None:
        query = kv_cache.new_empty(len(prepared.seq_lens), num_heads, kv_cache.shape[4])  # only its shape counts
        if hopper_decode.is_for(query, kv_cache):
            for window in windows:
                prepared.plan(query, kv_cache, window)

    def reads_ahead(self, num_tokens: int, prepared: TritonBatch, window: int | None) -> bool:
        is_alone = num_tokens == prepared.parts.num_decodes
        return is_alone and isinstance(prepared.plans.get(window), RangesPlan)

    def last_of(self, prepared: TritonBatch) -> TritonBatch:
        num_requests = len(prepared.seq_lens)
        tables = prepared.query_start_loc, prepared.seq_lens, prepared.block_table, prepared.slot_mapping
        return TritonBatch(*tables, Parts(num_decodes=num_requests, num_fresh=0, max_query_len=0, max_fresh_len=0))

    def attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        batch: TritonBatch,
        window: int | None,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        if out is None:
            out = empty_blocks(len(query), query.shape[1] * query.shape[2], query).view(query.shape)
        launches = batch.launches.get(window)
        if launches is None:
            batch.launches[window] = self._launch(query, key, value, kv_cache, batch, window, out)
            return out
        key_pages, value_pages = kv_cache.unbind(0)
        layer = LayerTensors(query, key, value, key_pages, value_pages, out)
        for launch in launches:
            launch.again(layer)
        return out

    def _launch(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        batch: TritonBatch,
        window: int | None,
        out: torch.Tensor,
    ) -> list[LayerLaunch]:
        """Attention of the first layer of a step that sees such a window: what is launched, the others launch again."""
        launches: list[LayerLaunch] = []
        parts = batch.parts
        front, num_requests = parts.num_decodes, len(batch.seq_lens)
        if front:
            decodes = query[:front], kv_cache, batch.block_table[:front], batch.seq_lens[:front]
            prefix_tokens, prefix = batch.prefix_of(window), None
            if prefix_tokens is not None:
                prefix = prefix_attention(*decodes, prefix_tokens, self.scales, None, launches)
            is_alone = window in batch.plans and len(query) == front
            plan = batch.plan(query[:front], kv_cache, window)
            if isinstance(plan, RangesPlan):
                decode_ranges(*decodes, plan, self.scales, out[:front], is_alone, launches)
            else:
                paged_decode(*decodes, window, self.scales, out[:front], prefix, plan, launches)
        # A cache of 8 bits must be read back: a token's attention must not depend on the step it was computed in.
        can_be_fresh = kv_cache.dtype == key.dtype and key.stride() == value.stride()
        middle = num_requests - (parts.num_fresh if can_be_fresh else 0)
        if front < middle:
            most = parts.max_query_len if can_be_fresh else max(parts.max_query_len, parts.max_fresh_len)
            self._prefill(query, kv_cache, batch, slice(front, middle), most, window, None, out, launches)
        if middle < num_requests:
            part = slice(middle, num_requests)
            self._prefill(query, kv_cache, batch, part, parts.max_fresh_len, window, (key, value), out, launches)
        return launches

    def _prefill(
        self,
        query: torch.Tensor,
        kv_cache: torch.Tensor,
        batch: TritonBatch,
        part: slice,
        max_query_len: int,
        window: int | None,
        fresh: tuple[torch.Tensor, torch.Tensor] | None,
        out: torch.Tensor,
        launches: list[LayerLaunch],
    ) -> None:
        """Attention of some of the requests: from the pages, or of whole prompts from the step's own tensors."""
        starts = batch.query_start_loc[part.start : part.stop + 1]
        tables = batch.block_table[part], starts, batch.seq_lens[part], max_query_len
        if is_for(query, kv_cache, part.stop - part.start, max_query_len, window, fresh is not None):
            hopper_prefill(query, kv_cache, *tables, fresh, out, None, launches)
        else:
            paged_prefill(query, kv_cache, *tables, window, self.scales, fresh, out, launches)
