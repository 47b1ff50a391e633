"""Owns the interface between a model and the attention kernels.

The KV cache of one layer is logically

    (2, num_blocks, block_size, num_kv_heads, head_dim)      [0] is keys, [1] is values

so that *slot* `block * block_size + offset` is one token's keys (or values) of all heads, contiguous. What a step needs
to know about its batch arrives as an explicit `AttentionMetadata`; there is no global context.

Upstream: vllm/v1/attention/backend.py.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import IntEnum
from typing import ClassVar, Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

Prepared = TypeVar("Prepared")


@dataclass(frozen=True, slots=True)
class AttentionMetadata:
    """The batch of one step, as attention sees it. Requests in batch order; arrays live on the host.

    Attributes:
        query_start_loc: (requests + 1,) where each request's tokens start in the flat batch; the last is the total.
        seq_lens: (requests,) tokens each request has after this step: computed before plus scheduled now.
        block_table: (requests, max blocks) block ids in order; -1 where a request has no block.
        slot_mapping: (tokens,) where each token's keys and values are written.
        block_size: Tokens per block.
    """

    query_start_loc: NDArray[np.int32]
    seq_lens: NDArray[np.int32]
    block_table: NDArray[np.int32]
    slot_mapping: NDArray[np.int64]
    block_size: int


class AttentionCGSupport(IntEnum):
    """Of which steps a backend lets its calls be recorded in a CUDA graph, from none to all."""

    NEVER = 0
    UNIFORM_SINGLE_TOKEN_DECODE = 1  # one new token for each request
    UNIFORM_BATCH = 2  # the same number of new tokens for each
    ALWAYS = 3  # prompts and decodes together


class AttentionBackend(ABC, Generic[Prepared]):
    """One way to compute attention. `prepare` runs once a step, `forward` once a layer."""

    name: str
    # Whether it works on our kernels' batch (`PagedBackend`): then the model's layers run on kernels as well.
    on_kernels: ClassVar[bool] = False
    graph_support: AttentionCGSupport = AttentionCGSupport.NEVER

    @staticmethod
    def kv_cache_shape(num_blocks: int, block_size: int, num_kv_heads: int, head_dim: int) -> tuple[int, ...]:
        """Shape of one layer's KV cache."""
        return (2, num_blocks, block_size, num_kv_heads, head_dim)

    def can_read_ahead(self, num_decodes: int, num_heads: int, kv_cache: torch.Tensor) -> bool:
        """Whether attention of so many decodes begins, where it is planned, with keys of earlier steps before this
        step's are written: then nothing else that they read may be written in this step."""
        return False

    def use_cascade_attention(self, num_decodes: int, prefix_tokens: int, token_bytes: int) -> bool:
        """Whether decodes with a common prefix attend to it together (`PagedMetadata.prefix_tokens`).

        Args:
            num_decodes: Requests with one new token.
            prefix_tokens: Tokens of the prefix.
            token_bytes: Keys and values of one token in one layer.
        """
        return False

    @abstractmethod
    def prepare(self, metadata: AttentionMetadata, device: torch.device, dtype: torch.dtype) -> Prepared:
        """Turn the facts of a batch into what the kernels take: indices and masks on the device."""

    @abstractmethod
    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        prepared: Prepared,
        window: int | None = None,
    ) -> torch.Tensor:
        """Write this step's keys and values into the cache, then let each query see its request's tokens up to itself.

        Args:
            query: (tokens, num_heads, head_dim), rotated.
            key: (tokens, num_kv_heads, head_dim), rotated.
            value: (tokens, num_kv_heads, head_dim).
            kv_cache: (2, num_blocks, block_size, num_kv_heads, head_dim).
            prepared: What `prepare` returned for this step.
            window: This layer's sliding window: a query sees so many tokens, itself included; None is all. One of the
                windows that the backend was made for.

        Returns:
            (tokens, num_heads, head_dim)
        """


class UnrotatedBackend(AttentionBackend[Prepared]):
    """A backend that norms and rotates heads itself: for models on our kernels it saves two launches a layer."""

    @abstractmethod
    def forward_unrotated(
        self,
        qkv: torch.Tensor,
        positions: torch.Tensor,
        cos_sin: torch.Tensor,
        norms: tuple[torch.Tensor, torch.Tensor] | None,
        eps: float,
        kv_cache: torch.Tensor,
        prepared: Prepared,
        window: int | None = None,
        wanted: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """`forward` from a projection's output as it is: the norms of heads and the rotation are done here.

        Args:
            qkv: (tokens, (num_heads + 2 * num_kv_heads) * head_dim); query and key are changed in place.
            positions: (tokens,) int64.
            cos_sin: (positions, head_dim) float32, see `RotaryEmbedding.table`.
            norms: Weights of the norms of query and key, (head_dim,) each, or None.
            eps: Of the norms.
            kv_cache, prepared, window: As in `forward`.
            wanted: (requests,) each request's last token, if only these are to be attended for; None is all.

        Returns:
            (tokens, num_heads, head_dim), or (requests, num_heads, head_dim)
        """
