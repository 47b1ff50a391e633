"""One run in many modes: the core in this process or in its own, probes on or off, slots or rows, a core that dies."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from minivllm.engine.exceptions import EngineDeadError
from minivllm.entrypoints.llm import LLM
from minivllm.sampling_params import SamplingParams
from minivllm.scenarios import run_processes
from minivllm.scenarios.definition import Piece
from minivllm.scenarios.registry import all_scenarios, get_scenario
from minivllm.scenarios.run import TracedRun, run_scenario
from minivllm.trace.plan_lines import plan_lines
from minivllm.trace.projection import projection
from minivllm.trace.reader import read_log

SCENARIOS = [scenario for scenario in all_scenarios() if scenario.clock == "logical"]


def outputs(run: TracedRun) -> dict[str, list[int]]:
    return {i: list(request.output_token_ids) for i, request in run.result.requests.items()}


@pytest.mark.parametrize("name", [scenario.name for scenario in SCENARIOS])
def test_a_core_in_its_own_process_makes_the_same_plans_byte_for_byte(name: str) -> None:
    scenario = get_scenario(name)
    here, there = (run_scenario(scenario, {}, logical=True, mp=mp, check=True) for mp in (False, True))
    assert projection(here.log.events) == projection(there.log.events)
    assert here.log.events == there.log.events, "pinned to steps, even the frontend's events stand where they stood"
    assert outputs(here) == outputs(there)
    assert here.result.finals == there.result.finals
    assert here.result.refused == there.result.refused
    assert here.violations == there.violations == []


def test_the_projection_is_of_what_happened() -> None:
    scenario = get_scenario("hello")
    one = run_scenario(scenario, {}, logical=True).log.events
    other = run_scenario(scenario, {"max_num_seqs": 1}, logical=True).log.events
    assert projection(one) != projection(other)
    assert b"schedule" in projection(one)
    assert b"frontend" not in projection(one)


def test_clocks_are_no_part_of_the_projection() -> None:
    scenario = get_scenario("hello")
    logical, clocked = (run_scenario(scenario, {}, logical=value).log.events for value in (True, False))
    assert projection(logical) == projection(clocked)


@pytest.mark.parametrize("name", ["hello", "kv-pressure"])
def test_slots_and_rows_have_the_same_plans(name: str) -> None:
    scenario = get_scenario(name)
    slots, rows = (run_scenario(scenario, {"batch": batch}, logical=True) for batch in ("slots", "rows"))
    assert plan_lines(slots.log.events, is_async=False) == plan_lines(rows.log.events, is_async=False)
    assert outputs(slots) == outputs(rows)


@pytest.mark.parametrize("mp", [False, True])
@pytest.mark.parametrize("level", ["step", "function"])
def test_outputs_are_those_of_a_run_without_probes(level: Any, mp: bool) -> None:
    scenario = get_scenario("hello")
    run = run_scenario(scenario, {}, level=level, mp=mp)
    llm = LLM(model="stories-5m", **scenario.engine)
    for request in scenario.requests:
        assert not isinstance(request.prompt[0], Piece)
        params = SamplingParams(temperature=0.0, max_tokens=request.max_tokens, **request.sampling)
        [output] = llm.generate(request.prompt, params)
        assert outputs(run)[request.id] == output.outputs[0].token_ids
    assert run.violations == []


def test_a_run_in_two_processes_tells_of_both_and_of_what_went_between_them(tmp_path: Path) -> None:
    run = run_scenario(get_scenario("hello"), {}, mp=True, level="function", log_path=tmp_path / "run.jsonl")
    events = read_log(tmp_path / "run.jsonl").events
    assert events == run.log.events
    started = {event.data["role"]: event.data for event in events if event.kind == "process.started"}
    assert set(started) == {"frontend", "engine_core", "worker"}
    assert started["frontend"]["pid"] == os.getpid()
    assert started["engine_core"]["pid"] == started["worker"]["pid"] != os.getpid()
    threads = {thread["name"] for thread in started["engine_core"]["threads"]}
    assert threads == {"MainThread", "process_input_sockets", "process_output_sockets"}

    messages = [event.data for event in events if event.kind == "message"]
    requests = [m for m in messages if m["type"] == "EngineCoreRequest"]
    assert [m["requests"] for m in requests] == [["R0"], ["R1"]]
    outs = [m for m in messages if m["type"] == "EngineCoreOutputs" and m["requests"]]
    assert len(outs) == sum(event.kind == "update" and bool(event.data["emitted"]) for event in events)
    for message in requests + outs:
        assert (message["boundary"], message["channel"]) == (1, "zmq")
        assert message["bytes"] > 0
        assert message["send_ns"] <= message["recv_ns"], "one clock for all processes of a machine"
    assert {m["type"] for m in messages if m["boundary"] == 2} == {"SchedulerOutput", "ModelRunnerOutput"}
    assert list(tmp_path.iterdir()) == [tmp_path / "run.jsonl"], "the core's part is gone"

    calls = {event.data["id"]: event for event in events if event.kind == "call"}
    assert len(calls) == sum(event.kind == "call" for event in events)
    nested = [c for c in calls.values() if c.src and c.src.endswith(":Scheduler.schedule")]
    assert nested
    for call in nested:
        parent = calls[call.data["parent"]]
        assert parent.src is not None
        assert parent.src.endswith("EngineCore.step_sync")
        assert parent.data["depth"] == call.data["depth"] - 1
        assert parent.wall_ns - parent.dur_ns <= call.wall_ns - call.dur_ns <= call.wall_ns <= parent.wall_ns
    assert {call.thread for call in calls.values()} >= {None, "process_input_sockets", "process_output_sockets"}


def test_a_core_that_is_killed_leaves_a_log_up_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = run_processes.PinnedClient.answer
    answered: list[int] = []

    def kill_in_the_fifth_step(client: run_processes.PinnedClient, request_ids: list[str]) -> None:
        answered.append(len(answered))
        if len(answered) == 5:
            assert client._core.process is not None
            os.kill(client._core.process.pid, signal.SIGKILL)
        original(client, request_ids)

    monkeypatch.setattr(run_processes.PinnedClient, "answer", kill_in_the_fifth_step)
    path = tmp_path / "run.jsonl"
    with pytest.raises(EngineDeadError):
        run_scenario(get_scenario("hello"), {}, mp=True, log_path=path)
    log = read_log(path)
    assert log.truncated
    assert log.events[0].seq == 0
    ended = [event.step for event in log.events if event.kind == "step.end"]
    assert ended == [0, 1, 2, 3]
    whole = plan_lines(run_scenario(get_scenario("hello"), {}).log.events, is_async=False)
    assert plan_lines(log.events, is_async=False) == whole[:4]
    assert list(tmp_path.iterdir()) == [path]


def test_a_core_that_cannot_start_says_why_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="max_model_len"):
        run_scenario(get_scenario("hello"), {"max_model_len": 10**6}, mp=True, log_path=tmp_path / "run.jsonl")
    assert not list(tmp_path.glob(".core*"))
