"""Owns what is asked of attention kernels of other projects: which package has them, and why they cannot run here.

A package is looked for, and only imported when its backend is asked for by name.

    backend     package               version   pages          where
    flash_attn  flash_attn_interface  3         of any size    Hopper
                vllm                  3 or 2    16 n           Hopper, or any GPU from sm_80 on
                flash_attn            2         256 n          any GPU from sm_80 on
    flashinfer  flashinfer                      of any size    any GPU from sm_80 on

Upstream: vllm/v1/attention/backend.py (`validate_configuration`), vllm/v1/attention/backends/fa_utils.py.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path

import torch


@dataclass(frozen=True, slots=True)
class AttentionNeeds:
    """What a model and its KV cache ask of attention. Upstream: vllm/v1/attention/selector.py::AttentionSelectorConfig.

    Attributes:
        device: Where the model is.
        dtype: Its precision.
        head_dim: Its head size.
        windows: The different sliding windows of its layers; None among them is full attention.
        num_heads: Query heads.
        num_kv_heads: Heads of keys and values.
        block_size: Tokens per block.
        kv_cache_dtype: What the KV cache stores; "auto" is the model's own precision.
    """

    device: torch.device
    dtype: torch.dtype
    head_dim: int
    windows: tuple[int | None, ...] = (None,)
    num_heads: int = 1
    num_kv_heads: int = 1
    block_size: int = 16
    kv_cache_dtype: str = "auto"


@dataclass(frozen=True, slots=True)
class FlashAttnLibrary:
    """One package with FlashAttention.

    Attributes:
        package: What is imported.
        fa_version: Of FlashAttention; 3 is made for Hopper alone.
        page_multiple: What a block size must be a multiple of.
    """

    package: str
    fa_version: int
    page_multiple: int

    def why_not(self, needs: AttentionNeeds) -> str | None:
        """What keeps it from being taken; None if nothing does."""
        if not _is_installed(self.package, f"_vllm_fa{self.fa_version}_C*"):
            return f"{self.package} is not installed"
        if self.fa_version == 3 and capability_of(needs.device)[0] != 9:
            return f"{self.package} has FlashAttention 3, which needs a Hopper GPU"
        if needs.block_size % self.page_multiple:
            return (
                f"{self.package} reads blocks of a multiple of {self.page_multiple} tokens, "
                f"and block_size is {needs.block_size}"
            )
        return None


# In the order of preference.
FLASH_ATTN_LIBRARIES = (
    FlashAttnLibrary("flash_attn_interface", 3, 1),
    FlashAttnLibrary("vllm.vllm_flash_attn", 3, 16),
    FlashAttnLibrary("vllm.vllm_flash_attn", 2, 16),
    FlashAttnLibrary("flash_attn", 2, 256),
)
_HALF = (torch.float16, torch.bfloat16)
# FlashInfer compiles a kernel for each head size; these are the ones it is tested with.
_FLASHINFER_HEADS = (64, 128, 256)


def find_flash_attn(needs: AttentionNeeds) -> FlashAttnLibrary | str:
    """The package to take, or why there is none."""
    obstacle = _why_not_here("FlashAttention", needs) or _why_not_numbers("FlashAttention", needs)
    if obstacle is not None:
        return obstacle
    if needs.head_dim % 8 or needs.head_dim > 256:
        return f"FlashAttention takes heads of a multiple of 8 up to 256, and the head size is {needs.head_dim}"
    reasons: list[str] = []
    for library in FLASH_ATTN_LIBRARIES:
        reason = library.why_not(needs)
        if reason is None:
            return library
        if reason not in reasons:
            reasons.append(reason)
    if all(reason.endswith("is not installed") for reason in reasons):
        return "the package flash-attn is not installed; pip install flash-attn"
    return "; ".join(reasons)


def why_not_flash_attn(needs: AttentionNeeds) -> str | None:
    """What keeps FlashAttention from running here; None if nothing does."""
    found = find_flash_attn(needs)
    return found if isinstance(found, str) else None


def why_not_flashinfer(needs: AttentionNeeds) -> str | None:
    """What keeps FlashInfer from running here; None if nothing does."""
    obstacle = _why_not_here("FlashInfer", needs) or _why_not_numbers("FlashInfer", needs)
    if obstacle is not None:
        return obstacle
    if needs.head_dim not in _FLASHINFER_HEADS:
        sizes = ", ".join(map(str, _FLASHINFER_HEADS))
        return f"FlashInfer takes head sizes {sizes}, and the head size is {needs.head_dim}"
    if not _is_installed("flashinfer"):
        return "the package flashinfer-python is not installed; pip install flashinfer-python"
    return None


def capability_of(device: torch.device) -> tuple[int, int]:
    """Compute capability of a GPU; (0, 0) where there is none."""
    return torch.cuda.get_device_capability(device) if device.type == "cuda" else (0, 0)


def _why_not_here(project: str, needs: AttentionNeeds) -> str | None:
    """What about the device is in the way."""
    if needs.device.type != "cuda":
        return f"{project} needs a GPU, and the model is on a {needs.device.type.upper()}"
    if torch.version.hip is not None:
        return f"{project} is called for NVIDIA's GPUs only"
    major, minor = capability_of(needs.device)
    if (major, minor) < (8, 0):
        return f"this GPU has compute capability {major}.{minor}, and {project} needs 8.0"
    from minivllm.kernels.triton_guard import HAS_TRITON

    return None if HAS_TRITON else "Triton is not installed, and our kernels write the KV cache; pip install triton"


def _why_not_numbers(project: str, needs: AttentionNeeds) -> str | None:
    """What about the precision is in the way."""
    if needs.dtype not in _HALF:
        dtype = str(needs.dtype).removeprefix("torch.")
        return f"{project} computes in float16 or bfloat16, and the model's dtype is {dtype}"
    if needs.kv_cache_dtype != "auto":
        return f"{project} is given the model's own numbers only, and kv_cache_dtype is {needs.kv_cache_dtype}"
    return None


def _is_installed(package: str, extension: str = "*") -> bool:
    """Whether a package is there, without importing it.

    Args:
        package: Its name. Of a dotted name the outer one is looked for as a package, the inner one as a folder.
        extension: What such a folder must have.
    """
    outer, _, inner = package.partition(".")
    spec = importlib.util.find_spec(outer)
    if spec is None or not inner:
        return spec is not None
    return any(list((Path(folder) / inner).glob(extension)) for folder in spec.submodule_search_locations or ())
