"""Owns how the tokens of an iteration were spent, what the three limits bound, and a long prompt's chunks."""

from __future__ import annotations

from typing import Any

from minivllm.analysis.answer import counted
from minivllm.analysis.explain_answer import Ask, Explanation, Table, arrival, busiest, plan_at, plans, settings, summed
from minivllm.maps.reasons import detail
from minivllm.trace.events import Event
from minivllm.trace.reader import Log

_OURS = "minivllm.core.scheduler:Scheduler.schedule"
_VLLM = "vllm/v1/core/sched/scheduler.py::Scheduler.schedule"


def budget(log: Log, ask: Ask) -> Explanation:
    """How an iteration's token budget was spent; of one request, how its prompt was cut into chunks.

    Raises:
        CannotKnowError: The log does not hold the plan.
    """
    if ask.request is not None and ask.iteration is None:
        return _chunks(log, ask.request)
    step = ask.iteration if ask.iteration is not None else busiest(log)
    event = plan_at(log, step)
    plan, limits = event.data, settings(log, "scheduler_config")
    left, rows = plan["budget"], []
    for request, count in plan["scheduled"]:
        left -= count
        rows.append((request, str(count), f"{left} left", _what(plan, request)))
    used, running = plan["budget"] - left, len(plan["scheduled"])
    values = {
        "max_num_batched_tokens": plan["budget"],
        "max_num_seqs": plan["max_num_seqs"],
        "max_model_len": limits["max_model_len"],
        "long_prefill_token_threshold": limits.get("long_prefill_token_threshold", 0),
        "scheduled": dict(plan["scheduled"]),
        "requests": running,
        "used": used,
    }
    explanation = Explanation(
        "budget",
        f"Iteration {step} spent {used} of {plan['budget']} tokens on {counted(running, 'request')}.",
        "left = max_num_batched_tokens - sum(tokens of each request)",
        f"left = {plan['budget']} - ({summed([n for _, n in plan['scheduled']])}) = {left}",
        values,
        left,
        event.src or _OURS,
        event.ref or _VLLM,
        request=ask.request,
        iteration=step,
        tables=[Table("in the order of the scheduler", ("request", "tokens", "budget", "what for"), rows)],
        hint=f"whatif --set max_num_batched_tokens={2 * plan['budget']}",
    )
    explanation.more = [*_limits(log, values), *_held_back(plan)]
    return explanation


def _what(plan: dict[str, Any], request: str) -> str:
    before, known = plan["num_computed_before"][request], plan["num_tokens"][request]
    kind = "new" if request in plan["new"] else "resumed" if request in plan["resumed"] else "running"
    drafts = len(plan["spec_tokens"].get(request, []))
    after = before + dict(plan["scheduled"])[request]
    if drafts:
        return f"{kind}: {before} to {after}, {counted(drafts, 'draft')} behind its {known} known"
    # Planned ahead: the token that it computes is still on its way.
    return (
        f"{kind}: {before} to {after} of {known}" if after <= known else f"{kind}: {before} to {after}, planned ahead"
    )


def _limits(log: Log, values: dict[str, Any]) -> list[str]:
    """What bounds what, with the run's numbers."""
    longest = max((len(e.data["prompt_token_ids"]) for e in log.events if e.kind == "request.arrived"), default=None)
    sentences = [
        f"max_num_batched_tokens ({values['max_num_batched_tokens']}) bounds the tokens of one iteration, over all "
        "requests.",
        f"max_num_seqs ({values['max_num_seqs']}) bounds how many requests share them: {values['requests']} here.",
        f"max_model_len ({values['max_model_len']}) bounds one request over its whole life, prompt and output.",
    ]
    if longest is not None:
        threshold = values["long_prefill_token_threshold"]
        most = min(values["max_num_batched_tokens"], threshold or values["max_num_batched_tokens"])
        sentences.append(
            f"The longest prompt of this run has {longest} tokens, and one request gets at most {most} an iteration: "
            + ("it comes in chunks." if longest > most else "it can come in one piece.")
        )
    return sentences


def _held_back(plan: dict[str, Any]) -> list[str]:
    cuts = [
        f"{entry['request']} got less than it owed: {detail(entry['reason'], entry['numbers'])}."
        for entry in plan["cut"]
    ]
    stops = [e for e in (*plan["not_scheduled"], plan["stop"]) if e and e["request"]]
    seen = {
        entry["request"]: f"{entry['request']} got none: {detail(entry['reason'], entry['numbers'])}."
        for entry in stops
    }
    return cuts + list(seen.values())


def _chunks(log: Log, request: str) -> Explanation:
    """How a prompt came into the cache, iteration by iteration."""
    prompt = len(arrival(log, request)["prompt_token_ids"])
    events = [e for e in plans(log) if any(who == request for who, _ in e.data["scheduled"])]
    if not events:
        raise ValueError(f"{request} was never scheduled in this run")
    first = events[0]
    chunks = [
        e for e in events if e.data["num_computed_before"][request] < prompt and _is_first_life(events, e, request)
    ]
    rows = [_chunk(e, request, prompt) for e in chunks]
    hit = first.data["num_computed_before"][request]
    sizes = [dict(e.data["scheduled"])[request] for e in chunks]
    limits = settings(log, "scheduler_config")
    values = {
        "prompt_tokens": prompt,
        "cached": hit,
        "chunks": sizes,
        "iterations": [e.step for e in chunks],
        "max_num_batched_tokens": first.data["budget"],
        "long_prefill_token_threshold": limits.get("long_prefill_token_threshold", 0),
        "max_model_len": limits["max_model_len"],
    }
    text = f"The prompt of {request} has {prompt} tokens: {hit} were cached, the rest came in "
    text += counted(len(sizes), "chunk")
    explanation = Explanation(
        "budget",
        f"{text}, in iterations {chunks[0].step} to {chunks[-1].step}." if len(chunks) > 1 else f"{text}.",
        "prompt = cached + sum(chunks), each chunk at most what is left of max_num_batched_tokens",
        f"{prompt} = {hit} + {summed(sizes)}",
        values,
        len(sizes),
        first.src or _OURS,
        first.ref or _VLLM,
        request=request,
        iteration=first.step,
        tables=[Table("chunks", ("iteration", "tokens", "budget", "of the prompt"), rows)],
        hint=f"why {request} partial" if len(chunks) > 1 else f"explain alloc --request {request}",
    )
    if hit + sum(sizes) < prompt:
        explanation.more.append(f"{prompt - hit - sum(sizes)} tokens of it were not computed before the log ended.")
    explanation.more.append(
        f"A prompt only has to fit max_model_len ({limits['max_model_len']}); max_num_batched_tokens "
        f"({first.data['budget']}) bounds what one iteration computes of it. Only the last chunk samples a token."
    )
    return explanation


def _is_first_life(events: list[Event], event: Event, request: str) -> bool:
    """Whether it was not preempted before: what is computed again is no chunk of the prompt's first time."""
    return not any(e.step <= event.step and request in e.data["resumed"] for e in events)


def _chunk(event: Event, request: str, prompt: int) -> tuple[str, ...]:
    plan = event.data
    before, count = plan["num_computed_before"][request], dict(plan["scheduled"])[request]
    others = sum(n for who, n in plan["scheduled"] if who != request)
    where = f"{before} to {before + count} of {prompt}"
    return str(event.step), str(count), f"{plan['budget']} - {others} for others", where
