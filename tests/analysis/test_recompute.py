"""The reason that follows from state, plan and settings is the one that the scheduler recorded."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from minivllm.analysis.iteration import iterations
from minivllm.analysis.recompute import why_not_scheduled
from minivllm.scenarios.registry import all_scenarios
from minivllm.scenarios.simulate import simulate_to_log
from minivllm.scenarios.workload import load_workload
from minivllm.trace.reader import Log, read_log
from tests.differential.workload_generator import generate_workload

# Reasons that the simulator and the scenarios bring; the others need features that a log does not tell of.
COMMON = {"token_budget", "max_num_seqs", "no_free_blocks", "full_sequence_does_not_fit", "preempted"}


def disagreements(log: Log, seen: set[str]) -> Iterator[str]:
    for it in iterations(log):
        plan = it.data("schedule")
        if plan is None:
            continue
        stop = plan["stop"]
        recorded = [*plan["not_scheduled"], *([stop] if stop and stop["request"] is not None else [])]
        for entry in recorded:
            # A victim has two reasons: why it lost its blocks, and why the loop stopped at it afterwards.
            if entry is stop and entry["request"] in plan["preempted"]:
                continue
            seen.add(entry["reason"])
            found = why_not_scheduled(it, entry["request"])
            if found is None or found[0] != entry["reason"]:
                yield f"iteration {it.step}: {entry} was recorded, {found} follows"
            elif found[0] not in ("preempted", "output_in_flight") and found[1] != entry["numbers"]:
                yield f"iteration {it.step}: {entry['numbers']} were recorded, {found[1]} follow"


@pytest.mark.parametrize("path", [s.log_path for s in all_scenarios() if s.log_path.exists()], ids=lambda p: p.stem)
def test_in_every_scenario(path: Path) -> None:
    assert list(disagreements(read_log(path), set())) == []


def test_in_made_up_workloads(tmp_path: Path) -> None:
    seen: set[str] = set()
    for seed in range(40):
        path = tmp_path / "workload.json"
        path.write_text(json.dumps(generate_workload(seed)))
        log, _ = simulate_to_log(load_workload(path, "fixed"))
        assert list(disagreements(Log(log.header, log.events), seen)) == [], f"seed {seed}"
    assert seen >= COMMON
