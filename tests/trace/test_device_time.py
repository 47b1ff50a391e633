"""What a device took is told when it is known, of the step that it belongs to, and nothing waits for it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from minivllm import LLM, SamplingParams
from minivllm.kernels.triton_guard import HAS_TRITON
from minivllm.trace.events import Event, EventLog, Header
from minivllm.trace.install import Installation, merge
from minivllm.trace.probes import KernelProbes, SpanProbes
from minivllm.trace.reader import read_log, read_window
from minivllm.trace.schema import check_event
from tests.trace.fake_device import FakeClock

ROOT = Path(__file__).resolve().parents[2]
ROLES = frozenset({"engine_core", "worker"})


class StepEnds:
    """Counts the engine's steps, as a recorder does."""

    def __init__(self, log: EventLog) -> None:
        self._log = log

    def probes(self) -> dict[str, Any]:
        return {"minivllm.core.scheduler:Scheduler.schedule": self._planned}

    def _planned(self, call: Any) -> None:
        self._log.step += 1


def run(log: EventLog, clock: FakeClock, more: tuple[Any, ...] = (), **engine: Any) -> None:
    """Three steps: a prompt, then two tokens."""
    groups = [StepEnds(log), SpanProbes(log, ROLES, clock), *more]
    with Installation(merge(group.probes() for group in groups)) as installed:
        llm = LLM("stories-5m", max_model_len=32, max_num_seqs=2, num_gpu_blocks_override=8, **engine)
        params = SamplingParams(temperature=0.0, max_tokens=3, ignore_eos=True)
        llm.generate([{"prompt_token_ids": [5, 6, 7]}], params, use_tqdm=False)
        llm.shutdown()
    assert installed.failures == {}
    log.close()


def times_of(events: list[Event]) -> list[tuple[int, str, int]]:
    times = [event for event in events if event.kind == "device.time"]
    for event in times:
        check_event(event)
        assert event.process == "device"
    return [(event.data["iteration"], event.data["name"], event.data["device_ns"]) for event in times]


def test_each_phase_of_each_step_has_its_time_and_a_reader_finds_it_at_its_span(tmp_path: Path) -> None:
    clock = FakeClock(milliseconds=1.0)
    log = EventLog(Header(device="cuda"), tmp_path / "run.jsonl")
    run(log, clock)
    phases = ("forward", "logits", "sample")
    assert times_of(log.events) == [(step, name, 1_000_000) for step in range(3) for name in phases]
    assert clock.waits == 0
    read = read_log(tmp_path / "run.jsonl")
    for events in (log.events, read.events, read_window(tmp_path / "run.jsonl", 1, 1).events):
        spans = [event for event in events if event.kind == "span" and event.data["name"] in phases]
        assert spans
        assert all(span.data["device_ns"] == 1_000_000 for span in spans)
    starts = [event.data["start_ns"] for event in log.events if event.kind == "device.time"][:3]
    assert starts == sorted(starts), "one after the other, from the moment when the device came to the step"


def test_a_device_that_is_behind_is_not_waited_for() -> None:
    clock = FakeClock(milliseconds=1.0, passed=0)
    log = EventLog(Header(device="cuda"))
    run(log, clock)
    assert clock.marks > 0
    assert times_of(log.events) == []
    assert clock.waits == 0
    assert not any("device_ns" in event.data for event in log.events if event.kind == "span")


def test_times_come_later_where_steps_are_planned_ahead() -> None:
    clock = FakeClock(milliseconds=1.0)
    log = EventLog(Header(device="cuda"))
    run(log, clock, async_scheduling=True)
    assert {iteration for iteration, _, _ in times_of(log.events)} == {0, 1, 2}
    assert clock.waits == 0


def test_a_replay_is_one_phase() -> None:
    probes = SpanProbes(log := EventLog(Header(device="cuda")), ROLES, FakeClock(milliseconds=1.0))
    around = probes.probes()["minivllm.worker.gpu_model_runner:GPUModelRunner.execute_model"]
    prepared = probes.probes()["minivllm.worker.gpu_model_runner:GPUModelRunner.prepare_inputs"]
    waited = probes.probes()["minivllm.worker.gpu_model_runner:GPUModelRunner.to_host"]
    log.step = 7
    batch = type("Batch", (), {"graph_mode": "FULL"})()
    around.before(())  # type: ignore[union-attr]
    prepared(call("prepare_inputs", 10, 20, batch))  # type: ignore[operator]
    around.after(call("execute_model", 0, 50))  # type: ignore[union-attr,misc]
    waited.after(call("to_host", 60, 90))  # type: ignore[union-attr,misc]
    spans = [(event.data["name"], event.dur_ns) for event in log.events if event.kind == "span"]
    assert spans == [("prepare_inputs", 10), ("replay", 30), ("sync", 30)]
    assert times_of(log.events) == [(7, "replay", 1_000_000)]
    [replay] = [event for event in log.events if event.data.get("name") == "replay" and event.kind == "span"]
    assert replay.data["device_ns"] == 1_000_000


def call(name: str, start_ns: int, end_ns: int, result: Any = None) -> Any:
    from minivllm.sourcemap.registry import lookup
    from minivllm.trace.wrap import Call

    entry = lookup(f"minivllm.worker.gpu_model_runner:GPUModelRunner.{name}")
    return Call(entry, (), result, start_ns, end_ns)


def test_without_a_device_nothing_is_told() -> None:
    log = EventLog(Header(device="cpu"))
    probes = SpanProbes(log, ROLES).probes()
    assert not any(symbol.endswith("execute_model") for symbol in probes)


def test_a_profiled_step_says_what_it_is_of() -> None:
    log = EventLog(Header(device="cuda"))
    run(log, FakeClock(milliseconds=1.0), (KernelProbes(log, "cuda"),))
    [event] = [event for event in log.events if event.kind == "kernels"]
    check_event(event)
    assert event.data["of"] == "forward"


@pytest.mark.skipif(not HAS_TRITON, reason="Triton is not installed on this machine")
def test_a_runner_with_graphs_is_traced_and_observed_as_any_other() -> None:
    """Planned ahead, tokens left on the device, decodes as one graph: in Triton's interpreter, so in a process."""
    command = [sys.executable, "-m", "tests.trace.captured_trace"]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    told = json.loads(ended.stdout)
    assert told["failures"] == {}
    assert told["steps"] == [["prefill", "PIECEWISE", 0.001], ["decode", "FULL", 0.001]]
    assert told["device"] == [[0, "forward"], [0, "logits"], [1, "replay"]]
    assert told["reasons"] == [
        ["PIECEWISE", "6 tokens, padded to 8; attention is not"],
        ["FULL", "2 decodes, padded to 2; decodes share a prefix of 4 tokens"],
    ]
    assert told["shared"] == [None, 4], "what explain roofline counts once"
    assert told["messages"].count("ModelRunnerOutput") == 2, "told when the tokens have come"
