"""Owns a log as a Chrome trace: what Perfetto, chrome://tracing and many scripts read.

Slices (X) for steps, stages and calls; asynchronous events (b, n, e) for requests and messages; flows (s, t, f) along
the way of each request; counters (C). Every slice says in its `args` which symbol it is: ours (`src`), vLLM's (`ref`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from minivllm.export.clock import Clock
from minivllm.export.lives import lives_of
from minivllm.export.slices import Slice, Tracks, slices_of
from minivllm.trace.events import Event
from minivllm.trace.reader import Log

Told = dict[str, Any]


def chrome_trace(log: Log) -> Told:
    """A log as one document of Chrome's trace format.

    Args:
        log: A log, or a window of one.

    Returns:
        {"traceEvents": in order of time, "displayTimeUnit", "otherData": what ran, and what its times mean}.
    """
    clock, tracks = Clock(log), Tracks(log)
    slices = slices_of(log, clock)
    tracks.place(slices)
    plans = {event.step: event.data for event in log.events if event.kind == "schedule"}
    told = [_slice(entry, plans) for entry in slices]
    told += lives_of(log, clock, tracks.pids["requests"])
    told += _messages(log.events, clock, tracks.pids["messages"])
    told += _flows(log.events, slices)
    told += _counters(log.events, clock, tracks.pids["engine_core"])
    told.sort(key=lambda entry: entry["ts"])
    names = list(tracks.names({entry["pid"] for entry in told}))
    return {"traceEvents": names + told, "displayTimeUnit": "ns", "otherData": _facts(log, clock)}


def _slice(entry: Slice, plans: dict[int, Told]) -> Told:
    event = entry.event
    args = {"iteration": event.step, "seq": event.seq, "role": entry.role, "request": event.request, **entry.args}
    if entry.name == "schedule" and event.step in plans:
        args |= {key: plans[event.step][key] for key in ("scheduled", "budget", "not_scheduled")}
    args |= {"src": event.src, "ref": event.ref}
    return {
        "ph": "X",
        "name": entry.name,
        "cat": entry.category,
        "pid": entry.pid,
        "tid": entry.tid,
        "ts": entry.start,
        "dur": entry.end - entry.start,
        "args": {key: value for key, value in args.items() if value is not None},
    }


def _messages(events: list[Event], clock: Clock, pid: int) -> Iterator[Told]:
    """Each message from when it was sent until it was received."""
    for event in events:
        if event.kind != "message":
            continue
        data = event.data
        sent = clock.at(data["send_ns"])
        received = max(clock.at(data["recv_ns"]), sent)
        name = f"{data['from']} → {data['to']}: {data['type']}"
        place = {"name": name, "cat": "message", "id": f"message {event.seq}", "pid": pid, "tid": 0}
        yield {"ph": "b", **place, "ts": sent, "args": data | {"iteration": event.step}}
        yield {"ph": "e", **place, "ts": received, "args": {}}


def _flows(events: list[Event], slices: list[Slice]) -> Iterator[Told]:
    """The way of each request: from its arrival to the plan of a step, to its token, to the next plan, and so on."""
    ways: dict[str, list[Slice]] = {}
    plans = {entry.event.step: entry for entry in slices if entry.name == "schedule" and entry.category == "stage"}
    for entry in slices:
        if entry.category in ("request", "token") and entry.event.request is not None:
            ways.setdefault(entry.event.request, []).append(entry)
    for event in events:
        if event.kind == "schedule" and event.step in plans:
            for request, _ in event.data["scheduled"]:
                ways.setdefault(request, []).append(plans[event.step])
    for number, (request, way) in enumerate(ways.items(), 1):
        way.sort(key=lambda entry: entry.start)
        for place, entry in enumerate(way if len(way) > 1 else ()):
            is_last = place == len(way) - 1
            ph: Told = {"ph": "s"} if place == 0 else {"ph": "f", "bp": "e"} if is_last else {"ph": "t"}
            where = {"pid": entry.pid, "tid": entry.tid, "ts": entry.start}
            yield {**ph, "name": "request", "cat": "flow", "id": number, **where, "args": {"request": request}}


def _counters(events: list[Event], clock: Clock, pid: int) -> Iterator[Told]:
    num_tokens = 0

    def counter(event: Event, name: str, value: int, unit: str) -> Told:
        return {"ph": "C", "name": name, "pid": pid, "tid": 0, "ts": clock.end(event), "args": {unit: value}}

    for event in events:
        data = event.data
        if event.kind == "schedule":
            yield counter(event, "budget used", data["total_scheduled"], "tokens")
        elif event.kind == "update":
            num_tokens += sum(len(tokens) for tokens in data["emitted"].values())
            yield counter(event, "tokens", num_tokens, "tokens")
        elif event.kind == "step.end":
            yield counter(event, "free blocks", data["free_blocks"], "blocks")
            yield counter(event, "running", len(data["running_after"]), "requests")
            yield counter(event, "waiting", len(data["waiting"]), "requests")


def _facts(log: Log, clock: Clock) -> Told:
    meaning = "wall: microseconds of the monotonic clock since the log's first event"
    if clock.is_logical:
        meaning = "logical: every event takes one microsecond. The order is true, lengths are not times"
    return {
        "made_by": "minivllm",
        "clock": meaning,
        "scenario": log.header.scenario,
        "model": log.header.model,
        "device": log.header.device,
        "started_at": log.header.started_at,
        "iterations": list(log.window) if log.window else None,
        "dropped_events": log.num_dropped,
        "truncated": log.truncated,
    }
