"""The invariants of a request's life: it comes once, is told every token, ends once, and leaves nothing behind."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from minivllm.analysis.invariants.books import follow
from minivllm.analysis.invariants.registry import invariant
from minivllm.analysis.iteration import DEFAULT_MAX_TOKENS, Iteration
from minivllm.trace.replay import State


@invariant(
    "INV-08",
    "Every request that goes on is in exactly one queue.",
    reason="In none it is forgotten, in two it runs twice.",
    map="state",
    bug="vLLM #49097: a request was skipped by the loop, and only came back when somebody finished",
    needs=("step.end",),
)
def one_queue(it: Iteration) -> Iterator[str]:
    end = it.data("step.end") or {}
    listed = [*end["running_after"], *end["waiting"], *end["skipped_waiting"]]
    yield from (f"{request} is in two queues" for request in sorted({r for r in listed if listed.count(r) > 1}))
    going_on = {request for request, entry in it.after.requests.items() if not entry.is_finished}
    if it.run.is_whole or it.run.prompts.keys() >= going_on:
        yield from (f"{request} goes on and is in no queue" for request in sorted(going_on - set(listed)))
    yield from (f"{request} has ended and is in a queue" for request in sorted(set(listed) - going_on))
    for request in end["running_after"]:
        if request in going_on and it.after.requests[request].status != "RUNNING":
            yield f"{request} runs and is {it.after.requests[request].status}"
    told = {i: e.num_preemptions for i, e in it.after.requests.items() if e.num_preemptions and i in going_on}
    if "num_preemptions" in end and end["num_preemptions"] != told:
        yield f"preemptions are told as {end['num_preemptions']}, the plans make {told}"
    plan = it.data("schedule")
    ended = going_on ^ {request for request, entry in it.after.requests.items()}
    if plan is not None:
        stay = [request for request in plan["running_scheduled"] if request not in ended]
        if stay != end["running_after"]:
            yield f"{end['running_after']} run after the step, {stay} ran with the plan and did not end"


@invariant(
    "INV-12",
    "A request that has ended gives its blocks back in that step, gets nothing more, and the worker is told.",
    reason="What an ended request keeps is lost to all others until the engine restarts.",
    map="state",
    bug="vLLM #51629: the parent of several outputs was never released after an abort",
    needs=("step.end",),
)
def ended(it: Iteration) -> Iterator[str]:
    books = follow(it)
    yield from (message for rule, message in books.faults if rule == "INV-12")
    over_before = {request for request, entry in it.before.requests.items() if entry.is_finished}
    over = {request for request, entry in it.after.requests.items() if entry.is_finished}
    yield from (
        f"{request} has ended and holds {len(books.tables[request])} blocks"
        for request in sorted(over & books.tables.keys())
    )
    plan = it.data("schedule")
    if plan is not None:
        yield from (f"{request} has ended and is planned" for request, _ in plan["scheduled"] if request in over_before)
        yield from _worker_is_told(it, plan)


def _worker_is_told(it: Iteration, plan: dict[str, Any]) -> Iterator[str]:
    """Every request that ended since the plan before this one is named to the worker, once."""
    told = plan["finished_since_last"]
    state = it.state_at("schedule")
    yield from (
        f"the worker is told that {r} finished, and it goes on" for r in told if not state.requests[r].is_finished
    )
    yield from (f"the worker is told twice that {r} finished" for r in told if r in it.run.told_finished)
    if it.run.is_whole:
        scheduled = {r for r, e in state.requests.items() if e.is_finished and e.status != "REFUSED"}
        missing = scheduled - it.run.told_finished - set(told)
        yield from (f"the worker is not told that {request} finished" for request in sorted(missing))
    it.run.told_finished.update(told)


@invariant(
    "INV-24",
    "An output belongs to the oldest plan in flight, and every token of it is told once or dropped for a reason.",
    reason="A lost token shifts the text for ever; one that is told twice does, too.",
    map="timeline",
    bug="vLLM #48245: output of a request that had been preempted in the meantime was counted for its new life",
    needs=("update",),
)
def outputs(it: Iteration) -> Iterator[str]:
    update, state = it.the("update"), it.state_at("update")
    oldest = it.run.oldest_plan(it.step)
    if it.run.is_whole and update["update_of"] != oldest:
        yield f"the output is of iteration {update['update_of']}, the oldest plan in flight is of {oldest}"
    plan = it.run.plans.get(update["update_of"])
    if plan is None:
        return
    planned = dict(plan["scheduled"])
    # An abort in the middle of the step is noted behind it, and takes effect before its output.
    gone = {i for e in it.all("requests.aborted") if e.data["phase"] == "mid" for i in e.data["ended"]}
    if update["sampled"].keys() != planned.keys():
        yield f"{sorted(update['sampled'])} were sampled, planned are {sorted(planned)}"
        return
    for request, tokens in update["sampled"].items():
        yield from _sampled(request, tokens, plan)
        yield from _emitted(request, tokens, update, state, is_aborted=request in gone)
    strangers = (update["emitted"].keys() | update["finished"].keys()) - planned.keys()
    yield from (f"{request} gets output of a plan that it was not in" for request in sorted(strangers))


def _sampled(request: str, tokens: list[int], plan: dict[str, Any]) -> Iterator[str]:
    reached = plan["num_computed_after"][request] >= plan["num_tokens"][request]
    if bool(tokens) != reached:
        after, known = plan["num_computed_after"][request], plan["num_tokens"][request]
        yield f"{request} has computed {after} of {known} known tokens and sampled {len(tokens)}"
    drafts = plan["spec_tokens"].get(request, [])
    if len(tokens) > 1 + len(drafts):
        yield f"{request} sampled {len(tokens)} tokens with {len(drafts)} drafts"
    elif tokens[:-1] != drafts[: len(tokens) - 1] and tokens:
        yield f"{request} accepted {tokens[:-1]}, its drafts were {drafts}"
    elif tokens and len(tokens) <= len(drafts) and tokens[-1] == drafts[len(tokens) - 1]:
        yield f"{request} stopped at a draft that was right"


def _emitted(
    request: str, tokens: list[int], update: dict[str, Any], state: State, *, is_aborted: bool
) -> Iterator[str]:
    told = update["emitted"].get(request, [])
    entry = state.requests.get(request)
    if entry is None:
        return
    is_over = is_aborted or entry.is_finished
    if is_over and told:
        yield f"{request} has ended, and is told {told}"
    elif told != tokens[: len(told)]:
        yield f"{request} sampled {tokens} and is told {told}"
    elif request in update["finished"] and tokens and not told:
        yield f"{request} finished, and is not told what it sampled"
    elif is_over or (entry.num_stale_output_tokens and not told):
        pass  # output of before a preemption may be dropped
    elif len(told) < len(tokens) and request not in update["finished"]:
        yield f"{request} sampled {len(tokens)} tokens, {len(told)} were told"


@invariant(
    "INV-25",
    "A request ends exactly when one of its limits or stops says so, with that reason.",
    reason="Every token more is paid by others; every token less is missing.",
    map="timeline",
    bug="vLLM #21987: a stop fired before min_tokens were there",
    needs=("update",),
)
def endings(it: Iteration) -> Iterator[str]:
    update, state = it.the("update"), it.state_at("update")
    for request, told in update["emitted"].items():
        entry, params = state.requests.get(request), it.run.params.get(request)
        if entry is None or params is None or not told:
            continue
        count = entry.num_tokens - entry.num_prompt_tokens + len(told)
        reason, stop_reason = update["finished"].get(request, (None, None))
        expected = _expected_end(told[-1], count, entry.num_tokens + len(told), params, it)
        if expected is None and reason in ("repetition", "error"):
            continue
        if (expected or (None, None)) != (reason, stop_reason):
            yield f"{request} has {count} tokens, the last is {told[-1]}: it ended as {reason}, {expected} was due"
        for place, token in enumerate(told[:-1], count - len(told) + 1):
            if _expected_end(token, place, entry.num_tokens + place - count + len(told), params, it):
                yield f"{request} is told tokens behind its end"
    silent = update["finished"].keys() - update["emitted"].keys()
    yield from (f"{request} ended without an output" for request in sorted(silent))


def _expected_end(
    token: int, count: int, known: int, params: dict[str, Any], it: Iteration
) -> tuple[str, int | None] | None:
    """How a request ends with this token as its `count`-th; None if it goes on. In the order of the engine's rules."""
    is_at_limit = known >= it.run.scheduler_config["max_model_len"] or count >= params.get(
        "max_tokens", DEFAULT_MAX_TOKENS
    )
    if count >= params.get("min_tokens", 0):
        if not params.get("ignore_eos") and token == params.get("eos_token_id"):
            return "stop", None
        if token in params.get("stop_token_ids", ()):
            return "stop", token
    return ("length", None) if is_at_limit else None


