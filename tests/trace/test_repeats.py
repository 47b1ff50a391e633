"""The same run gives the same bytes: twice in a process, and in processes that hash strings differently."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from minivllm.scenarios.registry import get_scenario
from minivllm.scenarios.replay import workload_from_log
from minivllm.scenarios.run import run_scenario
from minivllm.scenarios.simulate import simulate_to_log
from minivllm.trace.plan_lines import plan_lines
from minivllm.trace.reader import read_log
from tests.trace.workloads import mixed_workload, simulated_log

_RECORD = """
import sys
from pathlib import Path
from minivllm.scenarios.registry import get_scenario
from minivllm.scenarios.run import run_scenario
run_scenario(get_scenario("mixed-batch"), {"model": sys.argv[1]}, log_path=Path(sys.argv[2]), logical=True)
"""


@pytest.mark.parametrize("is_async", [False, True])
def test_a_simulation_repeats(is_async: bool) -> None:
    first, second = (simulated_log(mixed_workload(async_scheduling=is_async), "run.jsonl.gz") for _ in range(2))
    assert first.read_bytes() == second.read_bytes()


def test_a_real_run_repeats(tiny_model: Path, tmp_path: Path) -> None:
    paths = [tmp_path / f"{k}.jsonl.gz" for k in range(2)]
    for path in paths:
        run_scenario(get_scenario("hello"), {"model": str(tiny_model)}, log_path=path, logical=True)
    assert paths[0].read_bytes() == paths[1].read_bytes()


def test_another_order_of_hashing_changes_nothing(tiny_model: Path, tmp_path: Path) -> None:
    paths = [tmp_path / f"{seed}.jsonl" for seed in (1, 2)]
    for seed, path in enumerate(paths, 1):
        environment = {**os.environ, "PYTHONHASHSEED": str(seed), "OMP_NUM_THREADS": "1"}
        subprocess.run([sys.executable, "-c", _RECORD, str(tiny_model), str(path)], env=environment, check=True)
    assert paths[0].read_bytes() == paths[1].read_bytes()


@pytest.mark.parametrize("is_async", [False, True])
def test_a_recorded_run_is_planned_again_as_it_was(is_async: bool) -> None:
    recorded = read_log(simulated_log(mixed_workload(async_scheduling=is_async)))
    workload, token_rule = workload_from_log(recorded, "fixed")
    log, _ = simulate_to_log(workload, None, token_rule)
    assert plan_lines(log.events, is_async=is_async) == plan_lines(recorded.events, is_async=is_async)
