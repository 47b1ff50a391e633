"""Owns the matrix product with a weight, and the choice of the library that computes it on a CPU.

On a GPU `kernel_ops.py` chooses.

Upstream: vllm/model_executor/layers/linear.py and vllm/model_executor/layers/utils.py (the CPU dispatch).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import nn

if TYPE_CHECKING:
    from minivllm.layers.kernel_ops import KernelOps

_FEW_ROWS = 4
_ONEDNN_LINEAR = hasattr(torch.ops.mkldnn, "_linear_pointwise")
# oneDNN lays packed weights out for a number of rows. What it takes for 32 is the fastest, or as fast, from 1 to 2048.
_ROWS_TO_PACK_FOR = 32


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """x @ weight.T + bias, with weight (out, in) as checkpoints store it.

    In float32 on x86 PyTorch's own choice is MKL, which on AMD reaches half of what oneDNN does with the same plain
    weights (1 row of 576 x 3072: 448 us against 142 us; 128 rows: 3354 us against 1296 us).
    """
    if _ONEDNN_LINEAR and x.device.type == "cpu" and x.dtype == torch.float32:
        return _onednn_linear(x, weight, bias)
    if x.device.type == "cpu" and x.dtype == torch.float16 and len(x) > _FEW_ROWS:
        # Few CPUs multiply float16, and PyTorch then goes number by number. To convert the weights first is six times
        # faster (32 rows of 576 x 3072: 4726 us against 782 us).
        wide = linear(x.float(), weight.float(), None if bias is None else bias.float())
        return wide.to(torch.float16)
    return F.linear(x, weight, bias)


def _onednn_linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    out: torch.Tensor = torch.ops.mkldnn._linear_pointwise.default(x, weight, bias, "none", [], "")
    return out


def can_pack(dtype: torch.dtype) -> bool:
    """Whether oneDNN multiplies with packed weights of this precision on this processor."""
    if not _ONEDNN_LINEAR or not torch.backends.mkldnn.is_available():
        return False
    return dtype == torch.float32 or (dtype == torch.bfloat16 and torch.ops.mkldnn._is_mkldnn_bf16_supported())


class Linear(nn.Module):
    """A product whose rows may be several of a checkpoint's weights, one below the other: one large product is faster
    than several small ones."""

    kernels: KernelOps | None = None

    def __init__(self, inputs: int, outputs: int, device: torch.device, dtype: torch.dtype, *, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs, device=device, dtype=dtype), requires_grad=False)
        self.bias = (
            nn.Parameter(torch.empty(outputs, device=device, dtype=dtype), requires_grad=False) if bias else None
        )
        self.packed: torch.Tensor | None = None
        self.is_shared = False

    @classmethod
    def of(cls, weight: nn.Parameter) -> Linear:
        """A product with a weight that has another use, too: the embedding of a model that ties its head to it."""
        shared = cls(weight.shape[1], 0, weight.device, weight.dtype, bias=False)
        shared.weight, shared.is_shared = weight, True
        return shared

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.packed is not None:
            return _onednn_linear(x, self.packed, self.bias)
        if self.kernels is not None:
            return self.kernels.linear(x, self.weight, self.bias)
        return linear(x, self.weight, self.bias)

    def add_to(self, residual: torch.Tensor, x: torch.Tensor) -> torch.Tensor | None:
        """Add the product to the residual, in place, where the library that multiplies can do that on the way.

        Returns:
            The product, (rows, out), where it cannot: the next norm adds it (`RMSNorm.add_and_norm`).
        """
        if self.bias is None and self.kernels is not None and self.kernels.is_for_library(x, self.weight):
            residual.addmm_(x, self.weight.t())
            return None
        return self.forward(x)

    def pack(self) -> None:
        """Give the weight the layout that the processor reads fastest. It can no longer be loaded or looked at."""
        if self.weight.device.type == "cpu" and can_pack(self.weight.dtype):
            weight = self.weight.detach()
            self.packed = torch.ops.mkldnn._reorder_linear_weight(weight, _ROWS_TO_PACK_FOR)
            self.weight = nn.Parameter(weight.new_empty(0), requires_grad=False)

    def slots(self, **rows: int) -> dict[str, torch.Tensor]:
        """Views for the parts by their names, top to bottom, each with its number of rows."""
        assert self.packed is None, "weights are loaded before they are packed"
        sizes = list(rows.values())
        slots = dict(zip([f"{name}.weight" for name in rows], torch.split(self.weight, sizes), strict=True))
        if self.bias is not None:
            slots |= zip([f"{name}.bias" for name in rows], torch.split(self.bias, sizes), strict=True)
        return slots


def pack_weights(model: object, most_copied_bytes: int) -> None:
    """Pack every `Linear` of a model, one at a time.

    A weight that has another use is there twice then: as it is, and packed. It pays: the head of a small model with a
    large vocabulary is a fifth of all that a step reads.

    Args:
        model: Loaded.
        most_copied_bytes: A weight that has another use is packed only if it is not larger.
    """
    assert isinstance(model, nn.Module), "a model keeps its layers as modules"
    for module in model.modules():
        if isinstance(module, Linear) and not (module.is_shared and module.weight.nbytes > most_copied_bytes):
            module.pack()