@invariant(
    "INV-26",
    "After an abort comes nothing: no token, no text, no block.",
    reason="The caller has gone. What the step still brings for it is dropped before it is committed.",
    map="timeline",
    bug="sglang #34149: the token of a delayed last chunk was committed after the abort",
    needs=("requests.aborted", "update"),
)
def aborted(it: Iteration) -> Iterator[str]:
    books = follow(it)
    gone = {request for request, entry in it.before.requests.items() if entry.status == "FINISHED_ABORTED"}
    for event in it.all("update", "output.text"):
        told = [event.request] if event.kind == "output.text" else event.data["emitted"]
        yield from (f"{request} was aborted before, and gets an output" for request in told if request in gone)
    for event in it.all("requests.aborted"):
        place = it.events.index(event)
        for request in event.data["ended"]:
            if request not in event.data["asked"]:
                yield f"{request} was aborted, and nobody asked for it"
            if request in it.before.requests and it.before.requests[request].is_finished:
                yield f"{request} was aborted after its end"
            if books.tables.get(request):
                yield f"{request} was aborted and holds {len(books.tables[request])} blocks"
            for later in it.events[0 if event.data["phase"] == "mid" else place + 1 :]:
                if later.kind == "update" and request in later.data["emitted"]:
                    yield f"{request} was aborted and is told {later.data['emitted'][request]}"
                if later.kind == "output.text" and later.request == request and later.data["tokens"]:
                    yield f"{request} was aborted and gets text"
