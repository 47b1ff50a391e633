"""Owns the phases of a step on the clock: where its time went, and where the CPU waited for the device."""

from __future__ import annotations

from typing import Any

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
    """`span`.

    Args:
        log: Gets the events.
        roles: The processes whose phases are told.
        device: "cuda" if the worker's work is done by one, and its time is to be told, too.
    """

    def __init__(self, log: EventLog, roles: frozenset[str], device: str = "cpu") -> None:
        self._log = log
        self._roles = roles
        self._has_device = device == "cuda"
        self._unresolved: list[tuple[dict[str, Any], Any, Any]] = []

    def probes(self) -> dict[str, Probe]:
        return {
            symbol: self._probe(role, name)
            for role, symbols in SPANS.items()
            if role in self._roles
            for symbol, name in symbols.items()
        }

    def _probe(self, role: str, name: str) -> Probe:
        is_on_device = self._has_device and name in _ON_DEVICE

        def after(call: Call) -> None:
            data: dict[str, Any] = {"name": name}
            if is_on_device:
                self._unresolved.append((data, call.memo, _mark()))
            elif name == "sync":
                self._resolve()
            self._log.add(
                role,
                "span",
                data=data,
                src=call.entry.ours,
                ref=call.entry.vllm,
                wall_ns=call.end_ns,
                dur_ns=call.end_ns - call.start_ns,
            )

        return Around(lambda args: _mark(), after) if is_on_device else after

    def _resolve(self) -> None:
        """The device has come to the end of the step, so its clock can be read without waiting."""
        for data, start, end in self._unresolved:
            data["device_ns"] = int(start.elapsed_time(end) * 1e6)
        self._unresolved.clear()


def _mark() -> Any:
    """A point on the device's own clock, behind all the work that was submitted so far."""
    import torch

    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event
