"""Owns the matrix product with a weight, and the choice of the library that computes it on a CPU.

Upstream: vllm/model_executor/layers/linear.py and vllm/model_executor/layers/utils.py (the CPU dispatch).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

_FEW_ROWS = 4
_ONEDNN_LINEAR = hasattr(torch.ops.mkldnn, "_linear_pointwise")


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """x @ weight.T + bias, with weight (out, in) as checkpoints store it.

    In float32 on x86 PyTorch's own choice is MKL, which on AMD reaches half of what oneDNN does with the same plain
    weights (1 row of 576 x 3072: 448 us against 142 us; 128 rows: 3354 us against 1296 us).
    """
    if _ONEDNN_LINEAR and x.device.type == "cpu" and x.dtype == torch.float32:
        out: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
        return out
    if x.device.type == "cpu" and x.dtype == torch.float16 and len(x) > _FEW_ROWS:
        # Few CPUs multiply float16, and PyTorch then goes number by number. To convert the weights first is six times
        # faster (32 rows of 576 x 3072: 4726 us against 782 us).
        wide = linear(x.float(), weight.float(), None if bias is None else bias.float())
        return wide.to(torch.float16)
    return F.linear(x, weight, bias)


class Linear(nn.Module):
    """A product whose rows may be several of a checkpoint's weights, one below the other: one large product is faster
    than several small ones."""

    def __init__(self, inputs: int, outputs: int, device: torch.device, dtype: torch.dtype, *, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs, device=device, dtype=dtype), requires_grad=False)
        self.bias = (
            nn.Parameter(torch.empty(outputs, device=device, dtype=dtype), requires_grad=False) if bias else None
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return linear(x, self.weight, self.bias)

    def slots(self, **rows: int) -> dict[str, torch.Tensor]:
        """Views for the parts by their names, top to bottom, each with its number of rows."""
        sizes = list(rows.values())
        slots = dict(zip([f"{name}.weight" for name in rows], torch.split(self.weight, sizes), strict=True))
        if self.bias is not None:
            slots |= zip([f"{name}.bias" for name in rows], torch.split(self.bias, sizes), strict=True)
        return slots
