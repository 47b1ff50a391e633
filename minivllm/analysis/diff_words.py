"""Owns saying in plain sentences how two runs differ, and what that changed for whom."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from minivllm.analysis.answer import counted
from minivllm.analysis.diff import Diff, First
from minivllm.analysis.diff_numbers import RequestNumbers, RunNumbers
from minivllm.analysis.diff_said import Sides, tokens_sentences
from minivllm.maps.reasons import behind, detail
from minivllm.trace.reader import Log

# Lists of a plan, as the beginning of a sentence.
_ORDERS = {
    "waiting_scheduled": "after planning these wait in line:",
    "waiting": "at its end these wait in line:",
    "running_scheduled": "after planning these run, first served first:",
    "running_after": "at its end these run, first served first:",
}
# Requests that one sentence, or one row of sentences, names.
_NAMED = 4


def consequences(diff: Diff, a: Log, b: Log, sides: Sides, told: frozenset[str] = frozenset()) -> list[str]:
    """What differs between two runs, beginning with where they part.

    Args:
        diff: What was found.
        a, b: The logs.
        sides: What the runs are called.
        told: Numbers of the runs that the reader knows by now.
    """
    said = [*_at_first(diff.first, a, b, sides)] if diff.first is not None else []
    said += _whole_run(diff.a, diff.b, sides, told)
    said += _per_request(diff.a, diff.b, sides)
    said += tokens_sentences(diff.a, diff.b, sides)
    return said


# ---- where they part -------------------------------------------------------------------------------------------------


def _at_first(first: First, a: Log, b: Log, sides: Sides) -> Iterator[str]:
    plans = [plan_of(log, first.iteration) for log in (a, b)]
    if plans[0] is not None and plans[1] is not None:
        said = list(treated_differently(first.iteration, plans[0], plans[1], sides))
        yield from said or _about_order(first, sides)
    if first.field in ("iteration", "arrived", "priority", "sampling_params", "refused"):
        yield _about_arrivals(first, sides)


def _about_order(first: First, sides: Sides) -> Iterator[str]:
    """Where the same tokens were planned: in which order, or which of them came out."""
    step = first.iteration
    if first.field in _ORDERS:
        orders = [", ".join(ids) if ids else "nobody" for ids in (first.a, first.b)]
        yield f"Iteration {step}: {_ORDERS[first.field]} {orders[0]} {sides.a}, and {orders[1]} {sides.b}."
    elif first.field in ("emitted", "finished"):
        what = "hands out tokens to" if first.field == "emitted" else "ends"
        names = [", ".join(ids) if ids else "nobody" for ids in (first.a, first.b)]
        if names[0] != names[1]:
            yield f"Iteration {step} {what} {names[0]} {sides.a}, and {names[1]} {sides.b}."


def _about_arrivals(first: First, sides: Sides) -> str:
    step, a, b = first.iteration, first.a, first.b
    if first.field == "iteration":
        return f"Iteration {step} {'is there only' if a == 'runs' else 'is not there'} {sides.a}."
    if first.field == "arrived":
        names = [", ".join(ids) if isinstance(ids, list) and ids else ids or "nobody" for ids in (a, b)]
        return f"Before iteration {step} these arrive: {sides.a} {names[0]}, {sides.b} {names[1]}."
    if first.field == "refused":
        return f"Refused on arrival: {sides.a} {', '.join(a) or 'nobody'}, {sides.b} {', '.join(b) or 'nobody'}."
    what = "another priority" if first.field == "priority" else "other limits"
    return f"{', '.join(a or b)} {'has' if len(a or b) == 1 else 'have'} {what}."


def plan_of(log: Log, step: int) -> dict[str, Any] | None:
    """The plan of an iteration; None if it made none."""
    return next((e.data for e in log.events if e.kind == "schedule" and e.step == step), None)


def treated_differently(step: int, a: dict[str, Any], b: dict[str, Any], sides: Sides) -> Iterator[str]:
    """A sentence for each request that got something else in an iteration, with the rule that each run names."""
    tokens_a, tokens_b = dict(a["scheduled"]), dict(b["scheduled"])
    requests = [i for i in {**tokens_a, **tokens_b} if tokens_a.get(i, 0) != tokens_b.get(i, 0)]
    requests += [i for i in {**dict.fromkeys(a["preempted"]), **dict.fromkeys(b["preempted"])} if i not in requests]
    requests.sort(key=lambda i: (i not in a["preempted"] and i not in b["preempted"], _why(a, i) is _why(b, i) is None))
    for request in requests[:_NAMED]:
        yield f"Iteration {step}: {request} {_got(a, request)} {sides.a}, and {_got(b, request)} {sides.b}."
    if len(requests) > _NAMED:
        yield f"Iteration {step}: {len(requests) - _NAMED} more requests got something else."


def _got(plan: dict[str, Any], request: str) -> str:
    tokens = dict(plan["scheduled"]).get(request, 0)
    hit = next((hit for i, _, hit in plan["prefix_cache"] if i == request), 0)
    if request in plan["preempted"]:
        what = "lost its blocks"
    elif tokens:
        what = f"got {counted(tokens, 'token')}" + (f" after a prefix hit of {hit}" if hit else "")
    else:
        what = "got nothing"
    why = _why(plan, request)
    return f"{what} ({why})" if why else what


def _why(plan: dict[str, Any], request: str) -> str | None:
    """The rule by which a plan gave a request less than it wanted, as a clause."""
    entry = next((e for e in (*plan["not_scheduled"], *plan["cut"]) if e["request"] == request), None)
    if entry is not None:
        return detail(entry["reason"], entry["numbers"])
    stop = plan["stop"]
    if stop is None or stop["request"] is None or request not in plan["waiting_scheduled"]:
        return None
    return detail(stop["reason"], stop["numbers"]) if stop["request"] == request else behind(stop["request"])


# ---- the run as a whole ----------------------------------------------------------------------------------------------


def _whole_run(a: RunNumbers, b: RunNumbers, sides: Sides, told: frozenset[str]) -> Iterator[str]:
    if a.iterations != b.iterations:
        where = sides.b if b.iterations < a.iterations else sides.a
        saved = abs(a.iterations - b.iterations)
        yield (
            f"The run takes {counted(a.iterations, 'iteration')} {sides.a} and {b.iterations} {sides.b}: "
            f"{saved} fewer {where}."
        )
    if (a.preemptions, a.lost) != (b.preemptions, b.lost):
        ours, theirs = (f"{run.preemptions} ({counted(run.lost, 'computed token')} lost)" for run in (a, b))
        yield f"Preemptions: {ours} {sides.a}, {theirs} {sides.b}."
    if a.hit != b.hit and "hit" not in told:
        yield f"The prefix cache gave {counted(a.hit, 'token')} {sides.a}, {b.hit} {sides.b}."
    if a.computed != b.computed and "computed" not in told:
        yield f"{counted(a.computed, 'token')} were computed {sides.a}, {b.computed} {sides.b}."
    if a.fullest != b.fullest and "fullest" not in told:
        yield f"The fullest iteration computes {counted(a.fullest, 'token')} {sides.a}, {b.fullest} {sides.b}."
    if (a.peak_blocks, a.blocks) != (b.peak_blocks, b.blocks) and "peak_blocks" not in told:
        used = [f"{run.peak_blocks} of {run.blocks}" for run in (a, b)]
        yield f"At most {used[0]} blocks were in use {sides.a}, {used[1]} {sides.b}."


def _per_request(a: RunNumbers, b: RunNumbers, sides: Sides) -> Iterator[str]:
    for only, others, where in ((a, b, sides.a), (b, a, sides.b)):
        missing = [i for i in only.requests if i not in others.requests]
        if missing:
            yield f"Only {where}: {_some(missing)}."
    both = [(i, x, b.requests[i]) for i, x in a.requests.items() if i in b.requests]
    if other := [i for i, x, y in both if x.prompt != y.prompt]:
        who = f"{_some(other)} {'has another prompt' if len(other) == 1 else 'have other prompts'}"
        yield f"{who} {sides.b}: what they say there has nothing to do with what they say {sides.a}."
    for request, x, y in both:
        if (x.reason == "refused") != (y.reason == "refused"):
            done = ["was refused" if entry.reason == "refused" else "was taken" for entry in (x, y)]
            yield f"{request} {done[0]} {sides.a}, and {done[1]} {sides.b}."
    waits = [(x.waited or 0, y.waited or 0) for _, x, y in both if x.waited != y.waited]
    if len(waits) > 1:
        before, after = map(sum, zip(*waits, strict=True))
        yield f"{len(waits)} requests wait another time: {before} iterations together {sides.a}, {after} {sides.b}."
    yield from _changes(both, "waits", lambda r: r.waited, sides, " (iterations before its first tokens)")
    yield from _changes(both, "gives its first token in iteration", lambda r: r.first_token, sides)
    yield from _changes(both, "ends in iteration", lambda r: r.finished, sides)


def _changes(
    both: list[tuple[str, RequestNumbers, RequestNumbers]],
    verb: str,
    value: Callable[[RequestNumbers], int | None],
    sides: Sides,
    unit: str = "",
) -> Iterator[str]:
    """One sentence for all requests of which a number changed: the largest changes first."""
    changed = [(i, value(x), value(y)) for i, x, y in both if value(x) != value(y)]
    if not changed:
        return
    changed.sort(key=lambda change: -abs((change[1] or 0) - (change[2] or 0)))
    request, x, y = changed[0]
    parts = [f"{request} {verb} {_number(x)} {sides.a}, {_number(y)} {sides.b}"]
    parts += [f"{i} {_number(x)}, {_number(y)}" for i, x, y in changed[1:_NAMED]]
    if len(changed) > _NAMED:
        parts.append(f"and {len(changed) - _NAMED} more requests")
    yield f"{'; '.join(parts)}{unit}."


def _number(value: int | None) -> str:
    return "never" if value is None else str(value)


def _some(names: list[str]) -> str:
    return ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")
