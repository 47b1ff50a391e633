"""A few rows times a weight: every number of rows, sizes that no tile divides."""

from __future__ import annotations

import itertools

import torch

from minivllm.kernels.skinny_linear import MOST_ROWS, skinny_linear, skinny_linear_reference
from tests.kernels.grids.setup import Setup, assert_near, poisoned

SHAPES = [(1, 1), (96, 576), (63, 100), (128, 1024), (70, 3072), (30, 4096), (515, 260)]  # (N, K)


def run(setup: Setup) -> int:
    cases = list(itertools.product(range(MOST_ROWS + 1), SHAPES, [False, True]))
    chosen = [(1, (128, 1024), True), (16, (63, 100), True), *setup.choose(cases, 10, 150)]
    for index, (rows, (outputs, size), has_bias) in enumerate(chosen):
        dtype, device = setup.dtype(index), setup.device
        x = torch.randn(rows, size + 16).to(dtype)[:, :size]
        weight = (torch.randn(outputs, size) * size**-0.5).to(dtype)
        bias = torch.randn(outputs).to(dtype) if has_bias else None
        expected = skinny_linear_reference(x.double(), weight.double(), None if bias is None else bias.double())
        out = poisoned((rows, outputs), dtype, device)
        got = skinny_linear(x.to(device), weight.to(device), None if bias is None else bias.to(device), out)
        assert got is out
        assert_near(got, expected, f"{rows=} {outputs=} {size=} {has_bias=} {dtype=}")
    return len(chosen)
