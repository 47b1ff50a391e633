"""Owns the sentences above the process map: what crossed, who waited for whom, and what this log cannot say."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from minivllm.trace.events import Header

_MOST_NAMED = 6
TITLES = {"frontend": "frontend", "engine_core": "EngineCore", "worker": "worker", "device": "device"}


def tell(
    process: dict[str, Any], iteration: dict[str, Any], messages: list[dict[str, Any]], header: Header
) -> list[str]:
    """Sentences on one iteration of a process map.

    Args:
        process: The whole map.
        iteration: The entry of the iteration.
        messages: Its messages.
        header: The log's.
    """
    return [
        _what(iteration),
        *_ahead(iteration),
        *_crossings(messages),
        *_waits(iteration),
        *_sharing(process),
        *_limits(process, header),
    ]


def _what(iteration: dict[str, Any]) -> str:
    requests, tokens = iteration["requests"], iteration["num_tokens"]
    took = "" if iteration["dur_ns"] is None else f" It took {iteration['dur_ns'] / 1e6:.2f} ms from end to end."
    if not requests:
        return f"Nothing was computed in iteration {iteration['iteration']}.{took}"
    count = "1 token" if tokens == 1 else f"{tokens} tokens"
    who = f"{len(requests)} requests" if len(requests) > _MOST_NAMED else _listed(requests)
    return f"Iteration {iteration['iteration']} computed {count} of {who}.{took}"


def _ahead(iteration: dict[str, Any]) -> Iterator[str]:
    answered, number = iteration["update_of"], iteration["iteration"]
    if answered is not None and answered != number:
        yield (
            f"What the core committed (update_from_output) was computed for the plan of iteration {answered}: "
            f"with async scheduling, plan {number} was made before that."
        )


def _crossings(messages: list[dict[str, Any]]) -> Iterator[str]:
    parts = []
    for boundary, number in enumerate("①②③", 1):
        here = [m for m in messages if m["boundary"] == boundary]
        if not here:
            continue
        counts: dict[str, int] = {}
        for message in here:
            counts[message["type"]] = counts.get(message["type"], 0) + 1
        types = _listed([f"{count} {name}" if count > 1 else name for name, count in counts.items()])
        sizes = [m["bytes"] for m in here if m["bytes"] is not None]
        parts.append(f"{number} {types}" + (f" ({sum(sizes)} bytes)" if sizes else ""))
    if parts:
        yield f"Over the boundaries went: {'; '.join(parts)}."


def _waits(iteration: dict[str, Any]) -> Iterator[str]:
    """One sentence a pair, the longest wait first."""
    totals: dict[tuple[str, str], int] = {}
    for wait in iteration["waits"]:
        if wait["dur_ns"] is not None:
            pair = (wait["process"], wait["for"])
            totals[pair] = totals.get(pair, 0) + wait["dur_ns"]
    long = {pair: ns for pair, ns in totals.items() if ns >= (iteration["dur_ns"] or 0) / 100}
    clauses = [
        f"the {TITLES[role]} waited {ns / 1e6:.2f} ms for the {TITLES[other]}"
        for (role, other), ns in sorted(long.items(), key=lambda entry: -entry[1])
    ]
    if clauses:
        text = "; ".join(clauses)
        yield f"Who waits for whom: {text}."


def _sharing(process: dict[str, Any]) -> Iterator[str]:
    by_pid: dict[int, list[str]] = {}
    for entry in process["processes"]:
        if entry["pid"] is not None and entry["name"] != "device":
            by_pid.setdefault(entry["pid"], []).append(TITLES[entry["name"]])
    for pid, names in by_pid.items():
        if len(names) > 1:
            yield (
                f"One process (pid {pid}) is {_listed(names)}: what crosses between them is a call, "
                "and its bytes are what it would weigh as a message."
            )


def _limits(process: dict[str, Any], header: Header) -> Iterator[str]:
    names = [entry["name"] for entry in process["processes"]]
    if "worker" not in names:
        yield "This run was simulated: nobody computed anything, so there is no worker and no device."
    if process["clock"] == "logical":
        text = "This log keeps no clocks, so the order is true, and times and bytes are not in it."
        if header.scenario and "worker" in names:
            text += f" For both: minivllm map process -s {header.scenario} --fresh"
        yield text
    elif not process["recorded"]:
        yield "This log holds no messages: those drawn follow from its other events, without bytes and times."
    elif header.device == "cpu" and "device" in names:
        yield "The device is the CPU itself: the worker's own thread computes, nothing crosses ③, and nothing overlaps."


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
