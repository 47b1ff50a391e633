"""A Chrome trace nests, pairs, and leads somewhere; and it says what the log says."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from functools import cache
from typing import Any

import pytest

from minivllm.export.chrome import chrome_trace
from minivllm.scenarios.registry import all_scenarios, get_scenario
from minivllm.trace.events import Event, Header
from minivllm.trace.reader import Log, read_log, read_window
from tests.trace.workloads import mixed_workload, simulated_log

SCENARIOS = [scenario.name for scenario in all_scenarios()]
RUNS = [*SCENARIOS, "simulated", "simulated, planned ahead", "a window"]

Told = dict[str, Any]


@cache
def log_of(run: str) -> Log:
    if run == "a window":
        return read_window(get_scenario("kv-pressure").log_path, 9, 14)
    if run.startswith("simulated"):
        return read_log(simulated_log(mixed_workload(async_scheduling="ahead" in run)))
    return read_log(get_scenario(run).log_path)


@cache
def trace_of(run: str) -> Told:
    return chrome_trace(log_of(run))


def events_of(run: str, *phases: str) -> list[Told]:
    return [event for event in trace_of(run)["traceEvents"] if event["ph"] in phases]


def tracks_of(events: list[Told]) -> dict[tuple[int, int], list[Told]]:
    tracks = defaultdict(list)
    for event in events:
        tracks[event["pid"], event["tid"]].append(event)
    return tracks


def check_nesting(slices: list[Told]) -> None:
    for track in tracks_of(slices).values():
        open_ends: list[float] = []
        for event in track:
            while open_ends and open_ends[-1] <= event["ts"]:
                open_ends.pop()
            end = event["ts"] + event["dur"]
            assert not open_ends or end <= open_ends[-1], f"{event['name']} sticks out of what it is in"
            open_ends.append(end)


@pytest.mark.parametrize("run", RUNS)
def test_slices_of_a_track_lie_inside_or_beside_each_other(run: str) -> None:
    slices = events_of(run, "X")
    assert slices
    assert all(event["dur"] > 0 for event in slices)
    check_nesting(slices)


@pytest.mark.parametrize("run", RUNS)
def test_it_is_json_in_order_of_time(run: str) -> None:
    trace = trace_of(run)
    assert json.loads(json.dumps(trace)) == trace
    times = [event["ts"] for event in trace["traceEvents"]]
    assert times == sorted(times)
    assert times[0] >= 0


@pytest.mark.parametrize("run", RUNS)
def test_every_track_has_a_name(run: str) -> None:
    named = {event["pid"] for event in events_of(run, "M") if event["name"] == "process_name"}
    threads = {(e["pid"], e["tid"]) for e in events_of(run, "M") if e["name"] == "thread_name"}
    assert {event["pid"] for event in events_of(run, "X", "b", "C")} == named
    assert {(event["pid"], event["tid"]) for event in events_of(run, "X")} == threads


@pytest.mark.parametrize("run", RUNS)
def test_asynchronous_events_are_opened_and_closed_in_pairs(run: str) -> None:
    open_names: dict[Any, list[str]] = defaultdict(list)
    for event in events_of(run, "b", "n", "e"):
        key = event["cat"], event["id"]
        if event["ph"] == "b":
            open_names[key].append(event["name"])
        elif event["ph"] == "e":
            assert open_names[key].pop() == event["name"]
        else:
            assert open_names[key], "an instant stands inside its request"
    assert not any(open_names.values())


@pytest.mark.parametrize("run", RUNS)
def test_a_flow_begins_goes_on_and_ends_in_slices(run: str) -> None:
    flows = defaultdict(list)
    for event in events_of(run, "s", "t", "f"):
        flows[event["id"]].append(event)
    slices = tracks_of(events_of(run, "X"))
    for way in flows.values():
        assert [event["ph"] for event in way] == ["s", *["t"] * (len(way) - 2), "f"]
        assert len({event["args"]["request"] for event in way}) == 1
        for event in way:
            track = slices[event["pid"], event["tid"]]
            assert any(s["ts"] <= event["ts"] <= s["ts"] + s["dur"] for s in track)
    planned = {i for event in log_of(run).events if event.kind == "schedule" for i, _ in event.data["scheduled"]}
    assert planned <= {way[0]["args"]["request"] for way in flows.values()} | ({"R2"} if run == "a window" else set())


def test_a_flow_goes_from_the_request_to_its_steps_and_tokens() -> None:
    flow = [event for event in events_of("hello", "s", "t", "f") if event["args"]["request"] == "R1"]
    slices = {s["ts"]: s["name"] for s in events_of("hello", "X") if s["name"].startswith(("R1", "schedule"))}
    names = [slices[event["ts"]] for event in flow]
    texts = [e.data["delta"] for e in log_of("hello").events if e.kind == "output.text" and e.request == "R1"]
    assert names[:3] == ["R1 arrives", "schedule", f"R1 {texts[0]!r}"]
    assert len(names) == 1 + 2 * 6, "its arrival, and six times a plan and a token"


@pytest.mark.parametrize("run", SCENARIOS)
def test_a_step_holds_its_stages_and_they_hold_their_calls(run: str) -> None:
    slices = events_of(run, "X")
    steps = {e["args"]["iteration"]: e for e in slices if e["cat"] == "step"}
    assert set(steps) == set(log_of(run).by_step()), "one slice a step"
    plans = [e for e in slices if e["name"] == "schedule"]
    assert plans

    def inside(inner: Told, outer: Told) -> bool:
        same = (inner["pid"], inner["tid"]) == (outer["pid"], outer["tid"])
        ends = inner["ts"] + inner["dur"] <= outer["ts"] + outer["dur"]
        return same and outer["ts"] <= inner["ts"] and ends

    for stage in (e for e in slices if e["name"] in ("schedule", "prepare_inputs", "update_from_output")):
        assert inside(stage, steps[stage["args"]["iteration"]])
    calls = [e for e in slices if e["cat"] == "call" and "get_new_blocks" in e["name"]]
    assert calls
    assert all(any(inside(call, plan) for plan in plans) for call in calls)


@pytest.mark.parametrize("run", RUNS)
def test_slices_say_where_they_are_in_the_source(run: str) -> None:
    said = {(e["args"]["seq"], e["args"].get("src"), e["args"].get("ref")) for e in events_of(run, "X")}
    told = {(e.seq, e.src, e.ref) for e in log_of(run).events}
    assert said <= told
    assert any(src == "minivllm.core.scheduler:Scheduler.schedule" and ref for _, src, ref in said)


@pytest.mark.parametrize("run", RUNS)
def test_counters_are_those_of_the_log(run: str) -> None:
    log = log_of(run)
    values = defaultdict(list)
    for event in events_of(run, "C"):
        [value] = event["args"].values()
        values[event["name"]].append(value)
    ends = [event.data for event in log.events if event.kind == "step.end"]
    assert values["free blocks"] == [data["free_blocks"] for data in ends]
    assert values["running"] == [len(data["running_after"]) for data in ends]
    assert values["waiting"] == [len(data["waiting"]) for data in ends]
    plans = [event.data["total_scheduled"] for event in log.events if event.kind == "schedule"]
    assert values["budget used"] == plans
    emitted = [len(t) for e in log.events if e.kind == "update" for t in e.data["emitted"].values()]
    assert values["tokens"][-1] == sum(emitted)


def test_the_life_of_a_preempted_request() -> None:
    names = [e["name"] for e in events_of("kv-pressure", "b") if e["id"] == "R2"]
    assert names == ["R2", "queued", "prefill", "decode", "preempted", "prefill", "decode"]
    [end] = [e for e in events_of("kv-pressure", "e") if e["id"] == "R2" and e["name"] == "R2"]
    assert end["args"]["reason"] == "length"


def test_a_log_without_clocks_says_that_its_times_are_none() -> None:
    assert trace_of("hello")["otherData"]["clock"].startswith("logical")
    assert trace_of("two-processes")["otherData"]["clock"].startswith("wall")


def test_processes_are_those_of_the_run() -> None:
    names = [e["args"]["name"] for e in events_of("two-processes", "M") if e["name"] == "process_name"]
    assert names[0].startswith("frontend (pid ")
    assert names[1].startswith("engine_core + worker (pid ")
    messages = [e["name"] for e in events_of("two-processes", "b") if e["cat"] == "message"]
    logged = Counter(e.data["type"] for e in log_of("two-processes").events if e.kind == "message")
    assert Counter(name.rpartition(": ")[2] for name in messages) == logged


def test_lengths_are_the_measured_ones() -> None:
    log = log_of("two-processes")
    by_seq = {event.seq: event for event in log.events}
    for told in events_of("two-processes", "X"):
        event = by_seq[told["args"]["seq"]]
        if told["cat"] in ("stage", "call", "step"):
            assert told["dur"] == pytest.approx((event.dur_ns or 0) / 1000, abs=0.02)


def test_what_overlaps_on_one_thread_gets_a_lane_of_its_own() -> None:
    def call(seq: int, start: int, end: int) -> Event:
        data = {"id": seq, "parent": None, "depth": 0, "plane": "control"}
        return Event(seq, 0, "frontend", "call", data=data, src=f"minivllm.x:f{seq}", wall_ns=end, dur_ns=end - start)

    log = Log(Header(), [call(0, 0, 5_000), call(1, 2_000, 9_000), call(2, 3_000, 4_000)])
    slices = [event for event in chrome_trace(log)["traceEvents"] if event["ph"] == "X"]
    check_nesting(slices)
    assert len({event["tid"] for event in slices}) == 2


def test_a_device_works_behind_what_started_it() -> None:
    def span(seq: int, name: str, start: int, device: int) -> Event:
        data = {"name": name, "device_ns": device}
        return Event(seq, 0, "worker", "span", data=data, wall_ns=start + 1_000, dur_ns=1_000)

    log = Log(Header(device="cuda"), [span(0, "forward", 0, 40_000), span(1, "sample", 1_000, 8_000)])
    device = [event for event in chrome_trace(log)["traceEvents"] if event.get("cat") == "device"]
    assert [(event["name"], event["ts"]) for event in device] == [("forward", 0.0), ("sample", 40.0)]
    assert [event["dur"] for event in device] == [40.0, 8.0]


def test_a_log_without_events_is_an_empty_trace() -> None:
    assert chrome_trace(Log(Header(), []))["traceEvents"] == []
