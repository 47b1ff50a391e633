"""Owns the hot-path map: where the time of a step goes, call by call and stage by stage, and where the CPU truly waits.

A pure function of the log. Times are of the thread that makes a call; what a call only starts on the device is told
apart (`device_ns`). Without clocks there are counts and the structure of the calls, and no times.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from minivllm.maps.calltree import Node, call_tree, merged
from minivllm.maps.latency import latency
from minivllm.maps.stages import (
    SYNC,
    WHOLE_STEP,
    Stage,
    has_clock,
    median,
    percentile,
    plane_of,
    stages_of,
)
from minivllm.trace.events import Event
from minivllm.trace.reader import Log


def hot_map(log: Log, iterations: Sequence[int] | None = None, request: str | None = None) -> dict[str, Any]:
    """Where the time of some iterations went.

    Args:
        log: What to read.
        iterations: Which; None for all.
        request: Tell the latency of this request only; None for all.

    Returns:
        The keys of `minivllm map hot --format json`. Every time is None if the log has no clocks. A `share` is of
        `total_ns`, all the work that was done in these iterations.
    """
    steps = log.by_step()
    chosen = [step for step in sorted(steps) if iterations is None or step in iterations]
    stages = [stage for step in chosen for stage in stages_of(steps[step])]
    timed = has_clock(log)
    roots = [node for step in chosen for node in call_tree(steps[step])]
    tree = merged(roots)
    total = sum(node.cpu_ns or 0 for node in roots) if timed else None
    own_times = _self_times(chosen, steps)
    return {
        "steps": len(chosen),
        "clock": "wall" if timed else "logical",
        "iterations": chosen,
        "total_ns": total,
        "stages": _stage_rows(stages, own_times, total),
        "planes": _planes(tree, total),
        "tree": [_described(node, total) for node in tree],
        "sync_points": _sync_points(stages, total),
        "device": _device(stages, log.header.device),
        "kernels": _kernels([event for step in chosen for event in steps[step] if event.kind == "kernels"]),
        "step_ns": _step_times(steps, chosen),
        "latency": latency(log, request),
    }


def _self_times(chosen: list[int], steps: dict[int, list[Event]]) -> dict[str, int]:
    """By stage, its time without that of the stages inside it."""
    own: dict[str, int] = {}

    def visit(node: Node) -> None:
        own[node.name] = own.get(node.name, 0) + (node.self_ns or 0)
        for child in node.children:
            visit(child)

    for step in chosen:
        for root in call_tree(steps[step], stages_only=True):
            visit(root)
    return own


def _stage_rows(stages: list[Stage], own: dict[str, int], total: int | None) -> list[dict[str, Any]]:
    """The articles' table: one row a stage, in the order in which a step goes through them."""
    by_name: dict[str, list[Stage]] = {}
    for stage in stages:
        if stage.name != WHOLE_STEP:
            by_name.setdefault(stage.name, []).append(stage)
    rows = []
    for name, group in by_name.items():
        times = [stage.dur_ns for stage in group if stage.dur_ns is not None]
        device = [stage.device_ns for stage in group if stage.device_ns is not None]
        cpu = sum(times) if times else None
        rows.append(
            {
                "name": name,
                "plane": plane_of(name),
                "process": group[0].process,
                "calls": len(group),
                "cpu_ns": cpu,
                "self_ns": own.get(name) if times else None,
                "device_ns": sum(device) if device else None,
                "share": _share(cpu, total),
                "median_ns": median(times),
                "p99_ns": percentile(times, 99),
                "src": group[0].src,
                "ref": group[0].ref,
            }
        )
    return rows


def _planes(tree: Iterable[Node], total: int | None) -> dict[str, Any]:
    """Time of each plane: a call belongs to its own, what it calls to theirs."""
    times = {"control": 0, "data": 0}

    def visit(node: Node) -> None:
        times[node.plane] += node.self_ns or 0
        for child in node.children:
            visit(child)

    for root in tree:
        visit(root)
    return {
        plane: {"cpu_ns": None if total is None else ns, "share": _share(None if total is None else ns, total)}
        for plane, ns in times.items()
    }


def _described(node: Node, total: int | None) -> dict[str, Any]:
    return {
        "name": node.name,
        "plane": node.plane,
        "process": node.process,
        "thread": node.thread,
        "calls": node.calls,
        "cpu_ns": node.cpu_ns,
        "self_ns": node.self_ns,
        "device_ns": node.device_ns,
        "share": _share(node.cpu_ns, total),
        "is_sync": node.is_sync,
        "src": node.src,
        "ref": node.ref,
        "children": [_described(child, total) for child in node.children],
    }


def _sync_points(stages: list[Stage], total: int | None) -> list[dict[str, Any]]:
    """The places where the CPU stands still until the device is done; they are told by the code that waits there."""
    points: dict[str | None, list[Stage]] = {}
    for stage in stages:
        if stage.name == SYNC:
            points.setdefault(stage.src, []).append(stage)
    rows = []
    for src, group in points.items():
        times = [stage.dur_ns for stage in group if stage.dur_ns is not None]
        rows.append(
            {
                "name": SYNC,
                "process": group[0].process,
                "calls": len(group),
                "cpu_ns": sum(times) if times else None,
                "median_ns": median(times),
                "share": _share(sum(times) if times else None, total),
                "src": src,
                "ref": group[0].ref,
            }
        )
    return rows


def _device(stages: list[Stage], name: str) -> dict[str, Any]:
    """Enqueue against work: how long the CPU took to start what the device then did alone."""
    started = [stage for stage in stages if stage.device_ns is not None]
    enqueue = sum(stage.dur_ns or 0 for stage in started)
    return {
        "name": name,
        "enqueue_ns": enqueue if started else None,
        "device_ns": sum(stage.device_ns or 0 for stage in started) if started else None,
    }


def _kernels(profiled: list[Event]) -> dict[str, Any]:
    """What the profiled forward passes were made of, the longest first. A profiler slows its pass down."""
    sums: dict[str, list[int]] = {}
    for event in profiled:
        for name, *numbers in event.data["kernels"]:
            sums[name] = [a + b for a, b in zip(sums.get(name, [0, 0, 0]), numbers, strict=True)]
    rows: list[dict[str, Any]] = [
        {"name": name, "calls": calls, "cpu_ns": cpu, "device_ns": device}
        for name, (calls, cpu, device) in sums.items()
    ]
    rows.sort(key=lambda row: (-row["device_ns"], -row["cpu_ns"], row["name"]))
    return {"iterations": [event.step for event in profiled], "rows": rows}


def _step_times(steps: dict[int, list[Event]], chosen: list[int]) -> dict[str, Any]:
    """How long each iteration took, from its first stage to its last."""
    times: dict[int, int] = {}
    for step in chosen:
        ends = [(s.start_ns, s.end_ns) for s in stages_of(steps[step])]
        begun = [start for start, end in ends if start is not None and end is not None]
        if begun:
            times[step] = max(end for _, end in ends if end is not None) - min(begun)
    numbers = list(times.values())
    return {"median": median(numbers), "p99": percentile(numbers, 99), "by_iteration": times}


def _share(part: int | None, total: int | None) -> float | None:
    return None if part is None or not total else round(part / total, 6)
