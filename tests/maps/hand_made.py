"""Logs written by hand, by the contract of docs/log.md: times are chosen, so that what follows from them is known."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from minivllm.trace.events import Event, Header
from minivllm.trace.reader import Log

US = 1_000
MS = 1_000_000


class LogBuilder:
    """Collects events. Times are given in microseconds since the first one."""

    def __init__(self, clock: Literal["wall", "logical"] = "wall", device: str = "cuda", **header: Any) -> None:
        self.header = Header(model="tiny", device=device, clock=clock, level="function", **header)
        self.events: list[Event] = []
        self.step = -1

    def add(
        self, process: str, kind: str, at: float | None = None, dur: float | None = None, **fields: Any
    ) -> LogBuilder:
        """One event that begins at `at` and takes `dur`."""
        timed = self.header.clock == "wall" and at is not None
        wall = int((at or 0) * US) + int((dur or 0) * US) + MS if timed else None
        data = fields.pop("data", {})
        self.events.append(
            Event(
                len(self.events),
                self.step,
                process,
                kind,
                data=data,
                wall_ns=wall,
                dur_ns=int(dur * US) if timed and dur is not None else None,
                **fields,
            )
        )
        return self

    def span(self, process: str, name: str, at: float, dur: float, device: float | None = None, **more: Any) -> None:
        """A stage."""
        data: dict[str, Any] = {"name": name}
        if device is not None:
            data["device_ns"] = int(device * US)
        self.add(process, "span", at, dur, data=data, **more)

    def message(
        self, boundary: int, ends: tuple[str, str], type_: str, at: float, until: float, size: int, **more: Any
    ) -> None:
        """A message over a boundary."""
        data = {
            "boundary": boundary,
            "channel": more.pop("channel", "call"),
            "from": ends[0],
            "to": ends[1],
            "type": type_,
            "bytes": size,
            "requests": more.pop("requests", []),
            "send_ns": int(at * US) + MS,
            "recv_ns": int(until * US) + MS,
        }
        self.add(ends[0], "message", at, until - at, data=data, **more)

    def call(self, id_: int, parent: int | None, process: str, src: str, at: float, dur: float, plane: str) -> None:
        """A call of a symbol."""
        data = {"id": id_, "parent": parent, "depth": 0, "plane": plane}
        self.add(process, "call", at, dur, data=data, src=src, ref="vllm/v1/x.py::X")

    def arrive(self, request: str, at: float | None = None) -> None:
        """A request comes."""
        data = {"prompt_token_ids": [1, 2, 3], "priority": 0, "arrival_time": 0.0, "sampling_params": {}}
        self.add("frontend", "request.arrived", at, request=request, data=data)

    def schedule(self, scheduled: Sequence[tuple[str, int]], at: float | None = None, **more: Any) -> None:
        """A plan."""
        data = {
            "scheduled": [list(entry) for entry in scheduled],
            "total_scheduled": sum(tokens for _, tokens in scheduled),
            "new": [],
            "resumed": [],
            "running": [],
            "preempted": [],
            "not_scheduled": [],
            **more,
        }
        src, ref = "minivllm.core.scheduler:Scheduler.schedule", "vllm/v1/core/sched/scheduler.py::Scheduler.schedule"
        self.add("engine_core", "schedule", at, 90 if at is not None else None, data=data, src=src, ref=ref)

    def update(self, sampled: dict[str, list[int]], at: float | None = None, **more: Any) -> None:
        """What came of a plan."""
        data = {"update_of": self.step, "sampled": sampled, "emitted": sampled, "finished": {}, **more}
        src = "minivllm.core.scheduler:Scheduler.update_from_output"
        self.add("engine_core", "update", at, 50 if at is not None else None, data=data, src=src)

    def text(self, request: str, tokens: int, at: float | None = None) -> None:
        """The frontend gets tokens."""
        data = {"delta": "x", "tokens": [[7, "x"]] * tokens, "finish_reason": None}
        src = "minivllm.engine.output_processor:OutputProcessor.process_outputs"
        self.add("frontend", "output.text", at, 10 if at is not None else None, request=request, data=data, src=src)

    def log(self, path: Path | None = None) -> Log:
        """The log, as if it had been read."""
        return Log(self.header, self.events, path=path)


def gpu_step(builder: LogBuilder, step: int, start: float, requests: Sequence[str], *, slow: float = 1.0) -> None:
    """One step on a GPU, with an engine core in a process of its own: 4.6 ms, of which the worker truly waits 3.6 ms.

    0      90    120            330     370            3970    4000   4050
    schedule     prepare_inputs forward sample  sync           update
                 120        230 330     370     3970
    """
    builder.step = step
    core, worker, front = "engine_core", "worker", "frontend"
    runner = "minivllm.worker.gpu_model_runner:GPUModelRunner"
    k = slow
    builder.span(core, "schedule", start, 90, src="minivllm.core.scheduler:Scheduler.schedule")
    builder.schedule([(request, 1) for request in requests], start)
    builder.message(
        2, (core, worker), "SchedulerOutput", start + 95, start + 96, 1900, requests=list(requests), channel="call"
    )
    builder.span(worker, "update_states", start + 96, 24, src=f"{runner}.update_states")
    builder.span(worker, "prepare_inputs", start + 120, 110, src=f"{runner}.prepare_inputs")
    builder.span(worker, "forward", start + 230, 100, device=3900 * k, src=f"{runner}.model_forward")
    builder.message(3, (worker, "device"), "inputs", start + 231, start + 235, 64, channel="device")
    builder.span(worker, "sample", start + 330, 40, device=100, src=f"{runner}.sample_tokens")
    builder.span(worker, "sync", start + 370, 3600 * k, src=f"{runner}.bookkeeping")
    end = start + 370 + 3600 * k
    builder.message(2, (worker, core), "ModelRunnerOutput", end + 20, end + 21, 200, requests=list(requests))
    builder.span(core, "update_from_output", end + 30, 50, src="minivllm.core.scheduler:Scheduler.update_from_output")
    builder.update({request: [7] for request in requests}, end + 30)
    builder.span(core, "step", start, end + 90 - start, src="minivllm.engine.core:EngineCore.step_sync")
    builder.message(
        1, (core, front), "EngineCoreOutputs", end + 100, end + 180, 300, requests=list(requests), channel="zmq"
    )
    builder.span(front, "process_outputs", end + 200, 60, src="minivllm.engine.output_processor:OutputProcessor")
    for request in requests:
        builder.text(request, 1, end + 200)


def gpu_log(num_steps: int = 3) -> LogBuilder:
    """Two requests on a GPU, the core in a process of its own; a step begins every 5 ms."""
    builder = LogBuilder()
    builder.step = 0
    threads = [{"name": "MainThread", "loop": "run_busy_loop"}, {"name": "in", "loop": "process_input_sockets"}]
    builder.add("frontend", "process.started", 0, data={"role": "frontend", "pid": 41, "threads": []})
    builder.add("engine_core", "process.started", 0, data={"role": "engine_core", "pid": 42, "threads": threads})
    builder.add("worker", "process.started", 0, data={"role": "worker", "pid": 42, "threads": []})
    for place, request in enumerate(("R0", "R1")):
        builder.arrive(request, place * 10)
        builder.message(
            1, ("frontend", "engine_core"), "EngineCoreRequest", place * 10, place * 10 + 5, 120, requests=[request],
            channel="zmq",
        )  # fmt: skip
        builder.add("engine_core", "request.queued", place * 10 + 20, 1, request=request)
    for step in range(num_steps):
        gpu_step(builder, step, 1000 + 5000 * step, ["R0", "R1"], slow=1.0 if step else 1.2)
    return builder
