"""Owns the gate of the MLP.

Upstream: vllm/model_executor/layers/activation.py::SiluAndMul.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from minivllm.layers.native import native_ops

if TYPE_CHECKING:
    from minivllm.layers.kernel_ops import KernelOps


def silu_and_mul(gate_up: torch.Tensor, kernels: KernelOps | None = None) -> torch.Tensor:
    """silu(gate) * up, (rows, size), of gate and up side by side, (rows, 2 * size), which may be overwritten."""
    if kernels is not None:
        return kernels.silu_and_mul(gate_up)
    ops = native_ops(gate_up)
    if ops is not None:
        return ops.silu_and_mul(gate_up)
    gate, up = gate_up.chunk(2, dim=-1)  # (rows, size) each
    return F.silu(gate, inplace=True) * up
