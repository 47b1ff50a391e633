"""The invariants of the plan: budgets kept, debts paid in order, and a reason for whoever got nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from minivllm.analysis.invariants.registry import invariant
from minivllm.analysis.iteration import Iteration

_PAUSED = 0  # budget of a step of an engine that is paused
# Why the loop over running requests may stop at one of them.
_ENDS_RUNNING = ("token_budget", "paused_all", "no_free_blocks")


@invariant(
    "INV-03",
    "A step never spends more than its token budget, and what it spends adds up.",
    reason="The budget bounds the time of a step, and the size of every buffer behind it.",
    map="plan",
    bug="vLLM #23347: a victim that was planned already stayed in the plan, and the sum did not fit",
    needs=("schedule",),
)
def token_budget(it: Iteration) -> Iterator[str]:
    plan = it.the("schedule")
    counts = [count for _, count in plan["scheduled"]]
    if sum(counts) != plan["total_scheduled"]:
        yield f"the plan says {plan['total_scheduled']} tokens, its requests have {sum(counts)}"
    if sum(counts) > plan["budget"]:
        yield f"{sum(counts)} tokens are planned, the budget is {plan['budget']}"
    yield from (f"{request} is planned with {count} tokens" for request, count in plan["scheduled"] if count <= 0)
    limit = it.run.scheduler_config["max_num_batched_tokens"]
    if plan["budget"] not in (limit, _PAUSED):
        yield f"the budget is {plan['budget']}, max_num_batched_tokens is {limit}"
    threshold = it.run.scheduler_config["long_prefill_token_threshold"]
    if threshold > 0:
        for request, count in plan["scheduled"]:
            if count > threshold:
                yield f"{request} got {count} tokens, long_prefill_token_threshold is {threshold}"


@invariant(
    "INV-04",
    "At most max_num_seqs requests run.",
    reason="The worker has so many rows; one more would have none.",
    map="plan",
    bug="vLLM #53130: requests that waited for something else counted as running, and admission stopped for ever",
    needs=("schedule", "step.end"),
)
def max_num_seqs(it: Iteration) -> Iterator[str]:
    limit = it.run.scheduler_config["max_num_seqs"]
    plan, end = it.data("schedule"), it.data("step.end") or {}
    if plan and plan["max_num_seqs"] != limit:
        yield f"the plan was made for {plan['max_num_seqs']} requests, max_num_seqs is {limit}"
    for name, running in (("with the plan", plan and plan["running_scheduled"]), ("after", end.get("running_after"))):
        if running and len(running) > limit:
            yield f"{len(running)} requests run {name}, max_num_seqs is {limit}"
    if plan and plan["running_scheduled"] and plan["scheduled"]:
        strangers = {request for request, _ in plan["scheduled"]} - set(plan["running_scheduled"])
        yield from (f"{request} is planned and does not run" for request in sorted(strangers))


@invariant(
    "INV-09",
    "A request computes its debt and no more: it starts where it stood, and advances by what was planned.",
    reason="There is no prefill and no decode, only tokens known and not computed yet. Every counter follows from it.",
    map="plan",
    bug="vLLM #48245: output in flight of a preempted request was counted twice, and its counters fell below zero",
    needs=("schedule",),
)
def debt(it: Iteration) -> Iterator[str]:
    plan, state = it.the("schedule"), it.state_at("schedule")
    hits = _hits(it)
    for request, count in plan["scheduled"]:
        entry = state.requests[request]
        before, after = plan["num_computed_before"][request], plan["num_computed_after"][request]
        known, drafts = plan["num_tokens"][request], len(plan["spec_tokens"].get(request, ()))
        expected = hits.get(request, 0) if request not in plan["running"] else entry.num_computed_tokens
        if before != expected:
            yield f"{request} starts at token {before}, it stood at {expected}"
        if after != before + count:
            yield f"{request} goes from {before} by {count} tokens to {after}"
        if known != entry.num_tokens:
            yield f"{request} is planned with {known} known tokens, it has {entry.num_tokens}"
        placeholders = sum(1 + p.num_drafts.get(request, 0) for p in state.in_flight if request in p.scheduled)
        if after > known + drafts + placeholders:
            yield f"{request} is to compute {after} tokens of {known} known, {drafts} drafts, {placeholders} in flight"
        if after > it.run.scheduler_config["max_model_len"]:
            yield f"{request} is to compute {after} tokens, the model's length is less"
        if drafts >= count and drafts:
            yield f"{request} has {drafts} drafts in {count} tokens: the last sampled token must come first"
    for name in ("num_computed_before", "num_computed_after", "num_tokens"):
        if list(plan[name]) != [request for request, _ in plan["scheduled"]]:
            yield f"{name} is not told of exactly those who are planned"
    strangers = plan["spec_tokens"].keys() - {request for request, _ in plan["scheduled"]}
    yield from (f"the plan keeps drafts of {request}, which is not in it" for request in sorted(strangers))


def _hits(it: Iteration) -> dict[str, int]:
    """Tokens of the blocks that admitted requests shared in this step."""
    size = it.run.block_size
    return {e.request: len(e.data["blocks"]) * size for e in it.all("kv.shared") if e.request is not None}


@invariant(
    "INV-13",
    "Running requests come before waiting ones; those enter in their queue's order, and not in a step that preempted.",
    reason="Who has blocks finishes first and gives them back; to admit while evicting would thrash.",
    map="plan",
    bug="vLLM #49097: a preemption before the cursor moved the list under the loop, and a request was passed over",
    needs=("schedule",),
)
def order_of_service(it: Iteration) -> Iterator[str]:
    plan, state = it.the("schedule"), it.state_at("schedule")
    kinds = {request: kind for kind in ("new", "resumed", "running") for request in plan[kind]}
    planned = [request for request, _ in plan["scheduled"]]
    if sorted(kinds) != sorted(planned) or len(planned) != len(set(planned)):
        yield "new, resumed and running requests are not exactly those who are planned"
        return
    if sum(len(plan[kind]) for kind in ("new", "resumed", "running")) != len(kinds):
        yield "a request is planned as two kinds"
    ranks = [kinds[request] != "running" for request in planned]
    if ranks != sorted(ranks):
        yield "an admitted request stands before a running one in the plan"
    if plan["preempted"] and (plan["new"] or plan["resumed"]):
        yield f"{', '.join(plan['new'] + plan['resumed'])} entered in a step that preempted"
    expected = {"RUNNING": "running", "PREEMPTED": "resumed"}
    for request in planned:
        status = state.requests[request].status
        if kinds[request] != expected.get(status, "new"):
            yield f"{request} is planned as {kinds[request]}, and was {status}"
    stayed = [request for request in state.running if request not in plan["preempted"]]
    admitted = [request for request in plan["running_scheduled"] if request not in set(state.running)]
    if it.run.scheduler_config["policy"] == "fcfs" and plan["running_scheduled"] != stayed + admitted:
        yield f"the running list became {plan['running_scheduled']}, it was {state.running}"
    if set(admitted) != {request for request in planned if kinds[request] != "running"}:
        yield "those who joined the running list are not those who were admitted"
    yield from _out_of_turn(it, admitted)
    left = set(state.waiting) | set(state.skipped_waiting)
    left = (left | set(plan["preempted"])) - set(admitted)
    if not set(plan["waiting_scheduled"]) <= left:
        yield f"{sorted(set(plan['waiting_scheduled']) - left)} wait with the plan, and did not before"
    lost = left - set(plan["waiting_scheduled"]) - set(it.after.skipped_waiting)
    lost = {request for request in lost if not it.after.requests[request].is_finished}
    yield from (f"{request} waited and is in no queue any more" for request in sorted(lost))


def _out_of_turn(it: Iteration, admitted: list[str]) -> Iterator[str]:
    """Who entered before somebody ahead of it in the queue that no rule had passed over."""
    state, passed_over = it.state_at("schedule"), {entry["request"] for entry in it.the("schedule")["not_scheduled"]}
    queue = [*state.skipped_waiting, *state.waiting]
    if it.run.scheduler_config["policy"] == "priority":
        if any(request not in it.run.arrival for request in queue):
            return
        queue.sort(key=lambda request: (it.run.arrival[request], request))
    ahead = [request for request in queue if request not in passed_over]
    for request in admitted:
        if request not in ahead:
            continue
        if ahead[0] != request:
            yield f"{request} entered, and {ahead[0]} was ahead of it in the queue"
            return
        ahead.remove(request)


@invariant(
    "INV-14",
    "Who is preempted loses everything, is the last that runs (or the least important), and comes back first.",
    reason="The youngest has the least to compute again; at the front of the queue it does not starve.",
    map="timeline",
    bug="vLLM #28558: a preempted request left its drafts in the plan",
    needs=("schedule",),
)
def preemption(it: Iteration) -> Iterator[str]:
    plan, state = it.the("schedule"), it.state_at("schedule")
    told = [victim for victim, _, _ in plan["preemptions"]]
    if told != plan["preempted"]:
        yield f"{plan['preempted']} were preempted, the reasons name {told}"
    freed = {event.request for event in it.all("kv.freed")}
    running = list(state.running)
    for victim, lost, _ in plan["preemptions"]:
        if victim not in running:
            yield f"{victim} was preempted and did not run"
            continue
        if lost != it.before.requests[victim].num_computed_tokens:
            computed = it.before.requests[victim].num_computed_tokens
            yield f"{victim} lost {lost} computed tokens, it had {computed}"
        yield from _is_the_right_one(it, victim, running)
        running.remove(victim)
        if victim not in freed:
            yield f"{victim} was preempted and kept its blocks"
        if any(victim == request for request, _ in plan["scheduled"]):
            yield f"{victim} was preempted and stayed in the plan"
        if victim not in plan["waiting_scheduled"]:
            yield f"{victim} was preempted and does not wait"
    front = plan["waiting_scheduled"][: len(told)]
    if told and it.run.scheduler_config["policy"] == "fcfs" and front != told[::-1]:
        yield f"the queue begins with {front} after {told} were preempted"


def _is_the_right_one(it: Iteration, victim: str, running: list[str]) -> Iterator[str]:
    if it.run.scheduler_config["policy"] == "fcfs":
        if running[-1] != victim:
            yield f"{victim} was preempted, the last that runs is {running[-1]}"
        return
    arrival = it.run.arrival
    if victim in arrival and any(arrival[i] > arrival[victim] for i in running if i in arrival):
        yield f"{victim} was preempted, and somebody less important goes on"


@invariant(
    "INV-15",
    "Whoever gets nothing has a reason, and its arithmetic is right.",
    reason="No progress without a reason is a deadlock, and the question of every user: why does my request wait?",
    map="plan",
    bug="vLLM #35541: a request larger than the whole KV cache blocked the queue for ever, and nothing said why",
    needs=("schedule",),
)
def reasons(it: Iteration) -> Iterator[str]:
    plan, state = it.the("schedule"), it.state_at("schedule")
    planned = dict(plan["scheduled"])
    stop, total = plan["stop"], plan["total_scheduled"]
    waits = [*plan["waiting_scheduled"], *(r for r in state.skipped_waiting if r not in planned)]
    explained = {entry["request"] for entry in plan["not_scheduled"]}
    unexplained = [request for request in waits if request not in explained and request not in planned]
    if unexplained and (stop is None or stop["reason"] in ("queue_empty", "all_waiting_blocked")):
        yield f"{unexplained[0]} got nothing, and nothing says why"
    for request in _looked_at(plan, state.running):
        if request not in planned and request not in explained:
            yield f"{request} runs and got nothing, and nothing says why"
    for entry in plan["not_scheduled"]:
        if entry["request"] in planned:
            yield f"{entry['request']} is planned, and was told why not ({entry['reason']})"
    for entry in plan["cut"]:
        numbers, got = entry["numbers"], planned.get(entry["request"])
        if got is None or numbers["granted"] != got or not got < numbers["asked"]:
            yield f"{entry['request']} was cut to {numbers['granted']} of {numbers['asked']} tokens, and got {got}"
        if entry["reason"] == "token_budget" and numbers["limit"] > plan["budget"] - total + (got or 0):
            yield f"{entry['request']} was cut by a budget of {numbers['limit']}, which was not what was left"
        room = numbers["limit"]
        if entry["reason"] == "max_model_len":  # the last position is for a token that is sampled and not computed
            room -= 1 + plan["num_computed_before"].get(entry["request"], 0)
        if numbers["granted"] != room:
            yield f"{entry['request']} was cut to {numbers['granted']} tokens, {entry['reason']} allowed {room}"
    for entry in (*plan["not_scheduled"], *([stop] if stop else [])):
        yield from _arithmetic(entry, plan, total, it)


def _looked_at(plan: dict[str, Any], running: list[str]) -> list[str]:
    """The running requests that the loop came to: all of them, unless it stopped at one."""
    stop = plan["stop"]
    if stop is not None and stop["reason"] in _ENDS_RUNNING and stop["request"] in running:
        running = running[: running.index(stop["request"])]
    return [request for request in plan["running_scheduled"] if request in running]


def _arithmetic(entry: dict[str, Any], plan: dict[str, Any], total: int, it: Iteration) -> Iterator[str]:
    numbers, reason = entry["numbers"], entry["reason"]
    who = entry["request"] or "the loop"
    if reason == "token_budget" and "left" in numbers:
        if numbers["left"] != numbers["budget"] - total or numbers["budget"] != plan["budget"]:
            yield f"{who} stopped at {numbers['left']} of {numbers['budget']} tokens left, {total} are planned"
    elif reason == "max_num_seqs":
        if numbers["running"] != len(plan["running_scheduled"]) or numbers["running"] < numbers["max_num_seqs"]:
            running = len(plan["running_scheduled"])
            yield f"{who} found {numbers['running']} of {numbers['max_num_seqs']} places taken, {running} run"
    elif reason in ("no_free_blocks", "full_sequence_does_not_fit", "preempted") and "asked" in numbers:
        kept = numbers.get("watermark", 0) + numbers.get("reserved", 0)
        if numbers["asked"] + kept <= numbers["free"]:
            yield f"{who} needed {numbers['asked']} blocks, {numbers['free']} were free: that was enough"
        if not 0 <= numbers["free"] <= it.before.pool.num_blocks:
            yield f"{who} found {numbers['free']} free blocks of {it.before.pool.num_blocks}"


@invariant(
    "INV-16",
    "A hit is whole blocks, never the last token, and moves only the start.",
    reason="The last token is computed always: its logits are wanted. In practice that is the last block.",
    map="plan",
    bug="nano-vllm #199: a prompt that was cached entirely left nothing to compute, and the engine crashed",
    needs=("kv.lookup",),
)
def hits(it: Iteration) -> Iterator[str]:
    size, plan = it.run.block_size, it.data("schedule")
    shared = {event.request: event.data["blocks"] for event in it.all("kv.shared")}
    last = {event.request: event for event in it.all("kv.lookup")}
    for event in last.values():
        data, request = event.data, event.request or "?"
        known = it.before.requests[request].num_tokens if request in it.before.requests else None
        known = len(it.run.prompts[request]) if known is None and request in it.run.prompts else known
        if data["hit"] != len(data["blocks"]) * size or data["hit"] > data["asked"]:
            yield f"{request} hit {data['hit']} tokens in {len(data['blocks'])} blocks, {data['asked']} were asked for"
        if known is not None and (data["asked"] % size or data["asked"] > max(known - 1, 0)):
            yield f"{request} asked for {data['asked']} of its {known} tokens"
        if request in shared and shared[request] != data["blocks"]:
            yield f"{request} hit {data['blocks']} and got {shared[request]}"
        if data["blocks"] and plan and request in plan["new"] and request not in shared:
            yield f"{request} entered without the blocks that it hit"
    lookups = {request: hit for request, _, hit in (plan or {}).get("prefix_cache", [])}
    for request, hit in lookups.items():
        if request in last and hit != last[request].data["hit"]:
            yield f"{request} is counted with a hit of {hit} tokens, the look-up gave {last[request].data['hit']}"
        elif hit and request in (plan or {})["num_computed_before"] and plan is not None:
            before = plan["num_computed_before"][request]
            if before != hit:
                yield f"{request} hit {hit} tokens and starts at {before}"
