"""Owns saying in plain sentences how two runs differ, and what that changed for whom."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from minivllm.analysis.diff import Diff, First
from minivllm.analysis.diff_numbers import RequestNumbers, RunNumbers
from minivllm.analysis.diff_said import Sides, tokens_sentences
from minivllm.analysis.words_diff import DIFF_WORDS
from minivllm.maps.reasons import behind, detail
from minivllm.maps.wording import Words
from minivllm.trace.reader import Log

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
    words = sides.words()
    key = f"order_{first.field}"
    is_order = key in DIFF_WORDS[sides.lang]
    if not is_order and first.field not in ("emitted", "finished"):
        return
    names = [_all(ids, words) for ids in (first.a, first.b)]
    told = {"step": first.iteration, "first": names[0], "second": names[1], **sides.both()}
    if is_order:
        yield words("orders", what=words(key), **told)
    elif names[0] != names[1]:
        yield words(first.field, **told)


def _all(ids: Any, words: Words) -> str:
    """Requests in a row, or nobody."""
    return words.names(list(ids)) if ids else words("nobody")


def _about_arrivals(first: First, sides: Sides) -> str:
    words, step, a, b = sides.words(), first.iteration, first.a, first.b
    if first.field == "iteration":
        return words("is_there_only" if a == "runs" else "is_not_there", step=step, a=sides.a)
    if first.field == "arrived":
        names = [ids if isinstance(ids, str) and ids else _all(ids, words) for ids in (a, b)]
        return words("arrive", step=step, first=names[0], second=names[1], **sides.both())
    if first.field == "refused":
        return words("refused_on_arrival", first=_all(a, words), second=_all(b, words), **sides.both())
    what = "priority" if first.field == "priority" else "limits"
    return words(f"{'has' if len(a or b) == 1 else 'have'}_{what}", names=words.names(list(a or b)))


def plan_of(log: Log, step: int) -> dict[str, Any] | None:
    """The plan of an iteration; None if it made none."""
    return next((e.data for e in log.events if e.kind == "schedule" and e.step == step), None)


def treated_differently(step: int, a: dict[str, Any], b: dict[str, Any], sides: Sides) -> Iterator[str]:
    """A sentence for each request that got something else in an iteration, with the rule that each run names."""
    words = sides.words()
    tokens_a, tokens_b = dict(a["scheduled"]), dict(b["scheduled"])
    requests = [i for i in {**tokens_a, **tokens_b} if tokens_a.get(i, 0) != tokens_b.get(i, 0)]
    requests += [i for i in {**dict.fromkeys(a["preempted"]), **dict.fromkeys(b["preempted"])} if i not in requests]
    requests.sort(key=lambda i: (i not in a["preempted"] and i not in b["preempted"], _why(a, i) is _why(b, i) is None))
    for request in requests[:_NAMED]:
        first, second = _got(a, request, words), _got(b, request, words)
        yield words("got_two", step=step, request=request, first=first, second=second, **sides.both())
    if len(requests) > _NAMED:
        yield words("more_got", step=step, count=len(requests) - _NAMED)


def _got(plan: dict[str, Any], request: str, words: Words) -> str:
    tokens = dict(plan["scheduled"]).get(request, 0)
    hit = next((hit for i, _, hit in plan["prefix_cache"] if i == request), 0)
    if request in plan["preempted"]:
        what = words("lost_blocks")
    elif tokens:
        what = words("got_tokens", count=tokens, hit=words("after_hit", hit=hit) if hit else "")
    else:
        what = words("got_nothing")
    why = _why(plan, request, words.lang)
    return words("because", what=what, why=why) if why else what


def _why(plan: dict[str, Any], request: str, lang: str = "en") -> str | None:
    """The rule by which a plan gave a request less than it wanted, as a clause."""
    entry = next((e for e in (*plan["not_scheduled"], *plan["cut"]) if e["request"] == request), None)
    if entry is not None:
        return detail(entry["reason"], entry["numbers"], lang)
    stop = plan["stop"]
    if stop is None or stop["request"] is None or request not in plan["waiting_scheduled"]:
        return None
    if stop["request"] == request:
        return detail(stop["reason"], stop["numbers"], lang)
    return behind(stop["request"], lang)


# ---- the run as a whole ----------------------------------------------------------------------------------------------


def _whole_run(a: RunNumbers, b: RunNumbers, sides: Sides, told: frozenset[str]) -> Iterator[str]:
    words = sides.words()

    def two(key: str, first: Any, second: Any, **more: Any) -> str:
        return words(key, first=first, second=second, **sides.both(), **more)

    if a.iterations != b.iterations:
        where = sides.b if b.iterations < a.iterations else sides.a
        saved = abs(a.iterations - b.iterations)
        yield two("run_takes", a.iterations, b.iterations, saved=saved, where=where)
    if (a.preemptions, a.lost) != (b.preemptions, b.lost):
        ours, theirs = (words("preemptions_of", count=run.preemptions, lost=run.lost) for run in (a, b))
        yield two("preemptions", ours, theirs)
    if a.hit != b.hit and "hit" not in told:
        yield two("cache_gave", a.hit, b.hit)
    if a.computed != b.computed and "computed" not in told:
        yield two("were_computed", a.computed, b.computed)
    if a.fullest != b.fullest and "fullest" not in told:
        yield two("fullest", a.fullest, b.fullest)
    if (a.peak_blocks, a.blocks) != (b.peak_blocks, b.blocks) and "peak_blocks" not in told:
        used = [words("of", part=run.peak_blocks, whole=run.blocks) for run in (a, b)]
        yield two("in_use", *used)


def _per_request(a: RunNumbers, b: RunNumbers, sides: Sides) -> Iterator[str]:
    words = sides.words()
    for only, others, where in ((a, b, sides.a), (b, a, sides.b)):
        missing = [i for i in only.requests if i not in others.requests]
        if missing:
            yield words("only", where=where, names=_some(missing, words))
    both = [(i, x, b.requests[i]) for i, x in a.requests.items() if i in b.requests]
    if other := [i for i, x, y in both if x.prompt != y.prompt]:
        key = "another_prompt" if len(other) == 1 else "other_prompts"
        yield words(key, names=_some(other, words), **sides.both())
    for request, x, y in both:
        if (x.reason == "refused") != (y.reason == "refused"):
            done = [words("was_refused" if entry.reason == "refused" else "was_taken") for entry in (x, y)]
            yield words("taken_or_not", request=request, first=done[0], second=done[1], **sides.both())
    waits = [(x.waited or 0, y.waited or 0) for _, x, y in both if x.waited != y.waited]
    if len(waits) > 1:
        before, after = map(sum, zip(*waits, strict=True))
        yield words("wait_another_time", count=len(waits), before=before, after=after, **sides.both())
    yield from _changes(both, "waits", lambda r: r.waited, sides)
    yield from _changes(both, "first_token", lambda r: r.first_token, sides)
    yield from _changes(both, "ends", lambda r: r.finished, sides)


def _changes(
    both: list[tuple[str, RequestNumbers, RequestNumbers]],
    key: str,
    value: Callable[[RequestNumbers], int | None],
    sides: Sides,
) -> Iterator[str]:
    """One sentence for all requests of which a number changed: the largest changes first."""
    words = sides.words()
    changed = [(i, value(x), value(y)) for i, x, y in both if value(x) != value(y)]
    if not changed:
        return
    changed.sort(key=lambda change: -abs((change[1] or 0) - (change[2] or 0)))

    def told(which: str, change: tuple[str, int | None, int | None], **more: str) -> str:
        request, x, y = change
        return words(which, request=request, first=_number(x, words), second=_number(y, words), **more)

    others = "".join(told("one_more", change) for change in changed[1:_NAMED])
    if len(changed) > _NAMED:
        others += words("many_more", count=len(changed) - _NAMED)
    yield told(key, changed[0], more=others, **sides.both())


def _number(value: int | None, words: Words) -> str:
    return words("never") if value is None else str(value)


def _some(names: list[str], words: Words) -> str:
    few = words.names(names[:_NAMED])
    return words("some", names=few, count=len(names) - _NAMED) if len(names) > _NAMED else few
