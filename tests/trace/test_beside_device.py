"""Events that are written beside a device are those of a log in which each is written the moment that it happens.

Frontend, core, runner and copies are real, and plan ahead of a device that is none: what an event tells of must be as
it was then, even if it is written when the next steps have been planned, or at the end of all.
"""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from minivllm.engine.core_client import InprocClient
from minivllm.engine.llm_engine import LLMEngine
from minivllm.kernels.triton_guard import HAS_TRITON
from minivllm.sampling_params import RequestOutputKind, SamplingParams
from minivllm.scenarios.registry import get_scenario
from minivllm.scenarios.run import run_scenario
from minivllm.trace import events as trace_events
from minivllm.trace.events import EventLog, Header
from minivllm.trace.reader import read_log
from minivllm.trace.recorder import Recorder
from minivllm.worker.staging import TokenCopy
from tests.trace.fake_device import FakeClock
from tests.trace.workloads import mixed_workload, simulated_log
from tests.worker.fake_device import VOCAB_SIZE
from tests.worker.test_planning_ahead import make_core

needs_triton = pytest.mark.skipif(not HAS_TRITON, reason="Triton is not installed on this machine")
# Two of the tokens are half a character each: text waits for the other half.
PIECES = [b"a", b"b", "é".encode()[:1], "é".encode()[1:], b"cd", b"!"]


class Tokenizer:
    """As much of one as a detokenizer and a log need."""

    eos_token_id = None

    def decode(self, token_ids: list[int], skip_special_tokens: bool = True) -> str:
        return b"".join(PIECES[i] for i in token_ids).decode(errors="replace")

    def token_text(self, token_id: int) -> str:
        return repr(PIECES[token_id])


# When the device is done with its step: what is not written by then waits for longer.
DONE: dict[str, Callable[[random.Random], bool]] = {
    "at once": lambda rng: True,
    "sometime": lambda rng: rng.random() < 0.3,
    "late": lambda rng: False,
}


def record(
    path: Path, seed: int, monkeypatch: Any, *, level: Any = "step", logical: bool = False, done: str = ""
) -> Any:
    """Many steps of random requests. Without `done`, each event is written when it happens. Returns the log."""
    rng, device = random.Random(seed), random.Random(seed)
    monkeypatch.setattr(secrets, "token_hex", lambda size: "same")  # of the ids of requests
    core = make_core(
        monkeypatch,
        async_scheduling=True,
        max_num_seqs=5,
        max_model_len=32,
        max_num_batched_tokens=rng.choice([9, 40]),
        block_size=rng.choice([2, 4]),
        num_gpu_blocks=34,
        policy=rng.choice(["fcfs", "priority"]),
    )
    tokenizer: Any = Tokenizer()
    engine = LLMEngine(core.vllm_config, InprocClient(core), tokenizer, VOCAB_SIZE, ())
    log = EventLog(Header(level=level), path, logical=logical)
    recorder = Recorder(log, tokenizer=tokenizer, device="cuda", clock=FakeClock(milliseconds=1.0))
    if not done:
        log._is_beside_device, log._most_waiting = False, 1
    elif logical:  # nobody measures where no clock is
        log.write_beside_device()
    monkeypatch.setattr(TokenCopy, "is_here", lambda self: not done or DONE[done](device))
    recorder.blocks.watch(core.scheduler.kv_cache_manager)
    with recorder.installation() as installed:
        for step in range(150):
            if step < 100 and rng.random() < 0.4:
                add_request(engine, rng, f"R{step}")
            if engine.output_processor.request_states and rng.random() < 0.05:
                engine.abort_request([rng.choice(list(engine.output_processor.external_req_ids))])
            log.step += 1
            if logical and done and device.random() < 0.2:
                log.flush(lambda: DONE[done](device))
            engine.step()
            recorder.end_step(core.scheduler)
    assert installed.failures == {}
    assert not core.has_work(), "everybody came to an end"
    log.close()
    return log


def add_request(engine: LLMEngine, rng: random.Random, name: str) -> None:
    params = SamplingParams(
        temperature=0.7,  # one token is far likelier than the others
        max_tokens=rng.randint(2, 12),
        n=rng.choice([1, 1, 2]),
        stop=rng.choice([[], ["ab"], ["cdé", "bb"]]),
        output_kind=rng.choice(list(RequestOutputKind)),
        stream_interval=rng.choice([1, 3]),
        min_tokens=rng.choice([0, 2]),
    )
    prompt: Any = {"prompt_token_ids": [rng.randrange(VOCAB_SIZE) for _ in range(rng.randint(1, 12))]}
    engine.add_request(name, prompt, params, priority=rng.randint(0, 2))


