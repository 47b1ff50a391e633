"""Owns the comparison format: one JSON line a step with everything that the scheduler decided.

It is the format in which vLLM's own scheduler was recorded, so equal lines mean equal plans. A pure function of the
event log: simulated and real runs go through the same code.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from minivllm.trace.events import Event
from minivllm.trace.store import write_whole

_PLAN_FIELDS = (
    "scheduled",
    "total_scheduled",
    "new",
    "resumed",
    "running",
    "preempted",
    "finished_since_last",
    "block_ids",
    "num_computed_before",
    "num_computed_after",
    "prefix_cache",
    "num_common_prefix_blocks",
    "free_blocks_scheduled",
)


def plan_lines(events: Iterable[Event], *, is_async: bool) -> list[dict[str, Any]]:
    """One line a step, in order. A step that the log does not hold to its end has none.

    Args:
        events: A log's events.
        is_async: Whether the run planned ahead: then a line says of which step an output was (`update_of`).
    """
    steps: dict[int, list[Event]] = {}
    sampled: dict[int, dict[str, list[int]]] = {}
    refused: set[str] = set()
    for event in events:
        if event.step >= 0:
            steps.setdefault(event.step, []).append(event)
        if event.kind == "update":
            sampled[event.data["update_of"]] = event.data["sampled"]
        if event.kind == "run.truncated" and event.data["sampled"]:
            sampled[event.step] = event.data["sampled"]
        if event.kind == "request.refused" and event.request is not None:
            refused.add(event.request)
    whole = [step for step in sorted(steps) if any(event.kind == "step.end" for event in steps[step])]
    return [_line(step, steps[step], sampled.get(step, {}), refused, is_async) for step in whole]


def _line(
    step: int, events: list[Event], sampled: dict[str, list[int]], refused: set[str], is_async: bool
) -> dict[str, Any]:
    by_kind = {event.kind: event.data for event in events}
    line: dict[str, Any] = {"step": step}
    if arrived := [e.request for e in events if e.kind == "request.arrived" and e.request not in refused]:
        line["arrived"] = arrived
    if here := [e.request for e in events if e.kind == "request.refused"]:
        line["refused"] = here
    aborted = {e.data["phase"]: sorted(e.data["ended"]) for e in events if e.kind == "requests.aborted"}
    if "before" in aborted:
        line["aborted"] = aborted["before"]
    if "schedule" in by_kind:
        plan = by_kind["schedule"]
        line.update({name: plan[name] for name in _PLAN_FIELDS})
        line["sampled"] = {i: sampled[i][0] for i, _ in plan["scheduled"] if sampled.get(i)}
        line["waiting_scheduled"] = plan["waiting_scheduled"]
        line["running_scheduled"] = plan["running_scheduled"]
    else:
        line["idle"] = True
    if "mid" in aborted:
        line["aborted_mid"] = aborted["mid"]
    if "update" in by_kind:
        update = by_kind["update"]
        if is_async:
            line["update_of"] = update["update_of"]
        line["emitted"] = update["emitted"]
        line["finished"] = update["finished"]
    end = by_kind["step.end"]
    line["waiting"], line["running_after"] = end["waiting"], end["running_after"]
    if end["skipped_waiting"]:
        line["skipped_waiting"] = end["skipped_waiting"]
    line.update({name: end[name] for name in ("free_blocks", "free_head", "cached_hashes")})
    if "run.truncated" in by_kind:
        line["truncated"] = True
    return line


def dump(line: dict[str, Any]) -> str:
    """A line as text, without spaces."""
    return json.dumps(line, separators=(",", ":"))


def summary_line(result: Any) -> dict[str, Any]:
    """The last line: how each request ended.

    Args:
        result: What the driver returned (a RunResult).
    """
    summary = {}
    for request_id, request in result.requests.items():
        finish_reason, stop_reason = result.finals.get(request_id, (None, None))
        summary[request_id] = {
            "output": list(request.output_token_ids),
            "finish_reason": finish_reason,
            "stop_reason": stop_reason,
            "num_preemptions": request.num_preemptions,
        }
    return {"summary": summary, "steps": result.steps, "free_blocks": result.free_blocks}


def write_plan_lines(
    path: Path, events: Iterable[Event], *, is_async: bool, summary: dict[str, Any] | None = None
) -> None:
    """Write a run's plans, one line a step, and how it ended."""
    lines = plan_lines(events, is_async=is_async)
    if summary is not None:
        lines.append(summary)
    write_whole(path, map(dump, lines))
