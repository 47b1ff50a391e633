"""A recorded run, planned again: with its own settings the same plans come out, whatever was in the run."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from minivllm.scenarios.registry import all_scenarios, get_scenario
from minivllm.scenarios.replan import replan
from minivllm.scenarios.run import run_scenario
from minivllm.scenarios.simulate import simulate_to_log
from minivllm.scenarios.workload import load_workload
from minivllm.trace.events import Event
from minivllm.trace.reader import Log, LogError, read_log
from tests.analysis.logs import changed, recorded
from tests.differential.workload_generator import generate_workload
from tests.trace.workloads import mixed_workload, simulated_log

# What the scheduler decided and did; of `update`, the order of rows is the worker's.
PLANNED = ("request.refused", "schedule", "requests.aborted", "run.truncated", "step.end")


def planned(log: Log) -> list[str]:
    events = [(e.step, e.kind, e.data) for e in log.events if e.kind in PLANNED]
    updates = [(e.step, e.kind, e.data) for e in log.events if e.kind == "update"]
    return [json.dumps(e) for e in events] + [json.dumps(e, sort_keys=True) for e in updates]


@pytest.mark.parametrize("name", [scenario.name for scenario in all_scenarios()])
def test_every_packaged_run_is_planned_again_exactly(name: str) -> None:
    log = recorded(name)
    again = replan(log, {})
    assert planned(again.log) == planned(log)
    assert not again.num_made_up


@pytest.mark.parametrize("semantics", ["fixed", "vllm-0.27.1"])
@pytest.mark.parametrize("first", range(1, 101, 20))
def test_made_up_workloads_are_planned_again_exactly(first: int, semantics: Any, tmp_path: Path) -> None:
    path, out = tmp_path / "workload.json", tmp_path / "log.jsonl"
    for seed in range(first, first + 20):
        path.write_text(json.dumps(generate_workload(seed)))
        simulate_to_log(load_workload(path, semantics), out)
        log = read_log(out)
        assert planned(replan(log, {}).log) == planned(log), f"seed {seed}"


@pytest.mark.parametrize("overrides", [{}, {"async_scheduling": True}], ids=str)
def test_a_stop_string_ends_its_request_at_the_same_token(overrides: dict[str, Any], tiny_model: Path) -> None:
    hello = get_scenario("hello")
    requests = tuple(
        replace(request, max_tokens=40, sampling={"stop": ["a", "e"], "ignore_eos": True}) for request in hello.requests
    )
    log = run_scenario(replace(hello, requests=requests), {"model": str(tiny_model), **overrides}).log
    assert "frontend" in {e.data["phase"] for e in log.events if e.kind == "requests.aborted"}
    assert planned(replan(log, {}).log) == planned(log)


def test_with_another_plan_a_stop_string_still_takes_as_many_tokens() -> None:
    log = recorded("stop-strings")
    again = replan(log, {"max_num_seqs": 1})
    stops = [e for x in (log, again.log) for e in x.events if e.kind == "requests.aborted"]
    assert [e.data["ended"] for e in stops] == [["R0"], ["R0"]]

    def outputs(run: Log) -> dict[str, list[int]]:
        tokens: dict[str, list[int]] = {}
        for event in run.events:
            for request, new in event.data["emitted"].items() if event.kind == "update" else ():
                tokens.setdefault(request, []).extend(new)
        return tokens

    assert outputs(again.log) == outputs(log)


def test_a_log_that_was_cut_off_is_planned_as_far_as_it_goes() -> None:
    log = recorded("kv-pressure")
    cut = Log(log.header, [e for e in log.events if e.step < 10], truncated=True)
    again = replan(cut, {}).log
    assert max(e.step for e in again.events) == 9
    plans = [[e.data for e in x.events if e.kind == "schedule"] for x in (again, cut)]
    assert plans[0] == plans[1]


def test_who_lives_longer_than_recorded_gets_tokens_that_nobody_knows() -> None:
    log = recorded("abort-in-flight")

    def never_abort(events: list[Event]) -> None:
        events[:] = [e for e in events if e.kind != "requests.aborted"]

    again = replan(changed(log, never_abort), {})
    assert again.num_made_up, "the request whose caller gave up goes on"
    made_up = {t for e in again.log.events if e.kind == "update" for t in e.data["emitted"].get("R1", [])}
    assert max(made_up) >= 1 << 30, "beyond any vocabulary, so that no stop or prefix can be met by chance"


def test_the_written_log_is_a_log(tmp_path: Path) -> None:
    out = tmp_path / "new.jsonl"
    again = replan(recorded("kv-pressure"), {"num_gpu_blocks": 28}, out)
    written = read_log(out)
    assert planned(written) == planned(again.log)
    assert written.header.config["cache_config"]["num_gpu_blocks"] == 28


def test_the_settings_reach_the_scheduler() -> None:
    log = read_log(simulated_log(mixed_workload()))
    again = replan(log, {"max_num_batched_tokens": 9, "max_num_seqs": 2}).log
    plans = [e.data for e in again.events if e.kind == "schedule"]
    assert {plan["budget"] for plan in plans} == {9}
    assert max(len(plan["scheduled"]) for plan in plans) == 2


def test_a_log_without_arrivals_is_refused() -> None:
    log = recorded("hello")
    with pytest.raises(LogError, match=r"no arrival of a request \(request\.arrived\)"):
        replan(Log(log.header, [e for e in log.events if e.kind != "request.arrived"]), {})


def test_a_log_that_leaves_out_events_is_refused() -> None:
    log = recorded("hello")
    with pytest.raises(LogError, match="does not hold the whole run"):
        replan(Log(log.header, log.events, num_dropped=3), {})


def test_a_log_of_damaged_settings_is_refused() -> None:
    log = recorded("hello")
    damaged = {"semantics": "fixed", "max_num_seqs": "x"}
    header = msgspec.structs.replace(log.header, config={**log.header.config, "scheduler_config": damaged})
    with pytest.raises(LogError, match="cannot be read"):
        replan(Log(header, log.events), {})
