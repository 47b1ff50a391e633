"""Owns the state machine of requests as a run went through it: every change of status, and how often it happened."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from minivllm.trace.events import Event

START = "[*]"
REFUSED = "REFUSED"

# What the core tells the frontend, and the status behind it.
_STATUS_OF_REASON = {
    "stop": "FINISHED_STOPPED",
    "length": "FINISHED_LENGTH_CAPPED",
    "abort": "FINISHED_ABORTED",
    "error": "FINISHED_ERROR",
    "repetition": "FINISHED_REPETITION",
}


def transitions(events: Iterable[Event], request: str | None = None) -> list[dict[str, Any]]:
    """Every change of status that happened, in the order in which each kind was first seen.

    Args:
        events: Of a log, in order.
        request: Only this one; None for all.

    Returns:
        [{"from", "to", "by", "count", "requests"}]; `by` is the event that did it.
    """
    status: dict[str, str] = {}
    counted: dict[tuple[str, str, str], list[str]] = {}
    for event in events:
        for request_id, new, by in _changes(event, status):
            old = status.get(request_id, START)
            status[request_id] = new
            if request in (None, request_id):
                counted.setdefault((old, new, by), []).append(request_id)
    return [
        {"from": old, "to": new, "by": by, "count": len(ids), "requests": list(dict.fromkeys(ids))}
        for (old, new, by), ids in counted.items()
    ]


def _changes(event: Event, status: dict[str, str]) -> list[tuple[str, str, str]]:
    """(request, new status, why) of one event; `status` is what they were."""
    data = event.data
    if event.kind == "request.arrived" and event.request is not None:
        return [(event.request, "WAITING", "add_request")]
    if event.kind == "request.refused" and event.request is not None:
        return [(event.request, REFUSED, "refused")]
    if event.kind == "schedule":
        victims = [(victim, "PREEMPTED", "preempted") for victim in data["preempted"]]
        entered = [(i, "RUNNING", f"scheduled, {kind}") for kind in ("new", "resumed") for i in data[kind]]
        return victims + entered
    if event.kind == "update":
        return [(i, _STATUS_OF_REASON.get(reason, reason), reason) for i, (reason, _) in data["finished"].items()]
    if event.kind == "requests.aborted":
        # With a stop string the frontend ends a request that the core may have ended by itself.
        alive = [i for i in data["ended"] if not status.get(i, "").startswith("FINISHED")]
        return [(i, "FINISHED_ABORTED", "abort") for i in alive]
    return []
