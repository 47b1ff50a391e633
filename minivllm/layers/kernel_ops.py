"""Owns the operations of a layer on a GPU: which of our kernels, or which library, computes each.

A model takes them by `use_kernels`; until then, and on a CPU, its layers compute without them. They launch what the
shapes of their arguments say and nothing else, so a step of one shape can be captured.

    rows of x        1 ... 4              5 ... 8             more
    linear           GEMV                 skinny GEMM         cuBLAS
    a layer          six launches,        one launch for each operation
                     see models/few_rows.py

Upstream: vllm/_custom_ops.py and vllm/model_executor/layers/utils.py::dispatch_unquantized_gemm.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from minivllm.kernels import fused_linear, rms_norm, silu_and_mul, skinny_linear


@dataclass(frozen=True, slots=True)
class KernelOps:
    """Our kernels in the place of a layer's operations.

    Attributes:
        most_fused_rows: Up to so many rows, norms, gates and residuals are part of the products. 0: never.
        most_skinny_rows: Up to so many rows a product is our own kernel. Its programs read x again and again, from the
            second-level cache: with 8 rows half as much as they read of the weight, which the cache can give beside
            what memory gives; with 16 rows as much, which it cannot. cuBLAS, made for large products, covers too few
            of the processors here (a fifth of the bandwidth at one row of a 0.6B model), and wins from there on.
    """

    most_fused_rows: int = fused_linear.MOST_ROWS
    most_skinny_rows: int = 8

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
        if len(x) <= self.most_skinny_rows:
            return skinny_linear.skinny_linear(x, weight, bias)
        return F.linear(x, weight, bias)

    def fused_linear(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        norm: fused_linear.Norm | None = None,
        is_gated: bool = False,
        residual: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """The same for up to `most_fused_rows` rows, with the norm of x before it, the gate or residual after it.

        What is added to the residual is added in place, and the residual is what is returned.
        """
        return fused_linear.fused_linear(x, weight, bias, norm, is_gated, residual)
