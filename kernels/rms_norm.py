"""Owns RMSNorm, alone and together with the addition to the residual before it.

    residual = residual + x                       (only if there is a residual; it is changed in place)
    y = residual / sqrt(mean(residual^2) + eps) * weight

Alone, the addition reads two rows and writes one, and the norm reads that one again and writes another: five rows of
traffic. Together they are four, and one launch instead of two.

Upstream: vllm/model_executor/layers/layernorm.py::RMSNorm.
"""

from __future__ import annotations

import torch

from minivllm.kernels.early_launch import begin_early, early_launch, wait_for_earlier
from minivllm.kernels.triton_guard import jit, next_power_of_2, tl

# Numbers that one thread holds. 8 of 16 bits are 16 bytes, one load.
NUMBERS_PER_THREAD = 8
MOST_WARPS = 16


def rms_norm_reference(
    x: torch.Tensor, weight: torch.Tensor, eps: float, residual: torch.Tensor | None = None
) -> torch.Tensor:
    """What the kernel does, in plain PyTorch. Arguments as in `rms_norm`."""
    if residual is not None:
        x = residual.add_(x)
    wide = x.float() if x.dtype.itemsize < 4 else x
    scaled = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return scaled.to(x.dtype) * weight


@jit
def rms_norm_kernel(
    out_ptr,
    x_ptr,
    residual_ptr,
    weight_ptr,
    eps,
    out_stride,
    x_stride,
    residual_stride,
    size: tl.constexpr,
    size_padded: tl.constexpr,
    has_residual: tl.constexpr,
    early: tl.constexpr,
):
    """One row.

    row   [ x0 x1 ... x(size-1) | masked up to size_padded ]      held in registers from load to store
    """
    begin_early(early)
    wait_for_earlier(early)
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, size_padded)
    is_real = column < size
    x = tl.load(x_ptr + row * x_stride + column, mask=is_real, other=0.0)  # (size_padded,)
    if has_residual:
        residual_row = residual_ptr + row * residual_stride + column
        residual = tl.load(residual_row, mask=is_real, other=0.0)
        # Rounded before it is normed: the residual that the next layer reads is the one that was normed here.
        x = (x.to(tl.float32) + residual.to(tl.float32)).to(x.dtype)
        tl.store(residual_row, x, mask=is_real)
    wide = x.to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide, 0) / size + eps)
    weight = tl.load(weight_ptr + column, mask=is_real, other=0.0).to(tl.float32)
    # Rounded before it is weighted, as the models were trained.
    scaled = (wide * scale).to(x.dtype).to(tl.float32)
    tl.store(out_ptr + row * out_stride + column, (scaled * weight).to(out_ptr.dtype.element_ty), mask=is_real)


def rms_norm(
    x: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    residual: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Norm each row, after adding it to the residual if there is one.

    Args:
        x: (rows, size), contiguous rows.
        weight: (size,)
        eps: Keeps a row of zeros from dividing by zero.
        residual: (rows, size); becomes residual + x.
        out: Written if given; may be x.

    Returns:
        (rows, size)
    """
    rows, size = x.shape
    out = torch.empty_like(x) if out is None else out
    if rows == 0:
        return out
    size_padded = next_power_of_2(size)
    added_to = x if residual is None else residual
    rms_norm_kernel[(rows,)](
        out,
        x,
        added_to,
        weight,
        eps,
        out.stride(0),
        x.stride(0),
        added_to.stride(0),
        size=size,
        size_padded=size_padded,
        has_residual=residual is not None,
        num_warps=min(MOST_WARPS, max(1, size_padded // (32 * NUMBERS_PER_THREAD))),
        **early_launch(x.device, len(x)),
    )
    return out
