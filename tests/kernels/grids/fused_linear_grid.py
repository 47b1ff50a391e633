"""Products with norm, gate and residual in one kernel: every combination, sizes that no tile divides."""

from __future__ import annotations

import itertools

import torch

from minivllm.kernels.fused_linear import MOST_ROWS, fused_linear, fused_linear_reference
from tests.kernels.grids.setup import Setup, assert_near, poisoned

SHAPES = [(1, 1), (96, 576), (33, 100), (64, 1024), (20, 4100)]  # (N, K)
EPS = 1e-5


def run(setup: Setup) -> int:
    flags = [False, True]
    cases = list(itertools.product(range(MOST_ROWS + 1), SHAPES, flags, flags, flags, flags))
    chosen = [(1, (64, 1024), True, True, False, False), (3, (33, 100), True, False, True, True)]
    chosen += setup.choose(cases, 6, 120)
    for index, (rows, (outputs, size), has_norm, is_gated, has_residual, has_bias) in enumerate(chosen):
        dtype, device = setup.dtype(index), setup.device
        what = f"{rows=} {outputs=} {size=} {has_norm=} {is_gated=} {has_residual=} {has_bias=} {dtype=}"
        weight_rows = 2 * outputs if is_gated else outputs
        x = (torch.randn(rows, size + 16) * 2).to(dtype)[:, :size]
        weight = (torch.randn(weight_rows, size) * size**-0.5).to(dtype)
        bias = torch.randn(weight_rows).to(dtype) if has_bias else None
        norm = torch.randn(size).to(dtype) if has_norm else None
        residual = torch.randn(rows, outputs).to(dtype) if has_residual else None
        expected = fused_linear_reference(
            x.double(),
            weight.double(),
            None if bias is None else bias.double(),
            None if norm is None else (norm.double(), EPS),
            is_gated,
            None if residual is None else residual.double(),
        )
        out = poisoned((rows, outputs), dtype, device) if residual is None else residual.clone().to(device)
        got = fused_linear(
            x.to(device),
            weight.to(device),
            None if bias is None else bias.to(device),
            None if norm is None else (norm.to(device), EPS),
            is_gated,
            None if residual is None else out,
            None if residual is not None else out,
        )
        assert got is out
        assert_near(got, expected, what)
    return len(chosen)
