"""Owns the operations of a layer on a GPU: which of our kernels, or which library, computes each.

A model takes them by `use_kernels`; until then, and on a CPU, its layers compute without them. They launch what the
shapes of their arguments say and nothing else, so a step of one shape can be captured.

    rows of x        1         2         3 and 4   5 ... 32     33 ... 64    65 ... 128   129 ... 256   more
    small weights    fused     fused     fused     skinny       cuBLAS       cuBLAS       cuBLAS        cuBLAS
    large ones       fused     cuBLAS    cuBLAS    cuBLAS       cuBLAS       cuBLAS       cuBLAS        cuBLAS
    bf16, Hopper:
        small        fused     fused     joined    joined       joined       joined       joined        cuBLAS
        large        fused     joined    joined    joined       joined       both         cuBLAS        cuBLAS
    a head           GEMV      GEMV      skinny    skinny       cuBLAS       cuBLAS       cuBLAS        cuBLAS

Small and large are said of all weights of the layers. Both: joined, if gates and ups have at most 128 rows for each
multiprocessor, else cuBLAS.

Fused or joined, a layer is six launches, see models/few_rows.py and models/some_rows.py; otherwise there is one for
each operation.

Upstream: vllm/_custom_ops.py and vllm/model_executor/layers/utils.py::dispatch_unquantized_gemm.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from minivllm.kernels import fused_linear, hopper_linear, rms_norm, silu_and_mul, skinny_linear
from minivllm.kernels.launch import gpu_of

# A weight of fewer numbers (16 MB in 16 bits) is small: cuBLAS has programs for a part of the processors only.
SMALL_WEIGHT = 1 << 23
# Beyond, joined products are faster where there are any.
_MOST_FUSED_BEFORE_JOINED = 2
# What a joined product takes of gates and ups, see `hopper_linear.tiling_for`.
_WEIGHT_ROWS_OF_A_PROGRAM = 128


@dataclass(frozen=True, slots=True)
class KernelOps:
    """Our kernels in the place of a layer's operations.

    Why these limits, on an H200: the four products of a layer of a 0.6B model took 21, 22, 23 and 28 us with 8, 16, 32
    and 64 rows, cuBLAS 25, 25, 25 and 26. Its head took 81 and 99 us with 32 and 64 rows, cuBLAS 83 and 86. Of an 8B
    model's layer every product alone with more than one row is faster with cuBLAS: its programs read x less often.

    Joined (`hopper_linear`), all kernels of such a layer but attention took 21.5, 20.9, 26.4 and 34.6 us with 32, 64,
    128 and 256 rows, and 30.7, 30.7, 32.6 and 39.0 without; 23.3 and 24.6 with 8 rows, 77.2 and 73.1 with 1024.
    Fused GEMVs read x row by row: a step of a 0.6B model took 0.77 ms with 2 requests and 1.01 with 3, and joined 0.90
    with 8. Of an 8B model it took 4.58 with 2, by cuBLAS, and 4.29 joined.

    Attributes:
        most_fused_rows: Up to so many rows, norms, gates and residuals are part of the products. 0: never.
        least_joined_rows, most_joined_rows: From and up to so many they are part of Hopper's own products. 0: never.
        most_skinny_rows: Up to so many rows it is our own product, if the weight is small.
        most_head_rows: The same for a weight as tall as a head.
    """

    most_fused_rows: int = fused_linear.MOST_ROWS
    least_joined_rows: int = 2
    most_joined_rows: int = hopper_linear.MOST_ROWS
    most_skinny_rows: int = 32
    most_head_rows: int = 32

    def rms_norm(
        self, x: torch.Tensor, weight: torch.Tensor, eps: float, residual: torch.Tensor | None = None
    ) -> torch.Tensor:
        """The norm of each row of x, (rows, size), or of residual + x, which the residual becomes."""
        return rms_norm.rms_norm(x, weight, eps, residual)

    def silu_and_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        """silu(gate) * up, (rows, size), of both side by side, (rows, 2 * size)."""
        return silu_and_mul.silu_and_mul(gate_up)

    def linear(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """x @ weight.T + bias: (rows, out)."""
        if self.is_for_library(x, weight):
            return F.linear(x, weight, bias)
        return skinny_linear.skinny_linear(x, weight, bias)

    def is_for_library(self, x: torch.Tensor, weight: torch.Tensor) -> bool:
        """Whether cuBLAS multiplies so many rows with a weight.

        It adds to the residual in the same go. With 16,384 rows of an 8B model that takes no longer than the product
        alone, and the norm behind it, which has nothing to add then, 73 us instead of 134.
        """
        return len(x) > self.most_rows(weight)

    def most_rows(self, weight: torch.Tensor) -> int:
        """Up to how many rows of x a product with a weight is our own."""
        if len(weight) >= skinny_linear.MANY_OUTPUTS:
            return self.most_head_rows
        return self.most_skinny_rows if weight.numel() < SMALL_WEIGHT else 1

    def most_fused(self, weight: torch.Tensor) -> int:
        """Up to how many rows of x it is part of one launch with what stands around it."""
        most = min(self.most_fused_rows, self.most_rows(weight))
        return min(most, _MOST_FUSED_BEFORE_JOINED) if self.most_joined(weight) else most

    def most_joined(self, weight: torch.Tensor) -> int:
        """Up to how many rows of x a product has norms, gate or residual in it, and its weight is read ahead."""
        most = min(self.most_joined_rows, hopper_linear.most_rows(weight))
        if weight.numel() < SMALL_WEIGHT or most == 0:
            return most
        # Beyond 64 rows programs are large, and two on one multiprocessor slow each other down.
        processors = gpu_of(weight.device).processors
        return min(most, 128 if len(weight) <= _WEIGHT_ROWS_OF_A_PROGRAM * processors else 64)

    def unscaled_linear(
        self, x: hopper_linear.Unscaled, weight: torch.Tensor, bias: torch.Tensor | None, is_gated: bool = False
    ) -> torch.Tensor:
        """x @ weight.T + bias, or the gate of that, for up to `most_joined` rows that lack the scale of their norm."""
        return hopper_linear.unscaled_linear(x, weight, bias, is_gated)

    def residual_linear(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        residual: torch.Tensor,
        next_norm: fused_linear.Norm,
    ) -> hopper_linear.Unscaled:
        """Add x @ weight.T + bias to the residual, in place; the residual's norm but for its scale."""
        return hopper_linear.residual_linear(x, weight, bias, residual, next_norm)

    def fused_linear(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        norm: fused_linear.Norm | None = None,
        is_gated: bool = False,
        residual: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """x @ weight.T + bias for up to `most_fused_rows` rows, the norm of x before it, gate or residual after it.

        What is added to the residual is added in place, and the residual is what is returned.
        """
        return fused_linear.fused_linear(x, weight, bias, norm, is_gated, residual)
