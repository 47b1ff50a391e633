"""Owns the gate of Llama's MLP.

    out = silu(gate) * up        silu(g) = g / (1 + e^-g)        [gate | up] is one row of a projection's output

Upstream: vllm/model_executor/layers/activation.py::SiluAndMul.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from minivllm.kernels.early_launch import begin_early, early_launch, wait_for_earlier
from minivllm.kernels.triton_guard import cdiv, jit, tl

# 4 warps x 32 threads x 8 numbers: 16 bytes a thread where a number has two.
TILE = 1024
NUM_WARPS = 4


def silu_and_mul_reference(gate_up: torch.Tensor) -> torch.Tensor:
    """What the kernel does, in plain PyTorch."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up


@jit
def silu_and_mul_kernel(
    out_ptr,
    gate_up_ptr,
    gate_up_stride,
    out_stride,
    size: tl.constexpr,
    tile: tl.constexpr,
    early: tl.constexpr,
):
    """A tile of one row.

    [ gate: tile 0 | tile 1 | ...      | up: tile 0 | tile 1 | ...     ]     program i takes tile i of both
    """
    # When this kernel begins, and nothing that it computes: see early_launch.py, later in the course.
    begin_early(early)
    wait_for_earlier(early)
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * tile + tl.arange(0, tile)
    is_real = column < size
    gate_row = gate_up_ptr + row * gate_up_stride + column
    gate = tl.load(gate_row, mask=is_real, other=0.0)
    up = tl.load(gate_row + size, mask=is_real, other=0.0)
    wide = gate.to(tl.float32)
    # Rounded between the two, as the reference does.
    silu = (wide / (1.0 + tl.exp(-wide))).to(gate.dtype)
    product = silu.to(tl.float32) * up.to(tl.float32)
    tl.store(out_ptr + row * out_stride + column, product.to(out_ptr.dtype.element_ty), mask=is_real)


def silu_and_mul(gate_up: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """The gate, row by row.

    Args:
        gate_up: (rows, 2 * size), contiguous rows.
        out: Written if given. (rows, size)

    Returns:
        (rows, size)
    """
    rows, size = len(gate_up), gate_up.shape[1] // 2
    out = torch.empty((rows, size), dtype=gate_up.dtype, device=gate_up.device) if out is None else out
    if rows:
        silu_and_mul_kernel[(rows, cdiv(size, TILE))](
            out,
            gate_up,
            gate_up.stride(0),
            out.stride(0),
            size=size,
            tile=TILE,
            num_warps=NUM_WARPS,
            **early_launch(gate_up.device, len(gate_up)),
        )
    return out
