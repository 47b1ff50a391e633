"""Owns what each kernel of a forward pass takes, from profiled steps: a graph or compiled code runs no Python."""

from __future__ import annotations

from typing import Any

from minivllm.trace.events import EventLog
from minivllm.trace.wrap import Around, Call, Probe

_FORWARD = "minivllm.worker.gpu_model_runner:GPUModelRunner.model_forward"

# Forward passes from one that is profiled to the next; the first of all is not like the others.
_EVERY = 16
_FIRST = 2
# Kernels that are told, those that took longest.
_NUM_TOLD = 40


class KernelProbes:
    """`kernels`, of every 16th forward pass.

    Args:
        log: Gets the events.
    """

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._num_passes = 0

    def probes(self) -> dict[str, Probe]:
        return {_FORWARD: Around(self._begin, self._end, lambda call: _stop(call.memo))}

    def _begin(self, args: tuple[Any, ...]) -> Any:
        self._num_passes += 1
        return _start() if self._num_passes % _EVERY == _FIRST else None

    def _end(self, call: Call) -> None:
        if call.memo is None:
            return
        _stop(call.memo)
        averages = call.memo.key_averages()
        kernels = [
            [row.key, row.count, int(row.self_cpu_time_total * 1e3), int(row.self_device_time_total * 1e3)]
            for row in averages
        ]
        kernels.sort(key=lambda kernel: (-kernel[3], -kernel[2], kernel[0]))
        self._log.add(
            "worker",
            "kernels",
            data={"of": "forward", "kernels": kernels[:_NUM_TOLD]},
            src=call.entry.ours,
            ref=call.entry.vllm,
            wall_ns=call.end_ns,
            dur_ns=call.end_ns - call.start_ns,
        )


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
        profiler.stop()
