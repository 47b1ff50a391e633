"""Owns the sentences above the process map: what crossed, who waited for whom, and what this log cannot say."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from minivllm.maps.wording import Words
from minivllm.maps.words_maps import MAP_WORDS
from minivllm.trace.events import Header

_MOST_NAMED = 6
TITLES = {"frontend": "frontend", "engine_core": "EngineCore", "worker": "worker", "device": "device"}


def tell(
    process: dict[str, Any],
    iteration: dict[str, Any],
    messages: list[dict[str, Any]],
    header: Header,
    lang: str = "en",
) -> list[str]:
    """Sentences on one iteration of a process map.

    Args:
        process: The whole map.
        iteration: The entry of the iteration.
        messages: Its messages.
        header: The log's.
        lang: "en" or "zh".
    """
    words = Words(lang, MAP_WORDS)
    return [
        _what(iteration, words),
        *_ahead(iteration, words),
        *_crossings(messages, words),
        *_waits(iteration, words),
        *_sharing(process, words),
        *_limits(process, header, words),
    ]


def _what(iteration: dict[str, Any], words: Words) -> str:
    requests, tokens, number = iteration["requests"], iteration["num_tokens"], iteration["iteration"]
    took = "" if iteration["dur_ns"] is None else words("took", ms=f"{iteration['dur_ns'] / 1e6:.2f}")
    if not requests:
        return words("nothing_computed", iteration=number, took=took)
    is_many = len(requests) > _MOST_NAMED
    who = words("many_requests", count=len(requests)) if is_many else words.listed(requests)
    return words("computed", iteration=number, count=tokens, who=who, took=took)


def _ahead(iteration: dict[str, Any], words: Words) -> Iterator[str]:
    answered, number = iteration["update_of"], iteration["iteration"]
    if answered is not None and answered != number:
        yield words("ahead", answered=answered, number=number)


def _crossings(messages: list[dict[str, Any]], words: Words) -> Iterator[str]:
    parts = []
    for boundary, number in enumerate("①②③", 1):
        here = [m for m in messages if m["boundary"] == boundary]
        if not here:
            continue
        counts: dict[str, int] = {}
        for message in here:
            counts[message["type"]] = counts.get(message["type"], 0) + 1
        types = words.listed([words("several", count=n, name=name) if n > 1 else name for name, n in counts.items()])
        sizes = [m["bytes"] for m in here if m["bytes"] is not None]
        parts.append(f"{number} {types}" + (words("bytes", count=sum(sizes)) if sizes else ""))
    if parts:
        yield words("crossed", parts=words("semicolon").join(parts))


def _waits(iteration: dict[str, Any], words: Words) -> Iterator[str]:
    """One sentence a pair, the longest wait first."""
    totals: dict[tuple[str, str], int] = {}
    for wait in iteration["waits"]:
        if wait["dur_ns"] is not None:
            pair = (wait["process"], wait["for"])
            totals[pair] = totals.get(pair, 0) + wait["dur_ns"]
    long = {pair: ns for pair, ns in totals.items() if ns >= (iteration["dur_ns"] or 0) / 100}
    clauses = [
        words("waited", who=TITLES[role], ms=f"{ns / 1e6:.2f}", other=TITLES[other])
        for (role, other), ns in sorted(long.items(), key=lambda entry: -entry[1])
    ]
    if clauses:
        yield words("who_waits", clauses=words("semicolon").join(clauses))


def _sharing(process: dict[str, Any], words: Words) -> Iterator[str]:
    by_pid: dict[int, list[str]] = {}
    for entry in process["processes"]:
        if entry["pid"] is not None and entry["name"] != "device":
            by_pid.setdefault(entry["pid"], []).append(TITLES[entry["name"]])
    for pid, names in by_pid.items():
        if len(names) > 1:
            yield words("one_process", pid=pid, names=words.listed(names))


def _limits(process: dict[str, Any], header: Header, words: Words) -> Iterator[str]:
    names = [entry["name"] for entry in process["processes"]]
    if "worker" not in names:
        yield words("simulated")
    if process["clock"] == "logical":
        text = words("no_clocks")
        if header.scenario and "worker" in names:
            text += words("for_both", scenario=header.scenario)
        yield text
    elif not process["recorded"]:
        yield words("no_messages")
    elif header.device == "cpu" and "device" in names:
        yield words("device_is_cpu")
