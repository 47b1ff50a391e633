"""Owns the phases of a step on the clock: where its time went, and where the CPU waited for the device."""

from __future__ import annotations

from collections import deque
from typing import Any

from minivllm.trace.device_clock import DeviceClock, DeviceTimer, Mark
from minivllm.trace.events import EventLog
from minivllm.trace.wrap import Around, Call, Probe

_RUNNER = "minivllm.worker.gpu_model_runner:GPUModelRunner"

# Each phase, and the function that is it, by the process that does the work.
SPANS: dict[str, dict[str, str]] = {
    "frontend": {
        "minivllm.engine.output_processor:OutputProcessor.process_outputs": "process_outputs",
        "minivllm.engine.input_processor:InputProcessor.process_inputs": "input",
    },
    "engine_core": {
        "minivllm.engine.core:EngineCore.step_sync": "step",
        "minivllm.engine.core:EngineCore.step_with_batch_queue": "step",
        "minivllm.core.scheduler:Scheduler.schedule": "schedule",
        "minivllm.core.scheduler:Scheduler.update_from_output": "update_from_output",
        "minivllm.engine.core:EngineCore.preprocess_add_request": "input",
    },
    "worker": {
        f"{_RUNNER}.update_states": "update_states",
        f"{_RUNNER}.prepare_inputs": "prepare_inputs",
        f"{_RUNNER}.model_forward": "forward",
        "minivllm.sample.sampler:Sampler.forward": "sample",
        f"{_RUNNER}.to_host": "sync",
        f"{_RUNNER}.bookkeeping": "bookkeeping",
    },
}
# Phases whose work a device goes on with after the call has returned.
_ON_DEVICE = ("forward", "sample")


class SpanProbes:
    """`span`, and `device.time` where there is a device with a clock of its own.

    A device's time is told when it is known, which is when somebody waits for the tokens of the step, or later: nothing
    waits for it. There, what follows the forward pass before `execute_model` ends is a phase, too ("logits"), and so is
    a step that is one graph ("replay").

    Args:
        log: Gets the events.
        roles: The processes whose phases are told.
        clock: Of the worker's device.
    """

    def __init__(self, log: EventLog, roles: frozenset[str], clock: DeviceClock | None = None) -> None:
        self._log = log
        self._roles = roles
        self._clock = clock or DeviceClock()
        if self._clock.is_there and "worker" in roles:
            log.write_beside_device()
        self._unresolved: deque[tuple[int, str, int, Mark, DeviceTimer]] = deque()
        self._step_start: Mark | None = None
        self._prepared: tuple[Call, DeviceTimer] | None = None
        self._forwarded: tuple[Call, DeviceTimer] | None = None

    def probes(self) -> dict[str, Probe]:
        probes = {
            symbol: self._probe(role, name)
            for role, symbols in SPANS.items()
            if role in self._roles
            for symbol, name in symbols.items()
        }
        if self._clock.is_there and "worker" in self._roles:
            probes[f"{_RUNNER}.execute_model"] = Around(self._begin_step, self._end_execute)
            probes[f"{_RUNNER}.sample_tokens"] = lambda call: self._tell_known()
        return probes

    def _probe(self, role: str, name: str) -> Probe:
        if self._clock.is_there and name in _ON_DEVICE:
            return Around(lambda args: self._clock.start(), lambda call: self._on_device(role, name, call))

        def after(call: Call) -> None:
            self._span(role, name, call, call.start_ns)
            if self._clock.is_there and name == "prepare_inputs":
                self._prepared = (call, self._clock.start())
            elif self._clock.is_there and name == "sync":
                self._tell_known()

        if self._clock.is_there and name == "sync":
            return Around(self._write, after)
        return after

    def _write(self, args: tuple[Any, ...]) -> None:
        # The CPU is about to wait for the tokens of a step; until they are here, writing is in nobody's way.
        tokens = args[1]
        if hasattr(tokens, "is_here"):
            self._log.flush(tokens.is_here)
        else:
            self._log.flush()

    def _on_device(self, role: str, name: str, call: Call) -> None:
        self._later(self._span(role, name, call, call.start_ns), name, call.memo.stop())
        if name == "forward":
            self._forwarded = (call, self._clock.start())

    def _begin_step(self, args: tuple[Any, ...]) -> None:
        self._step_start = self._clock.mark()
        self._prepared = self._forwarded = None

    def _end_execute(self, call: Call) -> None:
        if self._forwarded is not None:
            name, (before, timer) = "logits", self._forwarded
        elif self._prepared is not None:
            # All in one; the first step of a shape is launched kernel by kernel, and recorded behind that.
            before, timer = self._prepared
            name = "replay" if before.result.graph_mode == "FULL" else "forward"
        else:
            return
        self._later(self._span("worker", name, call, before.end_ns), name, timer.stop())

    def _span(self, role: str, name: str, call: Call, start_ns: int) -> int:
        return self._log.add(
            role,
            "span",
            data={"name": name},
            src=call.entry.ours,
            ref=call.entry.vllm,
            wall_ns=call.end_ns,
            dur_ns=call.end_ns - start_ns,
        )

    def _later(self, span: int, name: str, timer: DeviceTimer) -> None:
        start = self._step_start
        if span >= 0 and start is not None:
            self._unresolved.append((span, name, self._log.step, start, timer))

    def _tell_known(self) -> None:
        """Tell the times of all phases that the device has passed by now."""
        while self._unresolved and self._unresolved[0][-1].is_known:
            span, name, iteration, start, timer = self._unresolved.popleft()
            data = {
                "name": name,
                "iteration": iteration,
                "start_ns": timer.nanoseconds_after(start),
                "device_ns": timer.nanoseconds(),
            }
            self._log.add("device", "device.time", cause=span, data=data)
