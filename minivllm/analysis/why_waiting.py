"""Owns why a request got nothing, lost what it had, was kept waiting, or got less than it owed.

Each answer takes its numbers from the events of the run. Where the log does not hold what it rests on, it says so.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from minivllm.analysis.answer import Answer, CannotKnowError
from minivllm.analysis.iteration import Iteration
from minivllm.analysis.moments import answer_for, moments, pick
from minivllm.analysis.recompute import why_not_scheduled
from minivllm.analysis.words_why import WHY_WORDS
from minivllm.maps.reasons import detail
from minivllm.maps.wording import Words
from minivllm.trace.events import Event
from minivllm.trace.reader import Log

# ---- left out --------------------------------------------------------------------------------------------------------


def not_scheduled(log: Log, request: str, iteration: int | None, words: Words) -> Answer:
    """Why a request got no tokens in an iteration."""
    it = pick(log, request, "not-scheduled", iteration, "left out")
    plan = it.the("schedule")
    entry = next((e for e in plan["not_scheduled"] if e["request"] == request), None)
    stop = plan["stop"]
    is_behind = False
    if entry is None and stop is not None and stop["request"] is not None:
        entry, is_behind = stop, stop["request"] != request
    if entry is not None:
        reason, numbers = entry["reason"], dict(entry["numbers"])
    else:
        computed = why_not_scheduled(it, request)
        if computed is None:
            raise CannotKnowError(
                f"the log cannot say why {request} got nothing in iteration {it.step}: its schedule event holds "
                "neither a reason nor a stop, and no rule follows from its numbers"
            )
        reason, numbers = computed
    behind = words("loop_stopped", other=stop["request"]) if is_behind else ""
    why = detail(reason, numbers, words.lang)
    text = words("not_scheduled", request=request, step=it.step, behind=behind, why=why)
    answer = answer_for(request, "not-scheduled", it.step, text, reason, numbers)
    if reason == "token_budget":
        answer.steps = _budget_lines(plan, words)
        answer.arithmetic |= {f"given_to_{i}": count for i, count in plan["scheduled"]}
    elif reason in ("no_free_blocks", "full_sequence_does_not_fit"):
        answer.steps = _block_lines(numbers, words)
        answer.more += _holders(it, words)
    elif reason == "max_num_seqs":
        answer.more.append(words("running", names=words.names(plan["running_scheduled"])))
    answer.more += _turn(it, request, words)
    return answer


def _budget_lines(plan: dict[str, Any], words: Words) -> list[tuple[str, str, str]]:
    left = plan["budget"]
    lines = [("max_num_batched_tokens", str(left), "")]
    for request, count in plan["scheduled"]:
        left -= count
        what = words("goes_first" if request in plan["running"] else "ahead", request=request)
        lines.append((what, str(count), words("left", count=left)))
    return lines


def _block_lines(numbers: dict[str, int], words: Words) -> list[tuple[str, str, str]]:
    lines = [(words("blocks_asked"), str(numbers["asked"]), "")]
    lines += [(words(name), str(numbers[name]), "") for name in ("watermark", "reserved") if numbers.get(name)]
    return [*lines, (words("free_blocks"), str(numbers["free"]), words("not_enough"))]


def _holders(it: Iteration, words: Words) -> list[str]:
    held = {i: len(entry.block_ids) for i, entry in it.after.requests.items() if entry.block_ids}
    most = sorted(held.items(), key=lambda item: -item[1])[:4]
    return [words("holders", held=words.names([f"{i} {count}" for i, count in most]))] if most else []


def _turn(it: Iteration, request: str, words: Words) -> list[str]:
    plan = it.the("schedule")
    state = it.state_at("schedule")
    queue = plan["waiting_scheduled"]
    known = state.requests[request].num_tokens if request in state.requests else 0
    owes = known - (state.requests[request].num_computed_tokens if request in state.requests else 0)
    if request not in queue:
        return [words("owes", request=request, count=owes)]
    place = queue.index(request)
    where = words("first_in_line") if place == 0 else words("number_in_line", number=place + 1)
    return [words("needs", request=request, count=owes, place=where, step=it.step + 1)]


# ---- preempted -------------------------------------------------------------------------------------------------------


def preempted(log: Log, request: str, iteration: int | None, words: Words) -> Answer:
    """Why a running request lost its blocks, and what that cost."""
    it = pick(log, request, "preempted", iteration, "preempted")
    plan = it.the("schedule")
    lost, by = next((lost, by) for victim, lost, by in plan["preemptions"] if victim == request)
    entry = next((e for e in plan["not_scheduled"] if e["request"] == request), None)
    numbers = dict(entry["numbers"]) if entry else {}
    whom = words("itself") if by == request else by
    why = detail("preempted", numbers, words.lang) if numbers else words("blocks_ran_out")
    text = words("preempted", request=request, step=it.step, whom=whom, why=why, lost=lost)
    numbers |= {"lost": lost}
    answer = answer_for(request, "preempted", it.step, text, "preempted", numbers)
    policy = it.run.scheduler_config["policy"]
    running = [i for i in it.state_at("schedule").running]
    if policy == "fcfs":
        answer.more.append(words("fcfs", names=words.names(running)))
    else:
        keys = {i: it.run.arrival[i] for i in running if i in it.run.arrival}
        ranked = [words("priority_of", request=i, priority=keys[i][0]) for i in sorted(keys, key=lambda i: keys[i])]
        answer.more.append(words("by_priority", order=words.names(ranked)))
    answer.more.append(words("times_preempted", request=request, times=len(moments(log, request, "preempted"))))
    answer.more.append(_comeback(log, request, it.step, lost, words))
    return answer


def _comeback(log: Log, request: str, step: int, lost: int, words: Words) -> str:
    for event in log.events:
        if event.kind == "schedule" and event.step > step and request in event.data["resumed"]:
            hit = next((hit for i, _, hit in event.data["prefix_cache"] if i == request), 0)
            known = event.data["num_tokens"][request]
            if hit:
                return words("back_with_hit", step=event.step, hit=hit, known=known)
            return words("back_without", step=event.step, known=known, lost=lost)
    return words("not_back")


# ---- cut short -------------------------------------------------------------------------------------------------------


def partial(log: Log, request: str, iteration: int | None, words: Words) -> Answer:
    """Why a request got fewer tokens than it owed."""
    it = pick(log, request, "partial", iteration, "cut short")
    plan = it.the("schedule")
    cut = next(entry for entry in plan["cut"] if entry["request"] == request)
    numbers = dict(cut["numbers"])
    why = detail(cut["reason"], numbers, words.lang)
    given = {"granted": numbers["granted"], "asked": numbers["asked"]}
    text = words("partial", request=request, **given, step=it.step, why=why)
    answer = answer_for(request, "partial", it.step, text, cut["reason"], numbers)
    answer.ours = "minivllm.core.schedule_running:why_less"
    if cut["reason"] == "token_budget":
        answer.steps = _budget_lines(plan, words)
    chunks = [count for p in it.run.plans.values() for i, count in p["scheduled"] if i == request and count > 1]
    told = words.names(list(map(str, chunks[:12]))) + (" …" if len(chunks) > 12 else "")
    answer.more.append(words("chunks", chunks=told))
    return answer


# ---- kept waiting ----------------------------------------------------------------------------------------------------


def waited(log: Log, request: str, iteration: int | None, words: Words) -> Answer:
    """What a request waited for between its arrival and its first tokens."""
    arrived = next((e for e in log.events if e.kind == "request.arrived" and e.request == request), None)
    if arrived is None:
        raise CannotKnowError(f"the log does not hold the arrival of {request} (request.arrived)")
    reasons: Counter[str] = Counter()
    first: Event | None = None
    ahead: list[str] = []
    for event in log.events:
        if event.kind != "schedule" or event.step < arrived.step:
            continue
        if any(i == request for i, _ in event.data["scheduled"]):
            first = event
            break
        reasons[_reason_in(event.data, request)] += 1
        ahead += [i for i in (*event.data["new"], *event.data["resumed"]) if i not in ahead]
    steps = reasons.total()
    end = words("until", step=first.step) if first is not None else words("to_the_end")
    text = words("waited", request=request, steps=steps, arrived=arrived.step, end=end)
    what = [words("times", count=n, what=_short(r, words)) for r, n in reasons.most_common()]
    text += (words("colon") + words("comma").join(what) if what else "") + words("full_stop")
    numbers: dict[str, Any] = {"arrived": arrived.step, "iterations": steps, **reasons}
    if first is not None:
        numbers["first_scheduled"] = first.step
        if arrived.wall_ns is not None and first.wall_ns is not None:
            numbers["queue_ms"] = round((first.wall_ns - (first.dur_ns or 0) - arrived.wall_ns) / 1e6, 3)
    reason = reasons.most_common(1)[0][0] if reasons else "not_waiting"
    answer = answer_for(request, "waited", arrived.step, text, reason, numbers)
    if "queue_ms" in numbers:
        answer.more.append(words("in_time", ms=numbers["queue_ms"]))
    if ahead:
        answer.more.append(words("admitted", names=words.names(ahead)))
    if again := moments(log, request, "preempted"):
        told = words.names(list(map(str, again[:6]))) + (" …" if len(again) > 6 else "")
        when = words("in_step" if len(again) == 1 else "in_steps", steps=told)
        answer.more.append(words("waited_again", steps=when))
    if log.header.config["scheduler_config"]["policy"] == "priority":
        answer.more.append(words("what_priority_does"))
    return answer


def _short(reason: str, words: Words) -> str:
    """What was in the way, in a few words; a reason that has none is named."""
    return words(f"short_{reason}") if f"short_{reason}" in WHY_WORDS[words.lang] else reason


def _reason_in(plan: dict[str, Any], request: str) -> str:
    entry = next((e for e in plan["not_scheduled"] if e["request"] == request), plan["stop"])
    return entry["reason"] if entry is not None else "unknown"
