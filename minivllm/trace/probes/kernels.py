"""Owns what each kernel of a step takes, from profiled steps: a graph or compiled code runs no Python.

On a CPU the forward pass is profiled. Beside a GPU it is all of `execute_model`, for a step that is one graph has no
forward pass; such a step waits for the device at its end, to have all of its kernels: only a profiled one does.
"""

from __future__ import annotations

from typing import Any

from minivllm.trace.events import EventLog
from minivllm.trace.wrap import Around, Call, Probe

_RUNNER = "minivllm.worker.gpu_model_runner:GPUModelRunner"

# Forward passes from one that is profiled to the next; the first of all is not like the others.
_EVERY = 16
_FIRST = 2
# Kernels that are told, those that took longest.
_NUM_TOLD = 40


class KernelProbes:
    """`kernels`, of every 16th step.

    Args:
        log: Gets the events.
        device: "cuda" if the worker's device is one.
    """

    def __init__(self, log: EventLog, device: str = "cpu") -> None:
        self._log = log
        self._has_device = device.startswith("cuda")
        self._num_passes = 0

    def probes(self) -> dict[str, Probe]:
        name = "execute_model" if self._has_device else "model_forward"
        return {f"{_RUNNER}.{name}": Around(self._begin, self._end, lambda call: _stop(call.memo))}

    def _begin(self, args: tuple[Any, ...]) -> Any:
        self._num_passes += 1
        return _start() if self._num_passes % _EVERY == _FIRST else None

    def _end(self, call: Call) -> None:
        if call.memo is None:
            return
        _stop(call.memo)
        averages = call.memo.key_averages()
        kernels = [[row.key, row.count, int(row.self_cpu_time_total * 1e3), _device_ns(row)] for row in averages]
        kernels.sort(key=lambda kernel: (-kernel[3], -kernel[2], kernel[0]))
        self._log.add(
            "worker",
            "kernels",
            data={"of": self._what(call), "kernels": kernels[:_NUM_TOLD]},
            src=call.entry.ours,
            ref=call.entry.vllm,
            wall_ns=call.end_ns,
            dur_ns=call.end_ns - call.start_ns,
        )

    def _what(self, call: Call) -> str:
        if not self._has_device:
            return "forward"
        batch = call.args[0].last_batch
        return "replay" if batch is not None and batch.graph_mode == "FULL" else "forward"


def _device_ns(row: Any) -> int:
    """A kernel's own time; the operation that launched it must not have it once more."""
    return int(row.self_device_time_total * 1e3) if "CUDA" in str(row.device_type) else 0


def _start() -> Any:
    import torch
    from torch.profiler import ProfilerActivity, profile

    activities = [ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(ProfilerActivity.CUDA)
    profiler = profile(activities=activities)
    profiler.start()
    return profiler


def _stop(profiler: Any) -> None:
    if profiler is not None:
        import torch

        if torch.cuda.is_available():
            torch.cuda.synchronize()
        profiler.stop()
