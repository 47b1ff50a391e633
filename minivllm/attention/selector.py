"""Owns the choice of the attention backend, and the reason why each one is taken or left.

Our own kernels are the default wherever they run: they read pages of any size and caches of 8 bits, and nothing has to
be installed for them. FlashAttention and FlashInfer are taken by name only.

Upstream: vllm/v1/attention/selector.py.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import Any

import torch

from minivllm.attention.backend import AttentionBackend
from minivllm.attention.libraries import AttentionNeeds, why_not_flash_attn, why_not_flashinfer

# In the order of preference.
BACKENDS = ("triton", "flash_attn", "flashinfer", "torch_sdpa")
_FOREIGN = {"flash_attn": why_not_flash_attn, "flashinfer": why_not_flashinfer}


def select_backend(
    device: torch.device,
    head_dim: int,
    dtype: torch.dtype,
    windows: Collection[int | None] = (None,),
    forced: str | None = None,
    **others: Any,
) -> tuple[AttentionBackend[Any], dict[str, str]]:
    """Choose the attention backend for a device, a head size and a precision.

    Args:
        device: Where the model is.
        head_dim: Its head size.
        dtype: Its precision.
        windows: The different sliding windows of its layers; None among them is full attention.
        forced: A backend's name, to have that one or an error; None takes the best that can run.
        others: The other fields of `AttentionNeeds`: heads, block size, and what the KV cache stores.

    Returns:
        The backend, and for every backend the reason why it was taken or left.

    Raises:
        ValueError: The forced backend is unknown, or cannot run here.
    """
    if forced is not None and forced not in BACKENDS:
        raise ValueError(f"unknown attention backend {forced!r}; known are {', '.join(BACKENDS)}")
    needs = AttentionNeeds(device, dtype, head_dim, tuple(windows), **others)
    obstacles = {name: why_not(needs) for name, why_not in _FOREIGN.items()}
    obstacles["triton"] = _why_not_triton(device, dtype, is_forced=forced == "triton")
    if forced is not None and (obstacle := obstacles.get(forced)) is not None:
        raise ValueError(f"attention backend {forced!r} cannot run: {obstacle}; leave the choice open")
    chosen = forced or ("torch_sdpa" if obstacles["triton"] else "triton")
    try:
        backend, what = _make(chosen, needs)
    except (ImportError, OSError) as error:
        raise ValueError(f"attention backend {chosen!r} cannot run: its package cannot be imported: {error}") from error
    taken = f"taken: {'it was asked for, and runs' if forced else 'runs'} {what}, {dtype}, head size {head_dim}"
    return backend, {name: taken if name == chosen else _left(name, chosen, obstacles.get(name)) for name in BACKENDS}


def _make(name: str, needs: AttentionNeeds) -> tuple[AttentionBackend[Any], str]:
    """A backend that can run, and on what it does."""
    if name == "flash_attn":
        from minivllm.attention.flash_attn import FlashAttnBackend

        flash_attn = FlashAttnBackend(needs)
        return flash_attn, f"FlashAttention {flash_attn.library.fa_version} of {flash_attn.library.package}"
    if name == "flashinfer":
        from minivllm.attention.flashinfer import FlashInferBackend

        return FlashInferBackend(needs), "FlashInfer"
    if name == "triton":
        from minivllm.attention.triton import TritonBackend

        return TritonBackend(), "on this GPU" if needs.device.type == "cuda" else "in Triton's interpreter"
    from minivllm.attention.torch_sdpa import TorchSdpaBackend

    return TorchSdpaBackend(needs.windows), f"on any device, here {needs.device.type}"


def _left(name: str, chosen: str, obstacle: str | None) -> str:
    """Why a backend was not taken."""
    if obstacle is not None:
        return f"left: {obstacle}"
    if name == "torch_sdpa":
        return f"left: {chosen} is faster, and gives the same up to rounding"
    if name in _FOREIGN:
        return "left: it can run, and is taken by name only"
    return "left: another one was asked for"


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
