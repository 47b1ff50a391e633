"""Owns why a request got nothing, lost what it had, was kept waiting, or got less than it owed.

Each answer takes its numbers from the events of the run. Where the log does not hold what it rests on, it says so.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from minivllm.analysis.answer import Answer, CannotKnowError, counted
from minivllm.analysis.iteration import Iteration
from minivllm.analysis.moments import answer_for, few, moments, pick
from minivllm.analysis.recompute import why_not_scheduled
from minivllm.maps.reasons import detail
from minivllm.trace.events import Event
from minivllm.trace.reader import Log

# What was in the way, in a few words: the codes are those of the scheduler's `Reason`.
_SHORT = {
    "token_budget": "the token budget was spent",
    "max_num_seqs": "all places were taken (max_num_seqs)",
    "no_free_blocks": "there were not enough free blocks",
    "full_sequence_does_not_fit": "a whole sequence had to fit, and did not",
    "preempted_this_step": "the iteration had preempted somebody, so nobody entered",
    "chunked_prefill_off": "a prompt could not be cut, and was longer than what the budget had left",
    "paused_new": "new requests were paused",
    "paused_all": "the engine was paused",
}

# ---- left out --------------------------------------------------------------------------------------------------------


def not_scheduled(log: Log, request: str, iteration: int | None) -> Answer:
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
    text = f"{request} was not scheduled in iteration {it.step}: "
    text += f"the loop had stopped at {stop['request']}: " if is_behind else ""
    text += detail(reason, numbers) + "."
    answer = answer_for(request, "not-scheduled", it.step, text, reason, numbers)
    if reason == "token_budget":
        answer.steps = _budget_lines(plan)
        answer.arithmetic |= {f"given_to_{i}": count for i, count in plan["scheduled"]}
    elif reason in ("no_free_blocks", "full_sequence_does_not_fit"):
        answer.steps = _block_lines(numbers)
        answer.more += _holders(it)
    elif reason == "max_num_seqs":
        answer.more.append(f"running: {', '.join(plan['running_scheduled'])}")
    answer.more += _turn(it, request)
    return answer


def _budget_lines(plan: dict[str, Any]) -> list[tuple[str, str, str]]:
    left = plan["budget"]
    lines = [("max_num_batched_tokens", str(left), "")]
    for request, count in plan["scheduled"]:
        left -= count
        ahead = "running goes first" if request in plan["running"] else "ahead in the queue"
        lines.append((f"- {request} ({ahead})", str(count), f"{left} left"))
    return lines


def _block_lines(numbers: dict[str, int]) -> list[tuple[str, str, str]]:
    lines = [("blocks asked for", str(numbers["asked"]), "")]
    lines += [(f"+ {name}", str(numbers[name]), "") for name in ("watermark", "reserved") if numbers.get(name)]
    return [*lines, ("free blocks", str(numbers["free"]), "not enough")]


def _holders(it: Iteration) -> list[str]:
    held = {i: len(entry.block_ids) for i, entry in it.after.requests.items() if entry.block_ids}
    most = sorted(held.items(), key=lambda item: -item[1])[:4]
    return [f"who holds blocks: {', '.join(f'{i} {count}' for i, count in most)}"] if most else []


def _turn(it: Iteration, request: str) -> list[str]:
    plan = it.the("schedule")
    state = it.state_at("schedule")
    queue = plan["waiting_scheduled"]
    known = state.requests[request].num_tokens if request in state.requests else 0
    owes = known - (state.requests[request].num_computed_tokens if request in state.requests else 0)
    if request not in queue:
        return [f"{request} runs and owes {counted(owes, 'token')}."]
    place = queue.index(request)
    where = "first in line" if place == 0 else f"number {place + 1} in line"
    return [f"{request} needs {counted(owes, 'token')}; it is {where} for iteration {it.step + 1}."]


# ---- preempted -------------------------------------------------------------------------------------------------------


def preempted(log: Log, request: str, iteration: int | None) -> Answer:
    """Why a running request lost its blocks, and what that cost."""
    it = pick(log, request, "preempted", iteration, "preempted")
    plan = it.the("schedule")
    lost, by = next((lost, by) for victim, lost, by in plan["preemptions"] if victim == request)
    entry = next((e for e in plan["not_scheduled"] if e["request"] == request), None)
    numbers = dict(entry["numbers"]) if entry else {}
    whom = "itself" if by == request else by
    text = f"{request} was preempted in iteration {it.step} for {whom}: "
    text += (
        detail("preempted", numbers) if numbers else "blocks ran out"
    ) + f"; {counted(lost, 'computed token')} lost."
    numbers |= {"lost": lost}
    answer = answer_for(request, "preempted", it.step, text, "preempted", numbers)
    policy = it.run.scheduler_config["policy"]
    running = [i for i in it.state_at("schedule").running]
    if policy == "fcfs":
        answer.more.append(f"first come, first served: the last of the running list gives way ({', '.join(running)}).")
    else:
        keys = {i: it.run.arrival[i] for i in running if i in it.run.arrival}
        order = ", ".join(f"{i} priority {keys[i][0]}" for i in sorted(keys, key=lambda i: keys[i]))
        answer.more.append(f"priority: the least important gives way ({order}).")
    times = len(moments(log, request, "preempted"))
    answer.more.append(f"It happened to {request} {counted(times, 'time')} in this run.")
    answer.more += _comeback(log, request, it.step, lost)
    return answer


def _comeback(log: Log, request: str, step: int, lost: int) -> list[str]:
    for event in log.events:
        if event.kind == "schedule" and event.step > step and request in event.data["resumed"]:
            hit = next((hit for i, _, hit in event.data["prefix_cache"] if i == request), 0)
            known = event.data["num_tokens"][request]
            again = f"{hit} of its {known} tokens were still cached, the rest is computed again"
            anew = f"none of its {known} tokens was cached: all are computed, {lost} of them again"
            return [f"It came back in iteration {event.step}: {again if hit else anew}."]
    return ["It had not come back when the log ends."]


# ---- cut short -------------------------------------------------------------------------------------------------------


def partial(log: Log, request: str, iteration: int | None) -> Answer:
    """Why a request got fewer tokens than it owed."""
    it = pick(log, request, "partial", iteration, "cut short")
    plan = it.the("schedule")
    cut = next(entry for entry in plan["cut"] if entry["request"] == request)
    numbers = dict(cut["numbers"])
    text = f"{request} got {numbers['granted']} of the {numbers['asked']} tokens that it owed in iteration {it.step}: "
    text += detail(cut["reason"], numbers) + "."
    answer = answer_for(request, "partial", it.step, text, cut["reason"], numbers)
    answer.ours = "minivllm.core.schedule_running:why_less"
    if cut["reason"] == "token_budget":
        answer.steps = _budget_lines(plan)
    chunks = [count for p in it.run.plans.values() for i, count in p["scheduled"] if i == request and count > 1]
    answer.more.append(f"Its chunks in this run: {', '.join(map(str, chunks[:12]))}{' …' if len(chunks) > 12 else ''}.")
    return answer


# ---- kept waiting ----------------------------------------------------------------------------------------------------


def waited(log: Log, request: str, iteration: int | None) -> Answer:
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
    end = f"until iteration {first.step}" if first is not None else "to the end of the log"
    text = f"{request} waited {counted(steps, 'iteration')}, from {arrived.step} {end}"
    what = [f"{counted(n, 'time')} {_SHORT.get(r, r)}" for r, n in reasons.most_common()]
    text += f": {', '.join(what)}." if what else "."
    numbers: dict[str, Any] = {"arrived": arrived.step, "iterations": steps, **reasons}
    if first is not None:
        numbers["first_scheduled"] = first.step
        if arrived.wall_ns is not None and first.wall_ns is not None:
            numbers["queue_ms"] = round((first.wall_ns - (first.dur_ns or 0) - arrived.wall_ns) / 1e6, 3)
    reason = reasons.most_common(1)[0][0] if reasons else "not_waiting"
    answer = answer_for(request, "waited", arrived.step, text, reason, numbers)
    if "queue_ms" in numbers:
        answer.more.append(f"in time: {numbers['queue_ms']} ms in the queue.")
    if ahead:
        answer.more.append(f"Admitted in the meantime: {', '.join(ahead)}.")
    if again := moments(log, request, "preempted"):
        answer.more.append(f"It was preempted later, and waited again: {few(again)} (ask for preempted).")
    if log.header.config["scheduler_config"]["policy"] == "priority":
        answer.more.append(
            "Priority orders the queue, and picks the victims when blocks run out; as long as there are blocks and "
            "places, it takes nobody's away."
        )
    return answer


def _reason_in(plan: dict[str, Any], request: str) -> str:
    entry = next((e for e in plan["not_scheduled"] if e["request"] == request), plan["stop"])
    return entry["reason"] if entry is not None else "unknown"
