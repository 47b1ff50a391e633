"""Products of tens to hundreds of rows on a Hopper GPU: all that stands around them, sizes that no tile divides.

Elsewhere one thing is checked: that nobody takes the kernel. (`test_hopper_linear.py` runs it on a CPU, too.)
"""

from __future__ import annotations

import itertools

import torch

from minivllm.kernels.gluon_guard import HAS_GLUON
from minivllm.kernels.hopper_linear import (
    Tiling,
    Unscaled,
    most_rows,
    residual_linear,
    residual_linear_reference,
    unscaled_linear,
    unscaled_linear_reference,
)
from tests.kernels.grids.setup import Setup, assert_near

KINDS = ["unscaled", "gated", "residual"]
SHAPES = [(64, 256), (40, 104), (136, 1024), (96, 2056)]  # (outputs, size)
# Of models of 0.6B, 1B and 1.5B, of SmolLM2-135M, and of nobody.
REAL_SHAPES = [
    (4096, 1024),
    (1024, 2048),
    (3072, 1024),
    (1024, 3072),
    (2048, 8192),
    (8960, 1536),
    (960, 576),
    (576, 1536),
    (1600, 960),
    (904, 1096),
]
ROWS = [1, 17, 33, 64, 65, 130, 200, 256]
# One buffer for each tile, or few for many; 2 or 4 programs for a tile.
TILINGS = [
    Tiling(64, 32, 64, 4, 8),
    Tiling(64, 64, 64, 4, 2, splits=2),
    Tiling(128, 64, 128, 8, 2, splits=2),
    Tiling(64, 32, 128, 4, 3, splits=4),
    Tiling(128, 64, 64, 8, 3),
    Tiling(128, 64, 64, 8, 4, splits=4),
]
EPS = 1e-5


def run(setup: Setup) -> int:
    if not setup.is_gpu or setup.capability != 90 or not HAS_GLUON:
        assert not most_rows(torch.zeros(8, 8, dtype=torch.bfloat16, device=setup.device))
        return 1
    flags = [False, True]
    cases = list(itertools.product(KINDS, ROWS, SHAPES, TILINGS, flags))
    cases += list(itertools.product(KINDS, ROWS, REAL_SHAPES, [None] * 4, flags))
    chosen = setup.choose(cases, 8, 120)
    for kind, rows, shape, tiling, has_bias in chosen:
        compare(setup.device, torch.bfloat16, kind, rows, shape, tiling, has_bias)
    return len(chosen)


def compare(
    device: torch.device,
    dtype: torch.dtype,
    kind: str,
    rows: int,
    shape: tuple[int, int],
    tiling: Tiling | None,
    has_bias: bool,
) -> None:
    """One case: the output, and what it leaves for the next product; twice, since tickets are left behind."""
    outputs, size = shape
    what = f"{kind} {rows=} {shape=} {tiling=} {has_bias=} {dtype=}"
    x = torch.randn(rows, size + 16).to(dtype)[:, :size]
    weight = (torch.randn(2 * outputs if kind == "gated" else outputs, size) * size**-0.5).to(dtype)
    bias = torch.randn(len(weight)).to(dtype) if has_bias else None
    on_device = (weight.to(device), None if bias is None else bias.to(device))
    wide = (weight.double(), None if bias is None else bias.double())
    if kind == "residual":
        residual, gain = torch.randn(rows, outputs).to(dtype), torch.randn(outputs).to(dtype)
        for _ in range(2):
            changed = residual.clone().to(device)
            got = residual_linear(x.to(device), *on_device, changed, (gain.to(device), EPS), tiling)
            expected = residual_linear_reference(x.double(), *wide, residual.double(), (torch.ones(()).double(), EPS))
            assert_near(changed, expected.rows, what)
            assert_near(got.rows, changed.double().cpu() * gain.double(), what)
            assert_near(got.squares.sum(0), changed.double().cpu().square().sum(1), what, 1e-5)
        return
    unscaled = Unscaled((x * torch.randn(size).to(dtype)).contiguous(), _in_parts(x), EPS)
    expected = unscaled_linear_reference(
        Unscaled(unscaled.rows.double(), unscaled.squares, EPS), *wide, is_gated=kind == "gated"
    )
    x_on_device = Unscaled(unscaled.rows.to(device), unscaled.squares.to(device), EPS)
    for _ in range(2):
        assert_near(unscaled_linear(x_on_device, *on_device, kind == "gated", tiling), expected, what)


def _in_parts(x: torch.Tensor) -> torch.Tensor:
    """The squares of rows in three parts, one of them empty."""
    wide = x.float().square()
    return torch.stack([wide[:, :9].sum(1), torch.zeros(len(x)), wide[:, 9:].sum(1)])