def told(path: Path) -> list[tuple[Any, ...]]:
    """All events but for what a clock says."""
    read = read_log(path)
    assert not read.truncated
    return [
        (e.seq, e.step, e.process, e.kind, e.request, e.block, e.row, e.cause, e.src, e.ref, _without_clocks(e.data))
        for e in read.events
    ]


def _without_clocks(data: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in data.items() if not name.endswith("_ns")}


@needs_triton
@pytest.mark.parametrize("done", DONE)
@pytest.mark.parametrize("seed", range(2))
def test_what_is_written_later_tells_of_then(seed: int, done: str, tmp_path: Path, monkeypatch: Any) -> None:
    at_once = record(tmp_path / "at_once.jsonl", seed, monkeypatch)
    later = record(tmp_path / "later.jsonl", seed, monkeypatch, done=done)
    expected = told(tmp_path / "at_once.jsonl")
    assert told(tmp_path / "later.jsonl") == expected
    assert at_once.last == later.last
    kinds = {kind for _, _, _, kind, *_ in expected}
    assert {"output.text", "prepare_inputs", "worker.state", "rows", "device.time", "message", "kv.freed"} <= kinds


@needs_triton
def test_calls_that_are_told_too_stay_in_their_order(tmp_path: Path, monkeypatch: Any) -> None:
    record(tmp_path / "at_once.jsonl", 2, monkeypatch, level="function")
    record(tmp_path / "later.jsonl", 2, monkeypatch, level="function", done="sometime")
    ids = ("id", "parent")  # calls are numbered through all runs of a process
    expected, later = (
        [(*event[:-1], {k: v for k, v in event[-1].items() if k not in ids}) for event in told(tmp_path / name)]
        for name in ("at_once.jsonl", "later.jsonl")
    )
    assert later == expected


@needs_triton
@pytest.mark.parametrize("done", DONE)
def test_without_clocks_it_is_the_same_bytes(done: str, tmp_path: Path, monkeypatch: Any) -> None:
    record(tmp_path / "at_once.jsonl", 3, monkeypatch, logical=True)
    record(tmp_path / "later.jsonl", 3, monkeypatch, logical=True, done=done)
    assert (tmp_path / "later.jsonl").read_bytes() == (tmp_path / "at_once.jsonl").read_bytes()


@needs_triton
def test_of_too_many_events_the_same_are_left_out(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(trace_events, "MAX_EVENTS", 501)
    at_once = record(tmp_path / "at_once.jsonl", 4, monkeypatch)
    later = record(tmp_path / "later.jsonl", 4, monkeypatch, done="sometime")
    assert later.num_dropped == at_once.num_dropped > 0
    assert told(tmp_path / "later.jsonl") == told(tmp_path / "at_once.jsonl")


@pytest.fixture
def beside_device(monkeypatch: Any) -> None:
    """Every log waits, and nobody ever asks it to write."""
    make = EventLog.__init__

    def init(self: EventLog, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        self.write_beside_device()

    monkeypatch.setattr(EventLog, "__init__", init)


@pytest.mark.parametrize("is_async", [False, True])
def test_a_simulation_with_its_keyframes_is_the_same_bytes(is_async: bool, request: Any) -> None:
    workload = mixed_workload(async_scheduling=is_async)
    at_once = simulated_log(workload).read_bytes()
    request.getfixturevalue("beside_device")
    assert simulated_log(workload).read_bytes() == at_once


@pytest.mark.parametrize("settings", [{}, {"async_scheduling": True}])
def test_a_real_run_is_the_same_bytes(settings: Any, tiny_model: Path, tmp_path: Path, request: Any) -> None:
    paths = [tmp_path / "at_once.jsonl", tmp_path / "later.jsonl"]
    for path in paths:
        run = run_scenario(
            get_scenario("mixed-batch"), {"model": str(tiny_model), **settings}, log_path=path, logical=True, check=True
        )
        assert not run.violations
        request.getfixturevalue("beside_device")
    assert paths[0].read_bytes() == paths[1].read_bytes()
