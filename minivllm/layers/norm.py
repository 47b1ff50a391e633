"""Owns RMSNorm, the only normalisation of Llama-shaped models.

Upstream: vllm/model_executor/layers/layernorm.py::RMSNorm.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn


class RMSNorm(nn.Module):
    """y = x / sqrt(mean(x^2) + eps) * weight, over the last dimension."""

    def __init__(self, size: int, eps: float, device: torch.device, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size, device=device, dtype=dtype), requires_grad=False)
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.dtype == torch.float32:
            return F.rms_norm(x, self.weight.shape, self.weight, self.eps)
        # The square sum needs float32, and the reference rounds before it multiplies by the weight.
        return F.rms_norm(x.float(), self.weight.shape, None, self.eps).to(x.dtype) * self.weight
