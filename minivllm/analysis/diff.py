"""Owns finding the first place at which two runs part.

Runs are compared iteration by iteration, by what was decided and what came out, never by clocks, processes or the
places of events. Requests are matched by id. Where settings differ, so do many numbers that follow from them at once
(budgets, free blocks, block ids): then only decisions count.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from minivllm.analysis.diff_numbers import RunNumbers, run_numbers
from minivllm.trace.events import Event
from minivllm.trace.reader import Log

# Of a log's first line: where it ran. What else differs there (clock, level, versions) says how it was recorded.
_OF_RUN = ("model", "device", "seed")
# Of a plan: what was decided, the most telling first.
_DECIDED = (
    "preempted",
    "scheduled",
    "new",
    "resumed",
    "num_computed_before",
    "num_computed_after",
    "spec_tokens",
    "running_scheduled",
    "waiting_scheduled",
)
# Not compared: they only say how a run was recorded, or repeat what other events said.
_UNCOMPARED = frozenset(
    {
        "request.arrived",
        "keyframe",
        "span",
        "kernels",
        "call",
        "message",
        "process.started",
        "process.ended",
        "probe.failed",
        "logits",
    }
)
# Left out where plans alone are compared: which tokens they were.
_SAID = frozenset(
    {
        "prompt_token_ids",
        "sampling_params",
        "emitted",
        "update.sampled",
        "update.emitted",
        "prepare_inputs",
        "output.text",
    }
)
_HASHES = ("hash", "hashes", "parent")
# Of a long list that differs, this many items are shown from there on.
_SHOWN = 8

Facts = dict[str, Any]


@dataclass(slots=True)
class Setting:
    """A setting that differs."""

    name: str
    a: Any
    b: Any

    def as_dict(self) -> dict[str, Any]:
        return {"name": self.name, "a": self.a, "b": self.b}


@dataclass(slots=True)
class First:
    """Where two runs part: the iteration, what differs, and what each has there."""

    iteration: int
    field: str
    a: Any
    b: Any
    more: dict[str, Any] = dataclasses.field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        return {"iteration": self.iteration, "field": self.field, "a": self.a, "b": self.b, **self.more}


@dataclass(slots=True)
class Diff:
    """Two runs side by side.

    Attributes:
        settings: Those that differ.
        first: Where they part, by what was asked to be compared; None if nowhere.
        a, b: Each in numbers.
    """

    settings: list[Setting]
    first: First | None
    a: RunNumbers
    b: RunNumbers

    @property
    def equal(self) -> bool:
        return self.first is None


def diff_logs(a: Log, b: Log, *, plans: bool = True, tokens: bool = True) -> Diff:
    """Compare two runs.

    Args:
        a, b: Their logs.
        plans: Compare iteration by iteration: who was planned, what came out.
        tokens: Compare what each request said, whenever it said it. (With `plans` that is a part of it.)
    """
    settings = settings_that_differ(a, b)
    numbers = run_numbers(a), run_numbers(b)
    first = first_divergence(a, b, decisions_only=bool(settings), with_tokens=tokens) if plans else None
    if first is None and tokens:
        first = first_token(*numbers)
    return Diff(settings, first, *numbers)


def settings_that_differ(a: Log, b: Log) -> list[Setting]:
    """Settings in which two runs differ, in the order of the log's first line."""
    found = []
    flat_a, flat_b = (dict(_flat(log.header.config)) | {k: getattr(log.header, k) for k in _OF_RUN} for log in (a, b))
    simulated = "simulated" in (flat_a["model"], flat_b["model"])
    for name in {**flat_a, **flat_b}:
        if name == "device" and simulated:  # "model" says so
            continue
        if flat_a.get(name) != flat_b.get(name) and name != "hash_seed":
            found.append(Setting(name, flat_a.get(name), flat_b.get(name)))
    return found


