"""Every kernel compiles for the GPUs it is written for, on a machine that has none, within their limits."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from _pytest.mark.structures import ParameterSet

from minivllm.kernels.triton_guard import HAS_TRITON
from tests.kernels.builds import BUILDS
from tests.kernels.compiling import SM90, TARGETS

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(not HAS_TRITON, reason="Triton is not installed on this machine")


def variants() -> Iterator[ParameterSet]:
    """Every build for sm_90; for the others only the plain ones by default, without what stands after a comma."""
    for name, target in itertools.product(BUILDS, TARGETS):
        is_extra = "," in name and target != SM90
        yield pytest.param(name, target, id=f"{name}-{target}", marks=[pytest.mark.slow] if is_extra else [])


@pytest.mark.parametrize(("name", "target"), list(variants()))
def test_a_kernel_compiles_within_shared_memory_and_registers(name, target, tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")  # 3.9 warns when it is not said
    make, most_shared = BUILDS[name]
    built = make(target)
    assert built.shared <= min(most_shared, target.shared_bytes)
    assert built.spilled == 0, f"{built.spilled} bytes or registers spilled"


@pytest.mark.slow
@pytest.mark.parametrize("arch", [80, 90])
def test_everything_that_grids_and_benchmarks_launch_compiles(arch, tmp_path):
    command = [sys.executable, "-O", "-m", "tests.kernels.precompile", "--arch", str(arch)]
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path), "TRITON_INTERPRET": "0"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
