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
from tests.kernels.builds import BUILDS, EARLY, RARE
from tests.kernels.compiling import SM90, SM90_EARLY, TARGETS

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(not HAS_TRITON, reason="Triton is not installed on this machine")

# Two addresses a thread, written before a loop and read behind it: 8 bytes and 12. Assemblers do so to hold decode
# in 128 registers (sm_80, behind a prefix) or 96 (Triton 3.9's for sm_90, head size 80). A tile would be hundreds.
MOST_SPILLED = 20


def variants() -> Iterator[ParameterSet]:
    """By default all but the rare ones for sm_90, and for other GPUs those without a comma in their name."""
    for name, target in itertools.product(BUILDS, TARGETS):
        is_extra = name in RARE or ("," in name and target != SM90)
        yield pytest.param(name, target, id=f"{name}-{target}", marks=[pytest.mark.slow] if is_extra else [])


@pytest.mark.parametrize(("name", "target"), list(variants()))
def test_a_kernel_compiles_within_shared_memory_and_registers(name, target, tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")  # 3.9 warns when it is not said
    make, most_shared = BUILDS[name]
    built = make(target)
    assert built.shared <= min(most_shared, target.shared_bytes)
    assert built.spilled <= MOST_SPILLED, f"{built.spilled} bytes or registers spilled"


@pytest.mark.parametrize(
    ("name", "reads_weights"),
    [pytest.param(*item, marks=[pytest.mark.slow] if "," in item[0] else []) for item in EARLY.items()],
)
def test_an_early_kernel_waits_before_it_touches_what_others_write(name, reads_weights, tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")
    built = BUILDS[name][0](SM90_EARLY)
    assert built.spilled == 0
    before, _, after = built.assembly.partition("griddepcontrol.wait")
    assert "griddepcontrol.launch_dependents" in before
    assert ("ld.global" in before) == reads_weights
    assert "st.global" not in before
    assert "cp.async" not in before
    assert "ret;" not in before, "a program that does not wait would let the next kernel run too early"
    assert "ld.global" in after or "cp.async" in after


@pytest.mark.slow
@pytest.mark.parametrize("arch", [80, 90])
def test_everything_that_grids_and_benchmarks_launch_compiles(arch, tmp_path):
    command = [sys.executable, "-O", "-m", "tests.kernels.precompile", "--arch", str(arch)]
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path), "TRITON_INTERPRET": "0"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
