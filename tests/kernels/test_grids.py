"""Every kernel equals its reference: in Triton's interpreter on a CPU, over a quick and a full grid, and on a GPU.

The grids are in `tests/kernels/grids`, and run in one process for all kernels.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from minivllm.kernels.triton_guard import HAS_TRITON
from tests.kernels.grids.__main__ import NAMES

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(not HAS_TRITON, reason="Triton is not installed on this machine")


@cache
def run_grids(device: str, *options: str) -> dict[str, dict[str, Any]]:
    """What each grid said. Two processes share them: one for each of two cores."""
    environment = {**os.environ, "TRITON_INTERPRET": "1" if device == "cpu" else "0", "OMP_NUM_THREADS": "1"}
    running = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.kernels.grids", "--device", device, *options, *names],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for names in (NAMES[::2], NAMES[1::2])
    ]
    ended = [process.communicate() for process in running]
    lines = [json.loads(line) for out, _ in ended for line in out.splitlines()]
    assert len(lines) == len(NAMES), "".join(err for _, err in ended)
    return {line["name"]: line for line in lines}


def check(line: dict[str, Any]) -> None:
    assert line["error"] is None, line["error"]
    assert line["cases"] > 0


@pytest.mark.parametrize("name", NAMES)
def test_a_kernel_equals_its_reference_in_the_interpreter(name):
    check(run_grids("cpu")[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_kernel_equals_its_reference_over_the_whole_grid(name):
    check(run_grids("cpu", "--full", "--seed", "1")[name])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")
@pytest.mark.parametrize("name", NAMES)
def test_a_kernel_equals_its_reference_on_a_gpu(name):
    check(run_grids("cuda", "--full")[name])
