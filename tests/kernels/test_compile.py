"""Every kernel compiles for the GPUs it is written for, on a machine that has none, within their limits."""

from __future__ import annotations

import pytest

from minivllm.kernels.triton_guard import HAS_TRITON
from tests.kernels.builds import BUILDS
from tests.kernels.compiling import TARGETS

pytestmark = pytest.mark.skipif(not HAS_TRITON, reason="Triton is not installed on this machine")


@pytest.mark.parametrize("target", TARGETS, ids=str)
@pytest.mark.parametrize("name", BUILDS)
def test_a_kernel_compiles_within_shared_memory_and_registers(name, target, tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")  # 3.9 warns when it is not said
    make, most_shared = BUILDS[name]
    built = make(target)
    assert built.shared <= min(most_shared, target.shared_bytes)
    assert built.spilled == 0, f"{built.spilled} bytes or registers spilled"
