"""Owns how the tokens of an iteration were spent, what the three limits bound, and a long prompt's chunks."""

from __future__ import annotations

from typing import Any

from minivllm.analysis.explain_answer import Ask, Explanation, Table, arrival, busiest, plan_at, plans, settings, summed
from minivllm.maps.reasons import detail
from minivllm.maps.wording import Words
from minivllm.trace.events import Event
from minivllm.trace.reader import Log

_OURS = "minivllm.core.scheduler:Scheduler.schedule"
_VLLM = "vllm/v1/core/sched/scheduler.py::Scheduler.schedule"


def budget(log: Log, ask: Ask) -> Explanation:
    """How an iteration's token budget was spent; of one request, how its prompt was cut into chunks.

    Raises:
        CannotKnowError: The log does not hold the plan.
    """
    words = ask.words()
    if ask.request is not None and ask.iteration is None:
        return _chunks(log, ask.request, words)
    step = ask.iteration if ask.iteration is not None else busiest(log)
    event = plan_at(log, step)
    plan, limits = event.data, settings(log, "scheduler_config")
    left, rows = plan["budget"], []
    for request, count in plan["scheduled"]:
        left -= count
        rows.append((request, str(count), words("left", count=left), _what(plan, request, words)))
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
        words("spent", step=step, used=used, budget=plan["budget"], count=running),
        "left = max_num_batched_tokens - sum(tokens of each request)",
        f"left = {plan['budget']} - ({summed([n for _, n in plan['scheduled']])}) = {left}",
        values,
        left,
        event.src or _OURS,
        event.ref or _VLLM,
        request=ask.request,
        iteration=step,
        tables=[Table(words("in_order"), tuple(map(words, ("request", "tokens", "budget", "what_for"))), rows)],
        hint=f"whatif --set max_num_batched_tokens={2 * plan['budget']}",
    )
    explanation.more = [*_limits(log, values, words), *_held_back(plan, words)]
    return explanation


def _what(plan: dict[str, Any], request: str, words: Words) -> str:
    before, known = plan["num_computed_before"][request], plan["num_tokens"][request]
    kind = words(f"kind_{'new' if request in plan['new'] else 'resumed' if request in plan['resumed'] else 'running'}")
    drafts = len(plan["spec_tokens"].get(request, []))
    after = before + dict(plan["scheduled"])[request]
    if drafts:
        return words("what_drafts", kind=kind, before=before, after=after, drafts=drafts, known=known)
    # Planned ahead: the token that it computes is still on its way.
    if after > known:
        return words("what_ahead", kind=kind, before=before, after=after)
    return words("what_known", kind=kind, before=before, after=after, known=known)


def _limits(log: Log, values: dict[str, Any], words: Words) -> list[str]:
    """What bounds what, with the run's numbers."""
    longest = max((len(e.data["prompt_token_ids"]) for e in log.events if e.kind == "request.arrived"), default=None)
    sentences = [
        words("bounds_budget", limit=values["max_num_batched_tokens"]),
        words("bounds_seqs", limit=values["max_num_seqs"], count=values["requests"]),
        words("bounds_length", limit=values["max_model_len"]),
    ]
    if longest is not None:
        threshold = values["long_prefill_token_threshold"]
        most = min(values["max_num_batched_tokens"], threshold or values["max_num_batched_tokens"])
        key = "longest_in_chunks" if longest > most else "longest_in_one"
        sentences.append(words(key, longest=longest, most=most))
    return sentences


def _held_back(plan: dict[str, Any], words: Words) -> list[str]:
    def told(key: str, entry: dict[str, Any]) -> str:
        return words(key, request=entry["request"], why=detail(entry["reason"], entry["numbers"], words.lang))

    cuts = [told("got_less", entry) for entry in plan["cut"]]
    stops = [e for e in (*plan["not_scheduled"], plan["stop"]) if e and e["request"]]
    seen = {entry["request"]: told("got_none", entry) for entry in stops}
    return cuts + list(seen.values())


def _chunks(log: Log, request: str, words: Words) -> Explanation:
    """How a prompt came into the cache, iteration by iteration."""
    prompt = len(arrival(log, request)["prompt_token_ids"])
    events = [e for e in plans(log) if any(who == request for who, _ in e.data["scheduled"])]
    if not events:
        raise ValueError(f"{request} was never scheduled in this run")
    first = events[0]
    chunks = [
        e for e in events if e.data["num_computed_before"][request] < prompt and _is_first_life(events, e, request)
    ]
    rows = [_chunk(e, request, prompt, words) for e in chunks]
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
    numbers = {"request": request, "prompt": prompt, "hit": hit, "count": len(sizes)}
    if len(chunks) > 1:
        text = words("in_chunks", **numbers, first=chunks[0].step, last=chunks[-1].step)
    else:
        text = words("in_one_chunk", **numbers)
    explanation = Explanation(
        "budget",
        text,
        "prompt = cached + sum(chunks), each chunk at most what is left of max_num_batched_tokens",
        f"{prompt} = {hit} + {summed(sizes)}",
        values,
        len(sizes),
        first.src or _OURS,
        first.ref or _VLLM,
        request=request,
        iteration=first.step,
        tables=[Table(words("chunks"), tuple(map(words, ("iteration", "tokens", "budget", "of_the_prompt"))), rows)],
        hint=f"why {request} partial" if len(chunks) > 1 else f"explain alloc --request {request}",
    )
    if hit + sum(sizes) < prompt:
        explanation.more.append(words("not_computed", count=prompt - hit - sum(sizes)))
    fits = {"longest": limits["max_model_len"], "budget": first.data["budget"]}
    explanation.more.append(words("only_has_to_fit", **fits))
    return explanation


def _is_first_life(events: list[Event], event: Event, request: str) -> bool:
    """Whether it was not preempted before: what is computed again is no chunk of the prompt's first time."""
    return not any(e.step <= event.step and request in e.data["resumed"] for e in events)


def _chunk(event: Event, request: str, prompt: int, words: Words) -> tuple[str, ...]:
    plan = event.data
    before, count = plan["num_computed_before"][request], dict(plan["scheduled"])[request]
    others = sum(n for who, n in plan["scheduled"] if who != request)
    where = words("from_to", before=before, after=before + count, prompt=prompt)
    return str(event.step), str(count), words("for_others", budget=plan["budget"], others=others), where
