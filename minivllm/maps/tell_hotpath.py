"""Owns the sentences above the hot-path map: where the time went, where the CPU waited, and what a caller felt."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from minivllm.maps.wording import Words
from minivllm.maps.words_maps import MAP_WORDS
from minivllm.trace.events import Header


def tell(step: dict[str, Any], run: dict[str, Any], header: Header, lang: str = "en") -> list[str]:
    """Sentences on a hot-path map.

    Args:
        step: The map of the iteration that is shown.
        run: The map of all iterations.
        header: The log's.
        lang: "en" or "zh".
    """
    words = Words(lang, MAP_WORDS)
    if run["clock"] == "logical":
        return list(_without_clocks(header, words))
    return [*_planes(step, words), *_waiting(step, words), *_compared(step, run, words), *_felt(run, words)]


def _without_clocks(header: Header, words: Words) -> Iterator[str]:
    yield words("hot_no_clocks")
    if header.scenario is not None and header.model != "simulated":
        yield words("hot_fresh", scenario=header.scenario)
    elif header.model == "simulated":
        yield words("hot_simulated")


def _planes(step: dict[str, Any], words: Words) -> Iterator[str]:
    total, planes = step["total_ns"], step["planes"]
    if not total:
        return
    longest = max(step["stages"], key=lambda row: row["cpu_ns"] or 0, default=None)
    data, control = (_percent(planes[plane]["share"], words) for plane in ("data", "control"))
    text = words("planes", ms=_ms(total), data=data, control=control)
    if longest is not None and longest["share"]:
        text += words("longest", name=longest["name"], share=_percent(longest["share"], words))
        own = max(_nodes(step["tree"]), key=lambda node: node["self_ns"] or 0, default=None)
        # Longer than any stage, so it is in none: as a call that the system made wait.
        if own is not None and (own["self_ns"] or 0) > (longest["cpu_ns"] or 0):
            text += words("outside", share=_percent(own["self_ns"] / total, words), name=own["name"])
    yield text


def _nodes(nodes: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Every call of a tree."""
    for node in nodes:
        yield node
        yield from _nodes(node["children"])


def _waiting(step: dict[str, Any], words: Words) -> Iterator[str]:
    device, syncs = step["device"], step["sync_points"]
    waited = sum(point["cpu_ns"] or 0 for point in syncs)
    if device["device_ns"] is not None:
        times = {"enqueue": _ms(device["enqueue_ns"]), "device": _ms(device["device_ns"]), "waited": _ms(waited)}
        yield words("device_worked", **times)
    elif device["name"] == "cpu":
        yield words("hot_cpu", sync=words("sync_took", ms=f"{waited / 1e6:.3f}") if syncs else "")


def _compared(step: dict[str, Any], run: dict[str, Any], words: Words) -> Iterator[str]:
    [iteration] = step["iterations"]
    own, median = run["step_ns"]["by_iteration"].get(iteration), run["step_ns"]["median"]
    if own is None or not median or run["steps"] < 2:
        return
    times = {"own": _ms(own), "median": _ms(median), "p99": _ms(run["step_ns"]["p99"])}
    yield words("compared", iteration=iteration, steps=run["steps"], **times)


def _felt(run: dict[str, Any], words: Words) -> Iterator[str]:
    latency = run["latency"]
    if latency["ttft_ms"] is None:
        return
    text = words("ttft", ms=f"{latency['ttft_ms']:.1f}")
    if latency["queue_ms"] is not None:
        text += words("queued", ms=f"{latency['queue_ms']:.1f}")
    if latency["itl_ms"] is not None:
        text += words("itl", ms=f"{latency['itl_ms']:.2f}", p99=f"{latency['p99']['itl_ms']:.2f}")
    yield text + words("full_stop")


def _ms(ns: float) -> str:
    return f"{ns / 1e6:.2f}"


def _percent(share: float | None, words: Words) -> str:
    if share is None:
        return words("unknown_part")
    return "<1 %" if 0 < share < 0.005 else f"{share * 100:.0f} %"
