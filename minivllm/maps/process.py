"""Owns the process map: which processes there are, what crosses the boundaries between them, and who waits for whom.

    frontend  ①  engine core  ②  worker  ③  device

A pure function of the log. A log without clocks holds no messages; which ones there must have been follows from its
other events, and they are told without bytes and times.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from minivllm.maps.stages import ROLES, SYNC, WHOLE_STEP, Stage, has_clock, requests_of, stages_of
from minivllm.trace.events import Event
from minivllm.trace.reader import Log

# Where each message is defined, here and in vLLM.
MESSAGE_SOURCES = {
    "EngineCoreRequest": ("minivllm.core.messages:EngineCoreRequest", "vllm/v1/engine/__init__.py::EngineCoreRequest"),
    "EngineCoreOutputs": ("minivllm.core.messages:EngineCoreOutputs", "vllm/v1/engine/__init__.py::EngineCoreOutputs"),
    "AbortRequests": ("minivllm.engine.wire:AbortRequests", "vllm/v1/engine/core_client.py::MPClient.abort_requests"),
    "UtilityCall": ("minivllm.engine.wire:UtilityCall", "vllm/v1/engine/core_client.py::SyncMPClient.call_utility"),
    "UtilityOutput": ("minivllm.engine.wire:UtilityOutput", "vllm/v1/engine/__init__.py::UtilityOutput"),
    "EngineCoreReadyResponse": (
        "minivllm.engine.wire:EngineCoreReadyResponse",
        "vllm/v1/engine/__init__.py::EngineCoreReadyResponse",
    ),
    "SchedulerOutput": (
        "minivllm.core.scheduler_output:SchedulerOutput",
        "vllm/v1/core/sched/output.py::SchedulerOutput",
    ),
    "ModelRunnerOutput": ("minivllm.core.scheduler_output:ModelRunnerOutput", "vllm/v1/outputs.py::ModelRunnerOutput"),
}

_MESSAGE_KEYS = ("boundary", "channel", "from", "to", "type", "bytes", "requests", "send_ns", "recv_ns")


def process_map(log: Log) -> dict[str, Any]:
    """Everything that the log says about processes and what goes between them.

    Returns:
        {"clock", "recorded", "processes": [...], "requests": [...], "messages": [...], "iterations": [...]}.
        `recorded` says whether the log holds messages; if not, those here follow from its other events.
    """
    recorded = any(event.kind == "message" for event in log.events)
    roles = _roles(log)
    # A CPU computes in the worker's own memory: nothing crosses to it.
    has_device = log.header.device not in ("", "cpu")
    steps = log.by_step()
    messages = list(_recorded([event for event in log.events if event.step < 0]))
    iterations = []
    last_active: dict[str, int] = {}
    for step in sorted(steps):
        events = steps[step]
        stages = stages_of(events)
        here = list(_recorded(events) if recorded else _inferred(events, roles, has_device))
        messages += here
        iterations.append(_iteration(step, events, stages, here, last_active))
    return {
        "clock": "wall" if has_clock(log) else "logical",
        "recorded": recorded,
        "processes": _processes(log, roles),
        "requests": requests_of(log),
        "messages": messages,
        "iterations": iterations,
    }


def _roles(log: Log) -> list[str]:
    """Those that left a trace, in the order of their columns. A worker always works on a device."""
    seen = {event.process for event in log.events}
    for event in log.events:
        if event.kind == "message":
            seen |= {event.data["from"], event.data["to"]}
    if "worker" in seen:
        seen.add("device")
    return [role for role in ROLES if role in seen]


def _processes(log: Log, roles: list[str]) -> list[dict[str, Any]]:
    """One entry a role. Roles with the same pid share one process."""
    started = {
        event.data.get("role", event.process): event.data for event in log.events if event.kind == "process.started"
    }
    return [
        {
            "name": role,
            "pid": started.get(role, {}).get("pid"),
            "loops": [thread["loop"] for thread in started.get(role, {}).get("threads", [])],
            "threads": started.get(role, {}).get("threads", []),
        }
        for role in roles
    ]


def _recorded(events: list[Event]) -> Iterator[dict[str, Any]]:
    for event in events:
        if event.kind == "message":
            message = {"iteration": event.step, **{key: event.data.get(key) for key in _MESSAGE_KEYS}}
            times = {key: event.data[key] for key in ("encode_ns", "decode_ns") if event.data.get(key) is not None}
            ours, vllm = MESSAGE_SOURCES.get(event.data["type"], (None, None))
            yield {**message, **times, "seq": event.seq, "src": event.src or ours, "ref": event.ref or vllm}


def _inferred(events: list[Event], roles: list[str], has_device: bool) -> Iterator[dict[str, Any]]:
    """What must have crossed for these events to have happened."""

    def message(
        event: Event, boundary: int, channel: str | None, ends: tuple[str, str], type_: str, requests: list[str]
    ) -> Iterator[dict[str, Any]]:
        if not set(ends) <= set(roles):
            return
        ours, vllm = MESSAGE_SOURCES.get(type_, (event.src, event.ref))
        values = (boundary, channel, *ends, type_, None, requests, None, None)
        told = dict(zip(_MESSAGE_KEYS, values, strict=True))
        yield {"iteration": event.step, **told, "seq": event.seq, "src": ours, "ref": vllm}

    update = next((event for event in events if event.kind == "update"), None)
    for event in events:
        data = event.data
        if event.kind == "request.arrived" and event.request is not None:
            yield from message(event, 1, None, ("frontend", "engine_core"), "EngineCoreRequest", [event.request])
        elif event.kind == "requests.aborted":
            for abort in message(event, 1, None, ("frontend", "engine_core"), "AbortRequests", data["asked"]):
                # It was noted at the end of the step; the core took it in before it committed what the model brought.
                came_mid = data["phase"] == "mid" and update is not None
                yield {**abort, "seq": update.seq, "is_before": True} if came_mid and update else abort
        elif event.kind == "schedule":
            requests = [request for request, _ in data["scheduled"]]
            yield from message(event, 2, "call", ("engine_core", "worker"), "SchedulerOutput", requests)
        elif event.kind == "prepare_inputs" and has_device:
            yield from message(event, 3, "device", ("worker", "device"), "inputs", data["order"])
        elif event.kind == "update":
            sampled = [request for request, tokens in data["sampled"].items() if tokens]
            if sampled and has_device:
                yield from message(event, 3, "device", ("device", "worker"), "sampled ids", sampled)
            yield from message(event, 2, "call", ("worker", "engine_core"), "ModelRunnerOutput", list(data["sampled"]))
            if data["emitted"] or data["finished"]:
                told = list(dict.fromkeys([*data["emitted"], *data["finished"]]))
                yield from message(event, 1, None, ("engine_core", "frontend"), "EngineCoreOutputs", told)


def _iteration(
    step: int, events: list[Event], stages: list[Stage], messages: list[dict[str, Any]], last_active: dict[str, int]
) -> dict[str, Any]:
    plan = next((event.data for event in events if event.kind == "schedule"), None)
    times = [(s.start_ns, s.start_ns + s.dur_ns) for s in stages if s.start_ns is not None and s.dur_ns is not None]
    times += [(m["send_ns"], m["recv_ns"] or m["send_ns"]) for m in messages if m["send_ns"] is not None]
    start = min((begin for begin, _ in times), default=None)
    return {
        "iteration": step,
        "requests": [request for request, _ in plan["scheduled"]] if plan else [],
        "num_tokens": plan["total_scheduled"] if plan else 0,
        "update_of": next((event.data["update_of"] for event in events if event.kind == "update"), None),
        "arrived": [event.request for event in events if event.kind == "request.arrived"],
        "start_ns": start,
        "dur_ns": None if start is None else max(end for _, end in times) - start,
        "stages": [{**asdict(stage), "plane": stage.plane} for stage in stages],
        "waits": _waits(step, stages, messages, last_active),
    }


def _waits(
    step: int, stages: list[Stage], messages: list[dict[str, Any]], last_active: dict[str, int]
) -> list[dict[str, Any]]:
    """Who did nothing until something came: from the end of its own last work until what it waited for was there.

    Args:
        last_active: When each role was last at work, in earlier iterations; brought up to date.
    """
    work = [stage for stage in stages if stage.name not in (WHOLE_STEP, SYNC)]
    waits: list[dict[str, Any]] = []
    for message in filter(_is_awaited, messages):
        role, arrival = message["to"], message["recv_ns"]
        if arrival is None:
            waits += _wait_in_order(step, message, work, messages)
            continue
        ends = [*_ends(role, work, messages), last_active.get(role, -1)]
        since = max((end for end in ends if 0 <= end <= arrival), default=None)
        if since is not None and since < arrival and not _is_busy(work, role, arrival):
            waits.append(_wait(step, message, since, arrival))
    for stage in stages:
        if stage.name == SYNC:
            awaited = {"to": stage.process, "from": "device", "type": "sampled ids", "seq": stage.seq}
            waits.append(_wait(step, awaited, stage.start_ns, stage.end_ns))
    last_active.update({role: max(ends) for role in ROLES if (ends := _ends(role, work, messages))})
    return sorted(waits, key=lambda wait: (wait["start_ns"] or 0, wait["seq"]))


def _is_awaited(message: dict[str, Any]) -> bool:
    """Whether its receiver has nothing else to do. The core takes in requests whenever they come."""
    if message["boundary"] == 3:
        return False
    return message["to"] in ("frontend", "worker") or message["type"] == "ModelRunnerOutput"


def _ends(role: str, work: list[Stage], messages: list[dict[str, Any]]) -> list[int]:
    ends = [stage.end_ns for stage in work if stage.process == role and stage.end_ns is not None]
    return ends + [m["send_ns"] for m in messages if m["from"] == role and m["send_ns"] is not None]


def _wait_in_order(
    step: int, message: dict[str, Any], work: list[Stage], messages: list[dict[str, Any]]
) -> Iterator[dict[str, Any]]:
    """Without clocks: a role waits from the last thing that it did, if others did something in between."""
    before = [stage.seq for stage in work if stage.seq < message["seq"]]
    before += [other["seq"] for other in messages if other is not message and other["seq"] < message["seq"]]
    own = [stage.seq for stage in work if stage.process == message["to"] and stage.seq < message["seq"]]
    own += [m["seq"] for m in messages if m["from"] == message["to"] and m["seq"] < message["seq"]]
    if own and max(before) > max(own):
        yield {**_wait(step, message, None, None), "seq": max(own)}


def _is_busy(work: list[Stage], role: str, moment: int) -> bool:
    return any(
        stage.process == role and stage.start_ns is not None and stage.start_ns < moment < (stage.end_ns or 0)
        for stage in work
    )


def _wait(step: int, message: dict[str, Any], start: int | None, end: int | None) -> dict[str, Any]:
    return {
        "iteration": step,
        "process": message["to"],
        "for": message["from"],
        "what": message["type"],
        "start_ns": start,
        "dur_ns": None if start is None or end is None else end - start,
        "seq": message["seq"],
    }


def messages_of(process: dict[str, Any], iteration: dict[str, Any]) -> list[dict[str, Any]]:
    """The messages of an iteration; with the first one also those that crossed before it, while the core started."""
    number = iteration["iteration"]
    is_first = iteration is process["iterations"][0]
    return [m for m in process["messages"] if m["iteration"] == number or (is_first and m["iteration"] < number)]


def in_order(iteration: dict[str, Any], messages: list[dict[str, Any]]) -> list[tuple[str, dict[str, Any]]]:
    """Stages, messages and waits of an iteration, each with what it is, in the order in which they began."""
    items = [("stage", stage) for stage in iteration["stages"]]
    items += [("message", message) for message in messages]
    # Where the CPU waits for the device is told by its stage.
    items += [("wait", wait) for wait in iteration["waits"] if wait["for"] != "device"]

    def key(entry: tuple[str, dict[str, Any]]) -> tuple[int, ...]:
        kind, item = entry
        began = moment(kind, item)
        rank = {"stage": 1, "message": 2, "wait": 3}[kind]
        if began is not None:
            return (began, rank, -(item.get("dur_ns") or 0), item["seq"])
        # Without clocks, a message that leads to a stage was inferred from that stage's event, and came before it.
        is_before = kind == "message" and (
            item["type"] in ("ModelRunnerOutput", "sampled ids") or item.get("is_before", False)
        )
        return (item["seq"], 0 if is_before else rank)

    return sorted(items, key=key)


def moment(kind: str, item: dict[str, Any]) -> int | None:
    """When something began."""
    began: int | None = item["send_ns"] if kind == "message" else item["start_ns"]
    return began