def _flat(config: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in config.items():
        if isinstance(value, dict):
            yield from _flat(value)
        else:
            yield name, value


def first_divergence(a: Log, b: Log, *, decisions_only: bool, with_tokens: bool = True) -> First | None:
    """The first iteration in which two runs differ, and in what.

    Args:
        a, b: The logs.
        decisions_only: Leave out what settings change by themselves: ids and numbers of blocks, limits, batches.
        with_tokens: Compare also which tokens came in and out.
    """
    kinds = {e.kind for e in a.events} & {e.kind for e in b.events}
    seeds = [log.header.config["cache_config"].get("hash_seed") for log in (a, b)]
    has_hashes = with_tokens and seeds[0] == seeds[1] is not None
    steps_a, steps_b = _steps(a), _steps(b)
    for step in sorted(steps_a.keys() | steps_b.keys()):
        if step not in steps_a or step not in steps_b:
            runs = ["runs" if step in steps else "has ended" for steps in (steps_a, steps_b)]
            return First(step, "iteration", runs[0], runs[1])
        facts_a, facts_b = _decided(steps_a[step]), _decided(steps_b[step])
        if not decisions_only:
            facts_a |= _all(steps_a[step], kinds, has_hashes)
            facts_b |= _all(steps_b[step], kinds, has_hashes)
        for name in {**facts_a, **facts_b}:
            if facts_a.get(name) != facts_b.get(name) and (with_tokens or name not in _SAID):
                return First(step, name, *narrowed(facts_a.get(name), facts_b.get(name)))
    return None


def _steps(log: Log) -> dict[int, list[Event]]:
    """The events of every iteration, but for one in which the log was cut off."""
    steps = log.by_step()
    if log.truncated and steps and not any(event.kind == "step.end" for event in steps[max(steps)]):
        del steps[max(steps)]
    return steps


def _decided(events: list[Event]) -> Facts:
    """What came, was decided and came out in a step; every field is there, so that the order is always the same."""
    arrived = [e for e in events if e.kind == "request.arrived" and e.request is not None]
    plan = next((e.data for e in events if e.kind == "schedule"), {})
    update = next((e.data for e in events if e.kind == "update"), {})
    facts: Facts = {
        "arrived": [e.request for e in arrived],
        "prompt_token_ids": {e.request: e.data["prompt_token_ids"] for e in arrived},
        "priority": {e.request: e.data["priority"] for e in arrived},
        "sampling_params": {e.request: e.data["sampling_params"] for e in arrived},
        "refused": [e.request for e in events if e.kind == "request.refused"],
        "aborted": sorted(i for e in events if e.kind == "requests.aborted" for i in e.data["ended"]),
    }
    facts |= {name: plan.get(name) for name in _DECIDED}
    facts["prefix_hits"] = {i: hit for i, _, hit in plan.get("prefix_cache", ()) if hit}
    facts |= {name: update.get(name) for name in ("emitted", "finished")}
    end = next((e.data for e in events if e.kind == "step.end"), {})
    return facts | {name: end.get(name) for name in ("waiting", "running_after")}


def _all(events: list[Event], kinds: set[str], has_hashes: bool) -> Facts:
    """Everything else of a step that both logs tell: the plan's other fields, then each kind of event by itself."""
    facts: Facts = {}
    for event in events:
        if event.kind not in kinds or event.kind in _UNCOMPARED:
            continue
        data = event.data
        if not has_hashes:
            data = {k: v for k, v in data.items() if k not in _HASHES}
        if event.kind in ("schedule", "update", "step.end"):
            facts |= {name if event.kind == "schedule" else f"{event.kind}.{name}": v for name, v in data.items()}
            facts[f"{event.kind}.events"] = facts.get(f"{event.kind}.events", 0) + 1  # one, in a log that is sound
        else:
            facts.setdefault(event.kind, []).append([event.request or event.block, data])
    return {name: value for name, value in facts.items() if name not in _DECIDED}


def narrowed(a: Any, b: Any) -> tuple[Any, Any]:
    """Two values that differ, without most of what is equal in them."""
    if isinstance(a, dict) and isinstance(b, dict):
        keys = [k for k in {**a, **b} if k not in a or k not in b or a[k] != b[k]]
        pairs = {k: narrowed(a.get(k), b.get(k)) for k in keys}
        return {k: pairs[k][0] for k in keys if k in a}, {k: pairs[k][1] for k in keys if k in b}
    if isinstance(a, list) and isinstance(b, list) and max(len(a), len(b)) > _SHOWN:
        at = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
        return {"from": at, "items": a[at : at + _SHOWN]}, {"from": at, "items": b[at : at + _SHOWN]}
    return a, b


def first_token(a: RunNumbers, b: RunNumbers) -> First | None:
    """The first token, by iteration of the first run, that a request said in only one of two runs."""
    found = []
    for request in [i for i in a.requests if i in b.requests]:
        ours, theirs = a.requests[request], b.requests[request]
        position = token_position(ours.output, theirs.output)
        if position is None:
            continue
        step, other = (run.emitted_in[position] if position < len(run.output) else None for run in (ours, theirs))
        first = step if step is not None else other
        values = [run.output[position] if position < len(run.output) else None for run in (ours, theirs)]
        more = {"request": request, "position": position, "iteration_b": other}
        found.append(First(first or 0, "tokens", values[0], values[1], more))
    for request in a.requests.keys() ^ b.requests.keys():
        only = a.requests.get(request) or b.requests[request]
        here = ["has it" if request in run.requests else None for run in (a, b)]
        found.append(First(only.arrived, "arrived", here[0], here[1], {"request": request}))
    return min(found, key=lambda first: first.iteration, default=None)


def token_position(a: list[int], b: list[int]) -> int | None:
    """The first position at which two outputs differ; None if they are equal."""
    for position, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return position
    return None if len(a) == len(b) else min(len(a), len(b))
