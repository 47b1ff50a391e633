"""Owns the timeline map: what every request did in every iteration, and when, if the log has clocks.

A pure function of the log.
"""

from __future__ import annotations

from typing import Any

from minivllm.trace.events import Event
from minivllm.trace.reader import Log
from minivllm.trace.replay import State

# What a request did in an iteration; the first that is true, so the rarer comes first.
ABSENT = ""
ABORTED = "aborted"
PREEMPTED = "preempted"
REFUSED = "refused"
PREFILL = "prefill"
DECODE = "decode"
WAITING = "waiting"
PASSED_OVER = "passed_over"


def timeline_map(log: Log) -> dict[str, Any]:
    """The grid of requests and iterations.

    Returns:
        {"iterations": [n], "budget": tokens, "order": [every id that is known, in order of arrival], "requests":
        [{request, arrived, num_prompt_tokens, num_output_tokens, finish_reason, cells: [CELL]}], "times": [{iteration,
        start_ns, end_ns}] | null} with a CELL for each iteration: null where the request is not there, else {state,
        num_tokens, num_cached, num_drafts, entered, finished}. Only requests that were there in one are listed.
    """
    state = State(log.header, log.start)
    steps = log.by_step()
    rows: dict[str, list[dict[str, Any] | None]] = {}
    for index, events in enumerate(steps.values()):
        was_here = {i for i, entry in state.requests.items() if not entry.is_finished}
        for event in events:
            state.apply(event)
        for request_id, cell in _cells(events, was_here, state).items():
            row = rows.setdefault(request_id, [])
            row += [None] * (index - len(row))
            row.append(cell)
    for row in rows.values():
        row += [None] * (len(steps) - len(row))
    return {
        "iterations": list(steps),
        "budget": log.header.config.get("scheduler_config", {}).get("max_num_batched_tokens"),
        "order": list(state.requests),
        "requests": [
            _request(request_id, rows[request_id], state) for request_id in state.requests if request_id in rows
        ],
        "times": _times(steps),
    }


def _request(request_id: str, cells: list[dict[str, Any] | None], state: State) -> dict[str, Any]:
    entry, text = state.requests[request_id], state.frontend.get(request_id)
    return {
        "request": request_id,
        "arrived": entry.arrived,
        "num_prompt_tokens": entry.num_prompt_tokens,
        "num_output_tokens": entry.num_tokens - entry.num_prompt_tokens,
        "finish_reason": (text.finish_reason if text else None) or entry.finish_reason,
        "cells": cells,
    }


def _cells(events: list[Event], was_here: set[str], state: State) -> dict[str, dict[str, Any]]:
    """What each request that is there did in one iteration."""
    data = {event.kind: event.data for event in events}
    plan = data.get("schedule", {})
    aborted = {i for event in events if event.kind == "requests.aborted" for i in event.data["ended"]}
    ended = {i for event in events if event.kind == "update" for i in event.data["finished"]}
    # Of a stop string the core hears by an abort; for its caller the request has ended with its text.
    stopped = {event.request for event in events if event.kind == "output.text" and event.data["finish_reason"]}
    came = {event.request for event in events if event.kind == "request.arrived"}
    scheduled = dict(plan.get("scheduled", ()))
    hits = {i: hit for i, _, hit in plan.get("prefix_cache", ())}
    entered = {*plan.get("new", ()), *plan.get("resumed", ())}
    cells = {}
    for request_id, entry in state.requests.items():
        if request_id not in was_here and request_id not in came:
            continue
        cells[request_id] = {
            "state": _state(request_id, entry, scheduled, plan, aborted - stopped),
            "num_tokens": scheduled.get(request_id, 0),
            "num_cached": hits.get(request_id, 0),
            "num_drafts": len(plan.get("spec_tokens", {}).get(request_id, ())),
            "entered": request_id in entered,
            "finished": request_id in ended | stopped,
        }
    return cells


def _state(request_id: str, entry: Any, scheduled: dict[str, int], plan: dict[str, Any], aborted: set[str]) -> str:
    if request_id in aborted:
        return ABORTED
    if entry.status == "REFUSED":
        return REFUSED
    if request_id in plan.get("preempted", ()):
        return PREEMPTED
    if request_id in scheduled:
        # Whoever computes older tokens than its newest one is still behind with its prompt, or computes them anew.
        before = plan["num_computed_before"][request_id]
        is_behind = before < entry.num_prompt_tokens or before + 1 < plan["num_tokens"][request_id]
        return PREFILL if is_behind else DECODE
    return PASSED_OVER if request_id in plan.get("running_scheduled", ()) else WAITING


def _times(steps: dict[int, list[Event]]) -> list[dict[str, int]] | None:
    """When each iteration began and ended, in ns since the first one; None if the log has no clocks."""
    spans = []
    for step, events in steps.items():
        ends = [event.wall_ns for event in events if event.wall_ns is not None]
        starts = [event.wall_ns - (event.dur_ns or 0) for event in events if event.wall_ns is not None]
        if ends:
            spans.append((step, min(starts), max(ends)))
    if not spans:
        return None
    zero = min(start for _, start, _ in spans)
    return [{"iteration": step, "start_ns": start - zero, "end_ns": end - zero} for step, start, end in spans]
