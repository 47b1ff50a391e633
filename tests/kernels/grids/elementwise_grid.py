"""RMSNorm with and without a residual, and SiLU times up: sizes that are no powers of two, gaps between rows."""

from __future__ import annotations

import itertools

import torch

from minivllm.kernels.rms_norm import rms_norm, rms_norm_reference
from minivllm.kernels.silu_and_mul import silu_and_mul, silu_and_mul_reference
from tests.kernels.grids.setup import Setup, assert_near, poisoned

SIZES = [1, 31, 64, 576, 896, 1000, 1024, 4096, 5120]
ROWS = [0, 1, 3, 17]
EPS = 1e-5


def run(setup: Setup) -> int:
    chosen = setup.choose(list(itertools.product(SIZES, ROWS, [False, True])), 14, 100)
    for index, (size, rows, has_residual) in enumerate(chosen):
        dtype, device = setup.dtype(index), setup.device
        what = f"{size=} {rows=} {has_residual=} {dtype=}"
        x = (torch.randn(rows, size + 4) * 3).to(dtype)[:, :size]
        weight = torch.randn(size).to(dtype)
        residual = torch.randn(rows, size).to(dtype) if has_residual else None
        # The sum is rounded in both, so that the norms are of the same numbers.
        summed = x if residual is None else x + residual
        expected = rms_norm_reference(summed.double(), weight.double(), EPS)
        out = poisoned((rows, size), dtype, device)
        on_device = None if residual is None else residual.to(device)
        got = rms_norm(x.to(device), weight.to(device), EPS, on_device, out)
        assert got is out
        assert_near(out, expected, what)
        if on_device is not None:
            assert torch.equal(on_device.cpu(), summed), f"{what}: the residual is the sum"
        gate_up = (torch.randn(rows, 2 * size + 4) * 4).to(dtype)[:, : 2 * size]
        out = poisoned((rows, size), dtype, device)
        got = silu_and_mul(gate_up.to(device), out)
        assert got is out
        assert_near(out, silu_and_mul_reference(gate_up.double()), f"silu {what}")
    return 2 * len(chosen)
