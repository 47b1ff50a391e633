"""Owns the sentences above the hot-path map: where the time went, where the CPU waited, and what a caller felt."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from minivllm.trace.events import Header


def tell(step: dict[str, Any], run: dict[str, Any], header: Header) -> list[str]:
    """Sentences on a hot-path map.

    Args:
        step: The map of the iteration that is shown.
        run: The map of all iterations.
        header: The log's.
    """
    if run["clock"] == "logical":
        return list(_without_clocks(step, header))
    return [*_planes(step), *_waiting(step), *_compared(step, run), *_felt(run)]


def _without_clocks(step: dict[str, Any], header: Header) -> Iterator[str]:
    yield (
        "This log keeps no clocks, so there are no times in it: it shows what was called, how often, and in what order."
    )
    if header.scenario is not None and header.model != "simulated":
        yield f"For times on this machine: minivllm map hot -s {header.scenario} --fresh"
    elif header.model == "simulated":
        yield "The run was simulated: nothing was computed, so there is no data plane."


def _planes(step: dict[str, Any]) -> Iterator[str]:
    total, planes = step["total_ns"], step["planes"]
    if not total:
        return
    longest = max(step["stages"], key=lambda row: row["cpu_ns"] or 0, default=None)
    text = (
        f"{total / 1e6:.2f} ms of work: {_percent(planes['data']['share'])} in the data plane (moves tensors), "
        f"{_percent(planes['control']['share'])} in the control plane (decides who and how much)."
    )
    if longest is not None and longest["share"]:
        text += f" The longest stage was {longest['name']} with {_percent(longest['share'])}."
        own = max(_nodes(step["tree"]), key=lambda node: node["self_ns"] or 0, default=None)
        # Longer than any stage, so it is in none: as a call that the system made wait.
        if own is not None and (own["self_ns"] or 0) > (longest["cpu_ns"] or 0):
            text += (
                f" More time went by outside of all stages: {_percent(own['self_ns'] / total)} in {own['name']} itself."
            )
    yield text


def _nodes(nodes: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Every call of a tree."""
    for node in nodes:
        yield node
        yield from _nodes(node["children"])


def _waiting(step: dict[str, Any]) -> Iterator[str]:
    device, syncs = step["device"], step["sync_points"]
    waited = sum(point["cpu_ns"] or 0 for point in syncs)
    if device["device_ns"] is not None:
        yield (
            f"To start what the device did took {device['enqueue_ns'] / 1e6:.2f} ms; it then worked "
            f"{device['device_ns'] / 1e6:.2f} ms, and for {waited / 1e6:.2f} ms of that the CPU truly waited (sync)."
        )
    elif device["name"] == "cpu":
        where = f" (the sync took {waited / 1e6:.3f} ms)" if syncs else ""
        yield f"The device is the CPU: a forward pass is computed where it is called, and nothing waits later{where}."


def _compared(step: dict[str, Any], run: dict[str, Any]) -> Iterator[str]:
    [iteration] = step["iterations"]
    own, median = run["step_ns"]["by_iteration"].get(iteration), run["step_ns"]["median"]
    if own is None or not median or run["steps"] < 2:
        return
    p99 = run["step_ns"]["p99"]
    yield (
        f"Iteration {iteration} took {own / 1e6:.2f} ms from its first stage to its last; "
        f"the median of {run['steps']} iterations is {median / 1e6:.2f} ms, the 99th percentile {p99 / 1e6:.2f} ms."
    )


def _felt(run: dict[str, Any]) -> Iterator[str]:
    latency = run["latency"]
    if latency["ttft_ms"] is None:
        return
    text = f"A request waited {latency['ttft_ms']:.1f} ms for its first token (TTFT, median)"
    if latency["queue_ms"] is not None:
        text += f", {latency['queue_ms']:.1f} ms of them in the queue"
    if latency["itl_ms"] is not None:
        text += (
            f", then {latency['itl_ms']:.2f} ms for each next one (ITL, median; p99 {latency['p99']['itl_ms']:.2f} ms)"
        )
    yield f"{text}."


def _percent(share: float | None) -> str:
    if share is None:
        return "an unknown part"
    return "<1 %" if 0 < share < 0.005 else f"{share * 100:.0f} %"
