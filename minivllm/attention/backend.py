"""Owns the interface between a model and the attention kernels, and the choice of kernels.

The KV cache of one layer is logically

    (2, num_blocks, block_size, num_kv_heads, head_dim)      [0] is keys, [1] is values

so that *slot* `block * block_size + offset` is one token's keys (or values) of all heads, contiguous. What a step needs
to know about its batch arrives as an explicit `AttentionMetadata`; there is no global context.

Upstream: vllm/v1/attention/backend.py and vllm/v1/attention/selector.py.
"""

from __future__ import annotations

import importlib.util
import os
from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

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


class AttentionBackend(ABC, Generic[Prepared]):
    """One way to compute attention. `prepare` runs once a step, `forward` once a layer."""

    name: str
    # Whether `forward_unrotated` is there: for models on our kernels it saves two launches a layer.
    takes_unrotated: ClassVar[bool] = False

    @staticmethod
    def kv_cache_shape(num_blocks: int, block_size: int, num_kv_heads: int, head_dim: int) -> tuple[int, ...]:
        """Shape of one layer's KV cache."""
        return (2, num_blocks, block_size, num_kv_heads, head_dim)

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
    ) -> torch.Tensor:
        """`forward` from a projection's output as it is: the norms of heads and the rotation are done here.

        Args:
            qkv: (tokens, (num_heads + 2 * num_kv_heads) * head_dim); query and key are changed in place.
            positions: (tokens,) int64.
            cos_sin: (positions, head_dim) float32, see `RotaryEmbedding.table`.
            norms: Weights of the norms of query and key, (head_dim,) each, or None.
            eps: Of the norms.
            kv_cache, prepared, window: As in `forward`.

        Returns:
            (tokens, num_heads, head_dim)
        """
        raise NotImplementedError(f"the attention backend {self.name} takes rotated queries and keys only")


# In the order of preference.
_BACKENDS = ("triton", "flash_attn", "flashinfer", "torch_sdpa")
# What others compute, and the package that has it. Nothing here calls it yet: the reasons say so.
_FOREIGN = {"flash_attn": ("FlashAttention", "flash-attn"), "flashinfer": ("FlashInfer", "flashinfer-python")}


def select_backend(
    device: torch.device,
    head_dim: int,
    dtype: torch.dtype,
    windows: Collection[int | None] = (None,),
    forced: str | None = None,
) -> tuple[AttentionBackend[Any], dict[str, str]]:
    """Choose the attention backend for a device, a head size and a precision.

    Args:
        device: Where the model is.
        head_dim: Its head size.
        dtype: Its precision.
        windows: The different sliding windows of its layers; None among them is full attention.
        forced: A backend's name, to have that one or an error; None takes the best that can run.

    Returns:
        The backend, and for every backend the reason why it was taken or left.

    Raises:
        ValueError: The forced backend is unknown, or cannot run here.
    """
    if forced is not None and forced not in _BACKENDS:
        raise ValueError(f"unknown attention backend {forced!r}; known are {', '.join(_BACKENDS)}")
    foreign = {name: _why_not_foreign(name, device) for name in _FOREIGN}
    if forced in foreign:
        raise ValueError(f"attention backend {forced!r} cannot run: {foreign[forced]}; leave the choice open")
    left = {name: f"left: {why}" for name, why in foreign.items()}
    obstacle = _why_not_triton(device, dtype, is_forced=forced == "triton")
    if forced == "triton" and obstacle is not None:
        raise ValueError(f"attention backend 'triton' cannot run: {obstacle}; leave the choice open")
    chosen = "it was asked for, and runs" if forced else "runs"
    if forced == "triton" or (forced is None and obstacle is None):
        from minivllm.attention.triton import TritonBackend

        where = "on this GPU" if device.type == "cuda" else "in Triton's interpreter"
        reasons = {"triton": f"taken: {chosen} {where}, {dtype}, head size {head_dim}"}
        return TritonBackend(), {
            **reasons,
            **left,
            "torch_sdpa": "left: triton is faster, and gives the same up to rounding",
        }
    from minivllm.attention.torch_sdpa import TorchSdpaBackend

    reasons = {"triton": f"left: {obstacle or 'another one was asked for'}", **left}
    reasons["torch_sdpa"] = f"taken: {chosen} on any device, here {device.type}, {dtype}, head size {head_dim}"
    return TorchSdpaBackend(windows), reasons


def _why_not_triton(device: torch.device, dtype: torch.dtype, is_forced: bool) -> str | None:
    """What keeps our kernels from running here; None if nothing does. Triton is imported only where there is a GPU."""
    if device.type != "cuda":
        if os.environ.get("TRITON_INTERPRET") != "1":
            return f"the model is on a {device.type.upper()}: no GPU here"
        if not is_forced:
            return (
                f"no GPU here, only Triton's interpreter on a {device.type.upper()}, which is slow; ask for it by name"
            )
        if dtype == torch.bfloat16:
            return "Triton's interpreter cannot multiply bfloat16; take float32"
    elif torch.version.hip is None and (capability := torch.cuda.get_device_capability(device)) < (8, 0):
        return f"this GPU has compute capability {capability[0]}.{capability[1]}, and the kernels need 8.0"
    from minivllm.kernels.triton_guard import HAS_TRITON

    return None if HAS_TRITON else "Triton is not installed; pip install triton"


def _why_not_foreign(name: str, device: torch.device) -> str:
    """What keeps another project's kernels from running here."""
    project, package = _FOREIGN[name]
    if device.type != "cuda":
        return f"{project} needs a GPU, and the model is on a {device.type.upper()}"
    if importlib.util.find_spec(name) is None:
        return f"the package {package} is not installed, and minivllm has no code that would call it"
    return f"{package} is installed, and minivllm has no code that calls it: triton reads pages of any size"
