"""Owns what a step consists of: its stages, in order, whose they are, on which plane, and how long each took.

A log with clocks says it in `span` events. One without them still names the stages, by the events that they left.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from minivllm.trace.events import Event
from minivllm.trace.reader import Log

# The roles in the order of their columns.
ROLES = ("frontend", "engine_core", "worker", "device")

WHOLE_STEP = "step"
SYNC = "sync"

# Who decides, and who moves numbers. A stage that is not named here belongs to the control plane.
_MODEL_STAGES = frozenset({"forward", "logits", "replay", "sample"})
_DATA_STAGES = _MODEL_STAGES | {"update_states", "prepare_inputs", SYNC, "bookkeeping"}

# The event that a stage leaves in every log, if it leaves one.
_STAGE_OF_KIND = {
    "schedule": "schedule",
    "rows": "update_states",
    "prepare_inputs": "prepare_inputs",
    "update": "update_from_output",
    "output.text": "process_outputs",
}


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage of one step.

    Attributes:
        name: "schedule", "prepare_inputs", "forward", ...; "step" is the whole.
        process: The role that did it.
        thread: Thread or loop, if not the process' main one.
        iteration: Step of the engine.
        seq: Its place in the log.
        start_ns, dur_ns: When and how long by the monotonic clock; None without clocks.
        device_ns: How long the device worked on what was started here; None if that is not known.
        src, ref: Our symbol and vLLM's.
    """

    name: str
    process: str
    thread: str | None
    iteration: int
    seq: int
    start_ns: int | None
    dur_ns: int | None
    device_ns: int | None
    src: str | None
    ref: str | None

    @property
    def plane(self) -> str:
        """ "control" or "data"."""
        return plane_of(self.name)

    @property
    def end_ns(self) -> int | None:
        return None if self.start_ns is None or self.dur_ns is None else self.start_ns + self.dur_ns


def plane_of(stage: str) -> str:
    """The plane of a stage: "control" (decides who and how much) or "data" (moves tensors)."""
    return "data" if stage in _DATA_STAGES else "control"


def has_clock(log: Log) -> bool:
    """Whether a log says when things happened."""
    return log.header.clock == "wall"


def requests_of(log: Log) -> list[str]:
    """Ids in order of arrival; of a window with those that came before it, so that each keeps its colour."""
    before = list(log.start["requests"]) if log.start else []
    return before + [e.request for e in log.events if e.kind == "request.arrived" and e.request is not None]


def stages_of(events: Iterable[Event]) -> list[Stage]:
    """The stages of one iteration, in the order in which they began."""
    events = list(events)
    stages = [_measured(event) for event in events if event.kind == "span"] or _unmeasured(events)
    return sorted(stages, key=lambda stage: (stage.start_ns or 0, -(stage.dur_ns or 0), stage.seq))


def _measured(event: Event) -> Stage:
    start = None if event.wall_ns is None else event.wall_ns - (event.dur_ns or 0)
    return Stage(
        event.data["name"],
        event.process,
        event.thread,
        event.step,
        event.seq,
        start,
        event.dur_ns,
        event.data.get("device_ns"),
        event.src,
        event.ref,
    )


def _unmeasured(events: list[Event]) -> list[Stage]:
    """Stages by what they left in the log. One that leaves an event for each request is one stage all the same."""
    stages: dict[str, Stage] = {}
    for event in events:
        name = _STAGE_OF_KIND.get(event.kind)
        if name is not None and name not in stages:
            start = None if event.dur_ns is None or event.wall_ns is None else event.wall_ns - event.dur_ns
            stages[name] = Stage(
                name, event.process, None, event.step, event.seq, start, event.dur_ns, None, event.src, event.ref
            )
    return list(stages.values())


def percentile(numbers: Sequence[float], percent: float) -> float | None:
    """The smallest number that is not exceeded by `percent` % of them (nearest rank); None of none."""
    if not numbers:
        return None
    ordered = sorted(numbers)
    return ordered[max(math.ceil(percent / 100 * len(ordered)), 1) - 1]


def median(numbers: Sequence[float]) -> float | None:
    """The middle one; of an even count the lower of the two in the middle, so that it is one that was measured."""
    return percentile(numbers, 50)
