"""Owns when a request got which blocks, and how many requests the pool can hold against how many ran."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from minivllm.analysis.answer import CannotKnowError
from minivllm.analysis.explain_answer import (
    Ask,
    Explanation,
    Table,
    arrival,
    blocks_text,
    divided_up,
    plans,
    settings,
)
from minivllm.analysis.iteration import DEFAULT_MAX_TOKENS
from minivllm.maps.wording import Words
from minivllm.trace.reader import Log

_OURS = "minivllm.core.kv_cache_manager:KVCacheManager.allocate_slots"
_VLLM = "vllm/v1/core/kv_cache_manager.py::KVCacheManager.allocate_slots"


@dataclass(slots=True)
class Holding:
    """What one request did to the pool in one iteration, and what it held at the end.

    Attributes:
        shared, allocated, freed: Blocks of a prefix hit, taken from the free queue, and given back.
        held: Blocks at its plan, or at its end if there was none.
        tokens: Tokens that are in them after the plan; None if it was not in the plan.
        free: Free blocks of the pool at the end of the iteration, if the log says so.
    """

    step: int
    shared: list[int] = field(default_factory=list)
    allocated: list[int] = field(default_factory=list)
    freed: list[int] = field(default_factory=list)
    held: int = 0
    tokens: int | None = None
    free: int | None = None


def holdings(log: Log, request: str) -> list[Holding]:
    """What a request did to the pool, one entry for each iteration in which it was planned or lost its blocks.

    Raises:
        CannotKnowError: It was planned, and the log does not hold that it got any block.
    """
    return all_holdings(log, {request})[request]


def all_holdings(log: Log, requests: Collection[str]) -> dict[str, list[Holding]]:
    """The same of several requests, in one pass. Raises CannotKnowError."""
    at_start = log.start["requests"] if log.start else {}
    tables: dict[str, list[int]] = {i: list(at_start.get(i, {}).get("block_ids", [])) for i in requests}
    found: dict[str, dict[int, Holding]] = {request: {} for request in requests}
    free: dict[int, int] = {}
    for event in log.events:
        if event.request in found and event.kind in ("kv.shared", "kv.allocated", "kv.freed"):
            blocks, request = event.data["blocks"], event.request
            entry = found[request].setdefault(event.step, Holding(event.step))
            {"kv.shared": entry.shared, "kv.allocated": entry.allocated, "kv.freed": entry.freed}[event.kind].extend(
                blocks
            )
            tables[request] = [] if event.kind == "kv.freed" else tables[request] + blocks
        elif event.kind == "schedule":
            for request, tokens in event.data["num_computed_after"].items():
                if request in found:
                    entry = found[request].setdefault(event.step, Holding(event.step))
                    entry.held, entry.tokens = len(tables[request]), tokens
        elif event.kind == "step.end":
            free[event.step] = event.data["free_blocks"]
    for request, entries in found.items():
        for step, entry in entries.items():
            entry.free = free.get(step)
        got = request in at_start or any(entry.shared or entry.allocated for entry in entries.values())
        if not got and any(entry.tokens for entry in entries.values()):
            raise CannotKnowError(f"the log cannot say: it does not hold the blocks (kv.allocated) that {request} got")
    return {request: list(entries.values()) for request, entries in found.items()}


def alloc(log: Log, ask: Ask) -> Explanation:
    """How the blocks were given out: of one request iteration by iteration, else of all.

    Raises:
        CannotKnowError: The log does not hold the events of its blocks, or its plans.
    """
    size: int = plans(log)[0].data["block_size"]
    words = ask.words()
    return _of_run(log, size, words) if ask.request is None else _of_request(log, ask.request, ask, size, words)


def _of_request(log: Log, request: str, ask: Ask, size: int, words: Words) -> Explanation:
    iteration = ask.iteration
    entries = holdings(log, request)
    if iteration is not None:
        entries = [entry for entry in entries if entry.step <= iteration]
    planned = [entry for entry in entries if entry.tokens is not None]
    if not planned:
        when = "in this run" if iteration is None else f"up to iteration {iteration}"
        raise ValueError(f"{request} was not scheduled {when}: it got no blocks")
    peak = max(planned, key=lambda entry: entry.held)
    tokens = peak.tokens or 0
    needed = divided_up(tokens, size)
    data = arrival(log, request)
    prompt, limits = len(data["prompt_token_ids"]), settings(log, "scheduler_config")
    max_tokens = data.get("sampling_params", {}).get("max_tokens") or DEFAULT_MAX_TOKENS
    upfront = divided_up(min(prompt + max_tokens, limits["max_model_len"]), size)
    values = {
        "tokens": tokens,
        "block_size": size,
        "peak_blocks": peak.held,
        "first_blocks": planned[0].held,
        "shared": sum(len(entry.shared) for entry in entries),
        "allocated": sum(len(entry.allocated) for entry in entries),
        "prompt_tokens": prompt,
        "max_tokens": max_tokens,
        "blocks_for_max_tokens": upfront,
    }
    first, most = planned[0], {"peak": peak.held, "peak_step": peak.step}
    explanation = Explanation(
        "alloc",
        words("began", request=request, first=first.held, tokens=first.tokens, step=first.step, **most),
        "blocks = ceil(tokens / block_size)",
        f"blocks = ceil({tokens} / {size}) = {needed}",
        values,
        peak.held,
        _OURS,
        _VLLM,
        request=request,
        iteration=iteration,
        tables=[Table(words("changes"), tuple(map(words, _COLUMNS)), [_row(e) for e in entries if _changed(e)])],
        hint=f"map state --iteration {peak.step}",
    )
    explanation.more = [
        words("one_by_one", prompt=prompt, max_tokens=max_tokens, upfront=upfront),
        *_lookahead(limits, peak, needed, words),
        *_concurrency(log, size, words)[0],
    ]
    return explanation


_COLUMNS = ("iteration", "from_cache", "new", "given_back", "held", "tokens", "free_after")

_RUN_COLUMNS = ("request", "first", "from_cache", "new", "most", "when")


def _changed(entry: Holding) -> bool:
    return bool(entry.shared or entry.allocated or entry.freed)


def _row(entry: Holding) -> tuple[str, ...]:
    tokens = "–" if entry.tokens is None else str(entry.tokens)
    free = "–" if entry.free is None else str(entry.free)
    parts = (blocks_text(entry.shared), blocks_text(entry.allocated), blocks_text(entry.freed))
    return str(entry.step), *parts, str(entry.held) if entry.tokens is not None else "–", tokens, free


def _lookahead(limits: dict[str, Any], peak: Holding, needed: int, words: Words) -> list[str]:
    drafts = limits.get("num_lookahead_tokens", 0)
    if drafts and peak.held > needed:
        return [words("for_drafts", more=peak.held - needed, drafts=drafts)]
    if peak.held != needed:
        return [words("alloc_contradiction", held=peak.held)]
    return []


def _of_run(log: Log, size: int, words: Words) -> Explanation:
    requests = [e.request for e in log.events if e.kind == "request.arrived" and e.request is not None]
    rows, allocated, shared = [], 0, 0
    for request, entries in all_holdings(log, requests).items():
        planned = [entry for entry in entries if entry.tokens is not None]
        if not planned:
            rows.append((request, "–", "–", "–", "–", words("never_scheduled")))
            continue
        new, hit = sum(len(e.allocated) for e in entries), sum(len(e.shared) for e in entries)
        allocated, shared = allocated + new, shared + hit
        peak = max(entry.held for entry in planned)
        freed = [entry.step for entry in entries if entry.freed]
        steps = words.names(list(map(str, freed)))
        ended = words("given_back_in", steps=steps) if freed else words("still_held")
        rows.append((request, str(planned[0].held), str(hit), str(new), str(peak), ended))
    sentences, numbers = _concurrency(log, size, words)
    return Explanation(
        "alloc",
        words("taken", count=allocated, shared=shared, more=sentences[0]),
        "full requests = (num_gpu_blocks - 1) / ceil(max_model_len / block_size)",
        f"full requests = ({numbers['num_gpu_blocks']} - 1) / ceil({numbers['max_model_len']} / {size}) = "
        f"{numbers['full_requests']:.2f}",
        {**numbers, "block_size": size, "allocated": allocated, "shared": shared},
        numbers["full_requests"],
        _OURS,
        "vllm/v1/core/kv_cache_utils.py::get_kv_cache_capacity",
        tables=[Table(words("requests"), tuple(map(words, _RUN_COLUMNS)), rows)],
        more=sentences[1:],
        hint=f"explain alloc --request {requests[0]}" if requests else "",
    )


def _concurrency(log: Log, size: int, words: Words) -> tuple[list[str], dict[str, Any]]:
    """Sentences and numbers: how many requests of the greatest length fit, and how many ran."""
    blocks, longest = (
        settings(log, "cache_config")["num_gpu_blocks"],
        settings(log, "scheduler_config")["max_model_len"],
    )
    if blocks is None:
        raise CannotKnowError("the log cannot say: its header does not hold the number of blocks (num_gpu_blocks)")
    each = divided_up(longest, size)
    fit = (blocks - 1) / each  # block 0 is nobody's
    ran = max(len(event.data["scheduled"]) for event in plans(log))
    sentences = [
        words("usable", usable=blocks - 1, fit=f"{fit:.2f}", longest=longest, each=each),
        words("more_may_run", ran=ran),
    ]
    numbers = {
        "num_gpu_blocks": blocks,
        "max_model_len": longest,
        "blocks_a_full_request": each,
        "full_requests": fit,
        "most_in_one_iteration": ran,
    }
    return sentences, numbers
