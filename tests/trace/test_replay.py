"""The state rebuilt from a log is the state that the engine was in, after every step."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from minivllm.core.request import LoRARequest
from minivllm.scenarios.definition import GO_ON, Piece, Scenario, ScenarioRequest
from minivllm.scenarios.registry import all_scenarios
from minivllm.scenarios.replay import workload_from_log
from minivllm.scenarios.workload import Workload, load_workload
from minivllm.trace.events import Event
from minivllm.trace.reader import Log, read_log
from minivllm.trace.replay import State, states
from tests.differential.workload_generator import generate_workload
from tests.trace.live_states import LIVE_ONLY, assert_replayed, simulated, traced
from tests.trace.workloads import mixed_workload

SCENARIOS = {scenario.name: scenario for scenario in all_scenarios()}


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_a_bit_of_everything(is_async: bool, policy: str) -> None:
    assert_replayed(*simulated(mixed_workload(async_scheduling=is_async, policy=policy)))


@given(seed=st.integers(0, 10**6))
def test_made_up_workloads(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    workload = made_up(tmp_path_factory.mktemp("workload"), seed)
    assert_replayed(*simulated(workload))


@given(seed=st.integers(0, 10**6))
@example(seed=1)
def test_drafts_right_and_wrong(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    workload = made_up(tmp_path_factory.mktemp("workload"), seed)
    rng = random.Random(seed)
    size = min(workload.vocab_size, 3)  # few enough for a guess to be right now and then
    arrivals = []
    for arrival in workload.arrivals:
        steps = rng.sample(range(arrival.step, arrival.step + 40), 15)
        drafts = {step: [rng.randrange(size) for _ in range(rng.randint(1, 4))] for step in steps}
        arrivals.append(replace(arrival, drafts=drafts))
    assert_replayed(*simulated(replace(workload, arrivals=arrivals, vocab_size=size)))


def test_requests_that_are_passed_over_keep_their_turn() -> None:
    """One adapter a step: those of the other one are passed over, and queue apart from those who wait."""
    workload = mixed_workload()
    limits = msgspec.structs.replace(workload.vllm_config.scheduler_config, max_loras=1)
    arrivals = [
        replace(arrival, request=msgspec.structs.replace(arrival.request, lora_request=LoRARequest(f"L{k % 2}", "")))
        for k, arrival in enumerate(workload.arrivals)
    ]
    config = msgspec.structs.replace(workload.vllm_config, scheduler_config=limits)
    log, live = simulated(replace(workload, vllm_config=config, arrivals=arrivals))
    assert any(state["skipped_waiting"] for state in live.by_step)
    assert_replayed(log, live)


def made_up(folder: Path, seed: int) -> Workload:
    """A seeded workload: preemptions, aborts, evictions, priorities, shared prefixes, planning ahead or not."""
    path = folder / "workload.json"
    path.write_text(json.dumps(generate_workload(seed)))
    return load_workload(path, "fixed" if seed % 2 else "vllm-0.27.1")


@pytest.mark.parametrize("batch", ["slots", "rows"])
@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("name", [name for name in SCENARIOS if "multiprocess" not in SCENARIOS[name].engine])
def test_every_scenario_in_the_real_engine(tiny_model: Path, name: str, is_async: bool, batch: str) -> None:
    overrides = {"model": str(tiny_model), "async_scheduling": is_async, "batch": batch}
    assert_replayed(*traced(SCENARIOS[name], overrides))


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_recorded_run_planned_again(name: str) -> None:
    if SCENARIOS[name].log_path.exists():
        assert_replayed(*simulated(*workload_from_log(read_log(SCENARIOS[name].log_path), "fixed")))


def test_a_state_goes_on_from_what_it_was() -> None:
    log, _ = simulated(mixed_workload())
    last = max(event.step for event in log.events)
    whole = {step: state.as_dict() for step, state in states(log)}
    for step in range(last):
        start = json.loads(json.dumps(whole[step]))  # as a keyframe has it: the ids of blocks became texts
        rest = Log(log.header, [event for event in log.events if event.step > step], start=start)
        assert {step: state.as_dict() for step, state in states(rest)} == {k: whole[k] for k in whole if k > step}


def test_every_beginning_of_a_log_can_be_replayed() -> None:
    log, _ = simulated(mixed_workload(async_scheduling=True))
    for count in range(len(log.events) + 1):
        part = Log(log.header, log.events[:count], truncated=True)
        assert len(list(states(part))) == len({event.step for event in part.events})


def test_where_events_were_dropped_the_queues_are_still_known() -> None:
    log, live = simulated(mixed_workload())
    ends = [Event(seq, e.step, e.process, e.kind, data=e.data) for seq, e in enumerate(log.events) if e.step > 5]
    kept = [event for event in log.events if event.step <= 5] + [event for event in ends if event.kind == "step.end"]
    for step, state in states(Log(log.header, kept, num_dropped=1)):
        assert state.running == live.by_step[step]["running"]


def test_keyframes_change_nothing() -> None:
    log, _ = simulated(mixed_workload())
    state = State(log.header)
    before = state.as_dict()
    state.apply(Event(0, 0, "engine_core", "keyframe", data={"state": {"running": ["nobody"]}}))
    assert state.as_dict() == before


@pytest.mark.parametrize("batch", ["slots", "rows"])
def test_a_request_that_sits_out_a_step_comes_back_with_its_blocks(tiny_model: Path, batch: str) -> None:
    """Drafts of the first one take the whole budget, so the second one is left out, and its row is given to others."""
    requests = (
        ScenarioRequest("R0", (Piece(0, 3),), max_tokens=12, sampling=GO_ON, drafts={4: Piece(50, 3), 7: Piece(50, 3)}),
        ScenarioRequest("R1", (Piece(9, 3),), max_tokens=12, sampling=GO_ON),
    )
    engine = {"max_model_len": 64, "block_size": 16, "num_gpu_blocks_override": 9, "max_num_seqs": 2}
    scenario = Scenario("sits-out", "", "", {**engine, "max_num_batched_tokens": 4, "batch": batch}, requests)
    log, live = traced(scenario, {"model": str(tiny_model)})
    plans = {event.step: dict(event.data["scheduled"]) for event in log.events if event.kind == "schedule"}
    assert plans[4] == {"R0": 4}, "the second one sits out"
    assert_replayed(log, live)


@pytest.mark.parametrize("is_async", [False, True])
def test_a_keyframe_is_what_replay_has_come_to(tmp_path: Path, is_async: bool) -> None:
    log, _ = simulated(long_workload(tmp_path, is_async=is_async))
    after = {step: state.as_dict() for step, state in states(log)}
    keyframes = [event for event in log.events if event.kind == "keyframe"]
    assert keyframes
    for event in keyframes:
        assert event.step % 64 == 0
        replayed = after[event.step - 1]
        told = State(log.header, json.loads(json.dumps(event.data["state"]))).as_dict()
        # A keyframe stands in front of its step: nothing is planned yet.
        everyone = {i: entry | {"num_scheduled": 0} for i, entry in replayed["requests"].items()}
        assert list(told["requests"]) == list(everyone), "everyone who has come, in that order"
        for request_id, entry in everyone.items():
            ended = dict.fromkeys(LIVE_ONLY, 0) if entry["finish_reason"] else {}
            assert told["requests"][request_id] | ended == entry | ended
        for name in ("waiting", "skipped_waiting", "running", "in_flight", "pool"):
            assert told[name] == replayed[name]


def long_workload(folder: Path, *, is_async: bool) -> Workload:
    """Requests that come for 200 steps, more than there are blocks for; one that is refused."""
    limits = {"max_num_seqs": 4, "max_num_batched_tokens": 24, "block_size": 4, "num_gpu_blocks": 24}
    requests = [
        {"id": f"R{k}", "arrival_step": 5 * k, "prompt_token_ids": [*range(8), k, 5, 7], "max_tokens": 25 + k % 9}
        for k in range(40)
    ]
    requests.append({"id": "too-long", "arrival_step": 30, "prompt_token_ids": [1] * 99, "max_tokens": 9})
    path = folder / "workload.json"
    config = {**limits, "max_model_len": 64, "async_scheduling": is_async}
    path.write_text(json.dumps({"config": config, "requests": requests}))
    return load_workload(path, "fixed")
