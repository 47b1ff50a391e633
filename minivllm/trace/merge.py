"""Owns making one log of what two processes recorded: the core's events in their order, the frontend's between them.

All processes of a machine share a monotonic clock, so a frontend's event stands where its time says. Messages through a
socket were noted by both ends, and become one event here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from minivllm.trace.events import Event, EventLog, Header

_HALF = "message.half"
_CLOCKED = frozenset({"call", "span", "device.time", "kernels", "message", "process.started", "process.ended"})


def write_merged(
    header: Header,
    frontend: list[Event],
    core: list[Event],
    path: Path | None,
    *,
    logical: bool,
    num_dropped: int = 0,
    is_cut: bool = False,
) -> EventLog:
    """Write the log of a run in two processes.

    Args:
        header: Its first line.
        frontend: What the frontend recorded.
        core: What the core recorded, up to its end or to a cut.
        path: File for the log; None keeps it in memory.
        logical: Leave out what depends on clocks.
        num_dropped: Events that the two left out already.
        is_cut: The core did not come to the end of its own.
    """
    log = EventLog(header, path, logical=logical)
    log.num_dropped = num_dropped
    messages = _messages(frontend, core)
    places: dict[tuple[int, int], int] = {}  # (whose, seq there) to seq here
    texts: dict[str, dict[str, Any]] = {}
    for whose, event in _in_order(frontend, core):
        log.step = event.step
        if event.kind == _HALF:
            data = messages.get((whose, event.seq))
            # An answer that ends nobody is only how a pinned core is told to go on.
            if data is not None and not logical and (data["type"] != "AbortRequests" or data["requests"]):
                log.add(event.process, "message", data=data, wall_ns=event.wall_ns, thread=event.thread)
            continue
        if event.kind == "keyframe":
            log.add_keyframe({event.process: event.data["state"], "frontend": {"frontend": dict(texts)}})
            continue
        if logical and event.kind in _CLOCKED:
            continue
        cause = places.get((whose, event.cause)) if event.cause is not None else None
        if event.kind == "output.text" and event.request is not None:
            cause = log.last.get("update")
            _note_text(texts, event)
        places[whose, event.seq] = log.add(
            event.process,
            event.kind,
            request=event.request,
            block=event.block,
            row=event.row,
            cause=cause,
            data=_own_ids(event, whose),
            src=event.src,
            ref=event.ref,
            wall_ns=event.wall_ns,
            dur_ns=event.dur_ns,
            thread=event.thread,
        )
    log.close(is_cut=is_cut)
    return log


def _in_order(frontend: list[Event], core: list[Event]) -> Iterator[tuple[int, Event]]:
    """Both, each in its own order. A frontend's event belongs to the step in which it happened."""
    waiting = iter(frontend)
    event = next(waiting, None)
    step = -1
    for core_event in core:
        while event is not None and _time(event) < _time(core_event):
            yield 0, msgspec.structs.replace(event, step=step)
            event = next(waiting, None)
        yield 1, core_event
        step = core_event.step
    while event is not None:
        yield 0, msgspec.structs.replace(event, step=step)
        event = next(waiting, None)


def _time(event: Event) -> int:
    assert event.wall_ns is not None, "what is merged was recorded with its clock"
    return event.wall_ns


def _messages(frontend: list[Event], core: list[Event]) -> dict[tuple[int, int], dict[str, Any]]:
    """The whole messages, by the place of their second half. What nobody received, or nobody had sent, is none."""
    messages = {}
    for sender, receiver, whose, sent_by, received_by in (
        ("frontend", "engine_core", 1, frontend, core),
        ("engine_core", "frontend", 0, core, frontend),
    ):
        pairs = zip(_halves(sent_by, "sent"), _halves(received_by, "received"), strict=False)
        for sent, received in pairs:
            messages[whose, received.seq] = {
                "boundary": 1,
                "channel": "zmq",
                "from": sender,
                "to": receiver,
                "type": sent.data["type"],
                "bytes": sent.data["bytes"],
                "requests": sent.data["requests"],
                "send_ns": sent.data["at_ns"],
                "recv_ns": received.data["at_ns"],
                "encode_ns": sent.data["codec_ns"],
                "decode_ns": received.data["codec_ns"],
            }
    return messages


def _halves(events: Iterable[Event], half: str) -> list[Event]:
    return [event for event in events if event.kind == _HALF and event.data["half"] == half]


def _own_ids(event: Event, whose: int) -> dict[str, Any]:
    """Calls are numbered in each process from 0: even numbers for one, odd ones for the other."""
    if event.kind != "call":
        return event.data
    parent = event.data["parent"]
    return event.data | {
        "id": 2 * event.data["id"] + whose,
        "parent": None if parent is None else 2 * parent + whose,
    }


def _note_text(texts: dict[str, dict[str, Any]], event: Event) -> None:
    assert event.request is not None
    if event.data["finish_reason"] is not None:
        texts.pop(event.request, None)
        return
    num_tokens = texts.get(event.request, {}).get("num_tokens", 0) + len(event.data["tokens"])
    texts[event.request] = {"sent": event.data["sent"], "held": event.data["held"], "num_tokens": num_tokens}
