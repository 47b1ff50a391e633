"""Owns attention by FlashInfer: a plan on the host once a step, then two kernels a layer, one for decodes.

FlashInfer wants the pages of a batch not as a table but as one list with a start for each request (the CSR form of
sparse matrices), and how many tokens the last page of each holds:

    block table   [ 7 2 - ]   9 tokens      indices        [ 7 2 | 4 | 1 0 3 ]
    (blocks of 8) [ 4 - - ]   8 tokens      indptr         [ 0   2   3       6 ]
                  [ 1 0 3 ]  20 tokens      last_page_len  [ 1   8   4 ]

From these lengths `plan` decides on the host how the work is split among the GPU's processors, and sends what it has
decided to a workspace on the device; `run` then only launches. A layer with another window needs a plan of its own.

What a plan sends goes through pinned memory that the wrapper keeps and fills again for the next plan. The engine plans
a step while the one before it may still wait for the GPU: so each plan first waits for the copies of the last one.

A plan cannot be recorded, and it is another one in each step. So the calls stay outside of graphs (NEVER): the rest of
the model is recorded in pieces between them. (vLLM also records decodes, with a wrapper of fixed buffers for each
number of requests.)

Upstream: vllm/v1/attention/backends/flashinfer.py::FlashInferBackend.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from minivllm.attention.backend import AttentionCGSupport, AttentionMetadata
from minivllm.attention.libraries import AttentionNeeds
from minivllm.attention.paged import PagedBackend, PagedMetadata

# What split contexts leave on the way to their sum. As FlashInfer recommends; zeros, as it asks for.
_WORKSPACE_BYTES = 128 * 2**20


@dataclass(frozen=True, slots=True)
class PageList:
    """The pages of some requests, as FlashInfer takes them. All int32, on the host."""

    indptr: NDArray[np.int32]  # (requests + 1,)
    indices: NDArray[np.int32]  # (pages,)
    last_page_len: NDArray[np.int32]  # (requests,), 1 ... block_size

    @classmethod
    def of(cls, block_table: NDArray[np.int32], seq_lens: NDArray[np.int32], block_size: int) -> PageList:
        """From a table, (requests, max blocks), and the tokens in the cache, (requests,), at least one each."""
        pages = -(-seq_lens // block_size)
        indptr = np.zeros(len(pages) + 1, dtype=np.int32)
        np.cumsum(pages, out=indptr[1:])
        is_used = np.arange(block_table.shape[1]) < pages[:, None]  # (requests, max blocks)
        return cls(indptr, block_table[is_used], (seq_lens - (pages - 1) * block_size).astype(np.int32))


@dataclass(frozen=True, slots=True)
class FlashInferBatch:
    """A step's batch; its plans are in the backend's wrappers.

    Attributes:
        slot_mapping: (tokens,) int64, on the device.
        num_decodes: Requests in front with one token each: so many rows of the query.
        num_tokens: How many rows of the query are the batch's.
    """

    slot_mapping: torch.Tensor
    num_decodes: int
    num_tokens: int


class FlashInferBackend(PagedBackend[FlashInferBatch]):
    """Paged attention by FlashInfer.

    Args:
        needs: What the model asks for.

    Raises:
        ImportError: The package is there, and cannot be imported.
    """

    name = "flashinfer"
    graph_support = AttentionCGSupport.NEVER
    # Which of its kernels for prompts: "auto" takes one made for Hopper there ("fa3"), "fa2" runs on every GPU.
    prefill_kernels = "auto"

    def __init__(self, needs: AttentionNeeds) -> None:
        super().__init__()
        package = importlib.import_module("flashinfer")
        self._needs = needs
        self._workspace = torch.zeros(_WORKSPACE_BYTES, dtype=torch.uint8, device=needs.device)
        # Decodes on tensor cores: of several query heads a KV head has, each page is read once.
        self._decode = {
            window: package.BatchDecodeWithPagedKVCacheWrapper(self._workspace, "NHD", use_tensor_cores=True)
            for window in needs.windows
        }
        self._prefill = {
            window: package.BatchPrefillWithPagedKVCacheWrapper(self._workspace, "NHD", backend=self.prefill_kernels)
            for window in needs.windows
        }
        self._copied = torch.cuda.Event() if needs.device.type == "cuda" else None

    def on_device(self, batch: PagedMetadata, host: AttentionMetadata | None) -> FlashInferBatch:
        assert host is not None, "a plan is made from lengths on the host, and is never recorded"
        front = batch.parts.num_decodes
        if self._copied is not None:
            self._copied.synchronize()
        if front:
            self._plan_decodes(host, front)
        if front < len(host.seq_lens):
            self._plan_prefills(host, front)
        if self._copied is not None:
            self._copied.record()
        return FlashInferBatch(batch.slot_mapping, front, int(host.query_start_loc[-1]))

    def attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        batch: FlashInferBatch,
        window: int | None,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        if out is None:
            out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
        pages, front, end = (kv_cache[0], kv_cache[1]), batch.num_decodes, batch.num_tokens
        if front:
            self._decode[window].run(query[:front], pages, out=out[:front])
        if front < end:
            self._prefill[window].run(query[front:end], pages, out=out[front:end])
        return out

    def _plan_decodes(self, host: AttentionMetadata, count: int) -> None:
        """Plan the first requests, which have one token each."""
        pages = self._pages(host, slice(0, count))
        for window, wrapper in self._decode.items():
            wrapper.plan(
                *pages,
                num_qo_heads=self._needs.num_heads,
                num_kv_heads=self._needs.num_kv_heads,
                head_dim=self._needs.head_dim,
                page_size=host.block_size,
                window_left=_to_the_left(window),
                q_data_type=self._needs.dtype,
                kv_data_type=self._needs.dtype,
            )

    def _plan_prefills(self, host: AttentionMetadata, first: int) -> None:
        """Plan the others."""
        starts = host.query_start_loc[first:] - host.query_start_loc[first]  # (requests + 1,)
        pages = self._pages(host, slice(first, None))
        for window, wrapper in self._prefill.items():
            wrapper.plan(
                torch.from_numpy(starts),
                *pages,
                num_qo_heads=self._needs.num_heads,
                num_kv_heads=self._needs.num_kv_heads,
                head_dim_qk=self._needs.head_dim,
                page_size=host.block_size,
                causal=True,
                window_left=_to_the_left(window),
                q_data_type=self._needs.dtype,
                kv_data_type=self._needs.dtype,
            )

    def _pages(self, host: AttentionMetadata, requests: slice) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Starts, pages and lengths of last pages. The plan reads the first and the last on the host."""
        pages = PageList.of(host.block_table[requests], host.seq_lens[requests], host.block_size)
        indices = torch.from_numpy(pages.indices)
        if self._needs.device.type == "cuda":  # from pinned memory, so that nobody waits
            indices = indices.pin_memory().to(self._needs.device, non_blocking=True)
        return torch.from_numpy(pages.indptr), indices, torch.from_numpy(pages.last_page_len)


def _to_the_left(window: int | None) -> int:
    """How many tokens before itself a query sees; -1 is all."""
    return -1 if window is None else window - 1
