"""Owns what stands on the tracks of a trace: steps, their stages, the calls in them, arrivals and tokens.

    process > thread > step > stage > call > call ...

Roles that share a process and a thread share a track, so that a step holds everything that was done for it. On one
track a slice lies inside another or beside it; what overlaps (coroutines of one thread) goes to a lane of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from minivllm.export.clock import GRAIN, Clock
from minivllm.maps.stages import ROLES, WHOLE_STEP, requests_of, stages_of
from minivllm.trace.events import Event
from minivllm.trace.reader import Log

MAIN_THREAD = "MainThread"
_DEVICE_THREAD = "stream"


@dataclass(slots=True)
class Slice:
    """Something with a beginning and an end on one track.

    Attributes:
        role, thread: Who did it; None for the main thread.
        category: "step", "stage", "call", "request", "token" or "device".
        start, end: In µs.
        pid, tid: Its track, once it has one.
    """

    role: str
    thread: str | None
    name: str
    category: str
    start: float
    end: float
    event: Event
    args: dict[str, Any] = field(default_factory=dict)
    pid: int = 0
    tid: int = 0


def slices_of(log: Log, clock: Clock) -> list[Slice]:
    """Everything that stands on tracks, the outer before the inner."""
    found = list(_without_clocks(log, clock) if clock.is_logical else _measured(log.events, clock))
    found += _points(log.events, clock)
    rank = {"step": 0, "stage": 1, "call": 2, "device": 2, "request": 3, "token": 3}
    return sorted(found, key=lambda s: (s.start, -s.end, rank[s.category], -s.event.seq))


def _measured(events: list[Event], clock: Clock) -> Iterator[Slice]:
    """Stages and calls, as long as they took."""
    # A stage does not say in which thread it was; the call of the same symbol does.
    threads = {(e.process, e.src, e.wall_ns, e.dur_ns): e.thread for e in events if e.kind == "call"}
    device_free = 0.0
    for event in events:
        start, end = clock.start(event), clock.end(event)
        if event.kind == "call":
            facts = {"plane": event.data["plane"], "depth": event.data["depth"]}
            name = (event.src or "?").partition(":")[2]
            yield Slice(event.process, event.thread, name, "call", start, end, event, facts)
        elif event.kind == "span":
            name = event.data["name"]
            thread = threads.get((event.process, event.src, event.wall_ns, event.dur_ns), event.thread)
            is_step = name == WHOLE_STEP
            shown = f"step {event.step}" if is_step else name
            yield Slice(event.process, thread, shown, "step" if is_step else "stage", start, end, event)
            length = round((event.data.get("device_ns") or 0) * 0.128) * GRAIN
            if length:
                begun = max(start, device_free)
                device_free = begun + length
                facts = {"note": "its length was measured; it is drawn from when it was started, or behind the last"}
                yield Slice("device", _DEVICE_THREAD, name, "device", begun, device_free, event, facts)


def _without_clocks(log: Log, clock: Clock) -> Iterator[Slice]:
    """A stage reaches from the first pool event since the last other one to what it left; a call is what it left."""
    for step, events in log.by_step().items():
        yield Slice(
            "engine_core", None, f"step {step}", "step", clock.start(events[0]), clock.end(events[-1]), events[0]
        )
        stages = {stage.seq: stage.name for stage in stages_of(events)}
        inside: list[Event] = []  # what happened since, and is its work
        for event in events:
            if event.seq in stages:
                last = [e for e in events if e.kind == event.kind][-1]
                start = clock.start((inside or [event])[0])
                yield Slice(event.process, None, stages[event.seq], "stage", start, clock.end(last), event)
            inside = [*inside, event] if event.kind.startswith("kv.") else []
            if event.kind.startswith("kv.") and event.src is not None:
                name = event.src.partition(":")[2]
                yield Slice(event.process, None, name, "call", clock.start(event), clock.end(event), event)


def _points(events: list[Event], clock: Clock) -> Iterator[Slice]:
    """Where the way of a request begins, and where each of its tokens comes out."""
    for event in events:
        if event.kind == "request.arrived":
            facts = {"num_prompt_tokens": len(event.data["prompt_token_ids"]), "prompt": event.data.get("prompt")}
            name = f"{event.request} arrives"
            yield Slice(
                event.process, event.thread, name, "request", clock.start(event), clock.end(event), event, facts
            )
        elif event.kind == "output.text":
            text = "".join(text for _, text in event.data["tokens"])
            facts = {"tokens": event.data["tokens"], "delta": event.data["delta"], "held": event.data["held"]}
            name = f"{event.request} {text!r}"
            yield Slice(event.process, event.thread, name, "token", clock.start(event), clock.end(event), event, facts)


class Tracks:
    """Gives every slice its process and its thread.

    Args:
        log: What is told.

    Attributes:
        pids: By role, and of the groups that are no process ("requests", "messages").
    """

    def __init__(self, log: Log) -> None:
        started = {e.data["role"]: e.data["pid"] for e in log.events if e.kind == "process.started"}
        # Without clocks nobody says who shares a process: such logs are of runs in one.
        os_pids = {role: started.get(role, 0) for role in ROLES if role != "device"}
        groups: dict[Any, list[str]] = {}
        for role, os_pid in os_pids.items():
            groups.setdefault(os_pid, []).append(role)
        self.pids: dict[str, int] = {}
        self._names: dict[int, str] = {}
        seen = {event.process for event in log.events} | set(started)
        for os_pid, roles in groups.items():
            name = " + ".join(role for role in roles if role in seen) + (f" (pid {os_pid})" if os_pid else "")
            self._add(name, roles)
        self._add(f"device {log.header.device}".strip(), ["device"])
        requests = requests_of(log)
        self._add(f"requests ({len(requests)})", ["requests"])
        self._add("messages between processes", ["messages"])
        self._tids: dict[tuple[int, str, int], int] = {}
        self._open: dict[tuple[int, str, int], list[float]] = {}

    def _add(self, name: str, roles: Iterable[str]) -> None:
        pid = len(self._names) + 1
        self._names[pid] = name
        self.pids.update(dict.fromkeys(roles, pid))

    def place(self, slices: Iterable[Slice]) -> None:
        """Put slices, which come in order, on their tracks."""
        for entry in slices:
            entry.pid = self.pids[entry.role]
            lane = 0
            while not self._fits(entry, key := (entry.pid, entry.thread or MAIN_THREAD, lane)):
                lane += 1
            entry.tid = self._tids.setdefault(key, len(self._tids) + 1)

    def _fits(self, entry: Slice, key: tuple[int, str, int]) -> bool:
        """Whether a slice lies inside the open one of a lane; if so, it is open now."""
        ends = self._open.setdefault(key, [])
        while ends and ends[-1] <= entry.start:
            ends.pop()
        if ends and entry.end > ends[-1]:
            return False
        ends.append(entry.end)
        return True

    def names(self, used: set[int]) -> Iterator[dict[str, Any]]:
        """What each used process and thread is called."""
        for pid in sorted(used):
            yield _named("process_name", pid, 0, name=self._names[pid])
            yield _named("process_sort_index", pid, 0, sort_index=pid)
        for (pid, thread, lane), tid in self._tids.items():
            yield _named("thread_name", pid, tid, name=thread + (f", overlapping {lane}" if lane else ""))
            yield _named("thread_sort_index", pid, tid, sort_index=tid)


def _named(what: str, pid: int, tid: int, **args: Any) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "ts": 0, "args": args}
