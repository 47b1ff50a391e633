"""Owns what all backends on our kernels share: the batch on the device, and the way of new keys and values into pages.

Whoever computes attention, keys and values are written by our own kernels, into pages of one layout. So a backend here
says only how a written cache is attended to (`attend`), and what that needs to know of a step (`on_device`).

The batch comes to the device in one of two ways: copied from the host (`prepare`, a runner without graphs), or made
there by kernels, in buffers that never move (`DeviceStep`). In a step that is recorded nothing on the host is known of
it, only its shape.

Upstream: vllm/v1/attention/backend.py::CommonAttentionMetadata, AttentionMetadataBuilder.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from minivllm.attention.backend import AttentionMetadata, UnrotatedBackend
from minivllm.kernels.launch import UNSCALED, KVScales
from minivllm.kernels.reshape_and_cache import reshape_and_cache
from minivllm.kernels.rotary_and_cache import rotary_and_cache


class Parts(NamedTuple):
    """How the requests of a batch are parted among kernels.

    Attributes:
        num_decodes: Requests in front with one token each.
        num_fresh: Requests at the end of which nothing was computed before.
        max_query_len: The most tokens of a request between those.
        max_fresh_len: The most tokens of one of the fresh ones.
    """

    num_decodes: int
    num_fresh: int
    max_query_len: int
    max_fresh_len: int

    @property
    def longest_query(self) -> int:
        """The most tokens of any request."""
        return max(self.max_query_len, self.max_fresh_len, min(self.num_decodes, 1))


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


@dataclass(frozen=True, slots=True)
class PagedMetadata:
    """A step's batch on the device.

    Attributes:
        query_start_loc: (requests + 1,) int32.
        seq_lens: (requests,) int32; 0 is padding.
        block_table: (requests, max blocks) int32; what stands behind a request's last block is never read.
        slot_mapping: (tokens,) int64; -1 is padding.
        parts: On the host, as everything that decides which kernels are launched: a recorded step fixes it.
        prefix_tokens: (1,) int32: with so many tokens all decodes begin, in the same blocks, and attend to them
            together; None if each of them attends to all of its own.
    """

    query_start_loc: torch.Tensor
    seq_lens: torch.Tensor
    block_table: torch.Tensor
    slot_mapping: torch.Tensor
    parts: Parts
    prefix_tokens: torch.Tensor | None = None


class Written(Protocol):
    """What writing needs of a prepared batch."""

    @property
    def slot_mapping(self) -> torch.Tensor: ...


Batch = TypeVar("Batch", bound=Written)


class PagedBackend(UnrotatedBackend[Batch]):
    """Attention over pages that our kernels write.

    Args:
        scales: What the numbers of an FP8 cache are multiplied with.
    """

    on_kernels: ClassVar[bool] = True

    def __init__(self, scales: KVScales = UNSCALED) -> None:
        self.scales = scales

    @abstractmethod
    def on_device(self, batch: PagedMetadata, host: AttentionMetadata | None) -> Batch:
        """What `attend` takes.

        Args:
            batch: The step, padded or not.
            host: The same as the host knows it, never padded; None while a step is recorded.
        """

    @abstractmethod
    def attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        batch: Batch,
        window: int | None,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Attention over what has been written.

        Args:
            query: (tokens, num_heads, head_dim), rotated; tokens may be more than the batch has.
            key, value: (tokens, num_kv_heads, head_dim), the step's own, rotated; they stand in the cache already.
            kv_cache, batch, window: As in `forward`.
            out: Where the result goes, shaped as query and contiguous; None makes it.

        Returns:
            (tokens, num_heads, head_dim); rows of padding hold anything.
        """

    def plan_decodes(
        self, num_heads: int, kv_cache: torch.Tensor, prepared: Batch, windows: Iterable[int | None]
    ) -> None:
        """Launch what attention can work out before the first layer of a step of decodes: nothing, unless a backend
        says otherwise. A step that is planned so is read ahead, where that can be.

        Args:
            num_heads: Query heads.
            kv_cache: Of any layer.
            windows: Of the model's layers.
        """

    def reads_ahead(self, num_tokens: int, prepared: Batch, window: int | None) -> bool:
        """Whether attention of a step that was planned begins before the step's keys and values are written."""
        return False

    def last_of(self, prepared: Batch) -> Batch | None:
        """The batch in which each request has its last token only, as if the others had been computed before: by then
        their keys and values are written. None if this backend attends for all, and leaves the others out."""
        return None

    def prepare(self, metadata: AttentionMetadata, device: torch.device, dtype: torch.dtype) -> Batch:
        batch = PagedMetadata(
            query_start_loc=torch.from_numpy(metadata.query_start_loc).to(device),
            seq_lens=torch.from_numpy(metadata.seq_lens).to(device),
            block_table=torch.from_numpy(metadata.block_table).to(device),
            slot_mapping=torch.from_numpy(metadata.slot_mapping).to(device),
            parts=parts_of(np.diff(metadata.query_start_loc), metadata.seq_lens),
        )
        return self.on_device(batch, metadata)

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        prepared: Batch,
        window: int | None = None,
    ) -> torch.Tensor:
        reshape_and_cache(key, value, kv_cache[0], kv_cache[1], prepared.slot_mapping, self.scales)
        return self.attend(query, key, value, kv_cache, prepared, window)

    def forward_unrotated(
        self,
        qkv: torch.Tensor,
        positions: torch.Tensor,
        cos_sin: torch.Tensor,
        norms: tuple[torch.Tensor, torch.Tensor] | None,
        eps: float,
        kv_cache: torch.Tensor,
        prepared: Batch,
        window: int | None = None,
        wanted: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """The same from a projection's output: norm, rotation and KV write are one kernel."""
        num_kv_heads, head_dim = kv_cache.shape[3:]
        heads = qkv.view(len(qkv), -1, head_dim)  # (tokens, all heads, head_dim)
        num_heads = heads.shape[1] - 2 * num_kv_heads
        reads_ahead = self.reads_ahead(len(qkv), prepared, window)
        rotary_and_cache(
            qkv, cos_sin, positions, prepared.slot_mapping, kv_cache, num_heads, norms, eps, self.scales, reads_ahead
        )
        query, key, value = heads.split((num_heads, num_kv_heads, num_kv_heads), dim=1)
        if wanted is None:
            return self.attend(query, key, value, kv_cache, prepared, window)
        last = self.last_of(prepared)
        if last is None:
            return self.attend(query, key, value, kv_cache, prepared, window).index_select(0, wanted)
        return self.attend(query.index_select(0, wanted), key, value, kv_cache, last, window)
