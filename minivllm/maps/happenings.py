"""Owns what an iteration's events say beside the plan: who came and left, what became of blocks, rows and text."""

from __future__ import annotations

from typing import Any

from minivllm.trace.events import Event


def happenings(events: list[Event], *, caching: bool) -> dict[str, Any]:
    """The facts of one iteration.

    Args:
        events: All of its events, in order.
        caching: Whether prefix caching is on.
    """
    aborts = [(i, e.data["phase"]) for e in events if e.kind == "requests.aborted" for i in e.data["ended"]]
    return {
        "arrived": [e.request for e in events if e.kind == "request.arrived"],
        "refused": [[e.request, e.data["message"]] for e in events if e.kind == "request.refused"],
        "aborted": [request for request, _ in aborts],
        "aborts": [{"request": request, "phase": phase} for request, phase in aborts],
        "lookups": [{"request": e.request, **e.data} for e in events if e.kind == "kv.lookup"],
        "shared": [{"request": e.request, **e.data} for e in events if e.kind == "kv.shared"],
        "forgotten": _forgotten(events),
        "gave_back": [_gave_back(e, caching=caching) for e in events if e.kind == "kv.freed"],
        "cache_reset": any(e.kind == "kv.reset" for e in events),
        "moved": [move for e in events if e.kind == "rows" for move in e.data["moved"]],
        "texts": [{"request": e.request, **_text(e)} for e in events if e.kind == "output.text"],
    }


def _text(event: Event) -> dict[str, Any]:
    return {key: event.data.get(key) for key in ("delta", "held", "sent", "finish_reason", "stop_reason")}


def _forgotten(events: list[Event]) -> list[dict[str, Any]]:
    """Blocks whose content the prefix cache lost, and who got them: an eviction comes before its reuse."""
    groups: list[dict[str, Any]] = []
    waiting: list[int] = []
    for event in events:
        if event.kind == "kv.evicted" and event.data["why"] == "reused":
            waiting.append(event.block if event.block is not None else -1)
        elif event.kind == "kv.evicted" and event.data["why"] == "taken_back":
            groups.append({"request": None, "blocks": [event.block], "why": "taken_back"})
        elif event.kind == "kv.allocated" and waiting:
            groups.append({"request": event.request, "blocks": waiting, "why": "reused"})
            waiting = []
    return groups


def _gave_back(event: Event, *, caching: bool) -> dict[str, Any]:
    returned, front = event.data["returned"], event.data["returned_front"]
    blocks = event.data["blocks"]
    return {
        "request": event.request,
        "num_blocks": len(blocks),
        "num_cached": len(returned) if caching else 0,
        "num_shared": len(blocks) - len(returned) - len(front),
    }
