"""Owns RMSNorm, the only normalisation of Llama-shaped models, alone and with the residual connection before it.

Upstream: vllm/model_executor/layers/layernorm.py::RMSNorm.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from minivllm.layers.native import native_ops

if TYPE_CHECKING:
    from minivllm.layers.kernel_ops import KernelOps


class RMSNorm(nn.Module):
    """y = x / sqrt(mean(x^2) + eps) * weight, over the last dimension.

    The square sum needs float32, and vLLM rounds before it multiplies by the weight.
    """

    kernels: KernelOps | None = None

    def __init__(self, size: int, eps: float, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size, device=device, dtype=dtype), requires_grad=False)
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalise x: (rows, size), or (tokens, heads, size) for a norm of heads."""
        if self.kernels is not None and x.dim() == 2:
            return self.kernels.rms_norm(x, self.weight, self.eps)
        ops = native_ops(x)
        return self._normalised(x.float()) if ops is None else ops.rms_norm(x, self.weight, self.eps)

    def add_and_norm(self, x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The norm of residual + x, and that sum, which may overwrite the residual: (rows, size) each.

        Where a product was added on its way (`Linear.add_to`), `forward` is called with the sum in its place.

        What is normalised is the sum before it is rounded: in bfloat16 that is seen in the tokens. (On a GPU, as in
        vLLM, it is the sum as the residual keeps it.)
        """
        if self.kernels is not None:
            return self.kernels.rms_norm(x, self.weight, self.eps, residual), residual
        ops = native_ops(x)
        if ops is not None:
            return ops.rms_norm(x, self.weight, self.eps, residual), residual
        total = residual.float() + x.float()
        return self._normalised(total), total.to(x.dtype)

    def _normalised(self, x: torch.Tensor) -> torch.Tensor:
        scale = torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + self.eps)
        return (x * scale).to(self.weight.dtype) * self.weight
