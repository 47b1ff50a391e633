"""Owns the five accounts of one request: its time, memory, communication, CPU, and what became of it itself."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from minivllm.analysis.answer import CannotKnowError
from minivllm.analysis.explain_alloc import holdings
from minivllm.analysis.explain_answer import Ask, Explanation, Table, arrival, plans
from minivllm.maps.latency import latency
from minivllm.maps.stages import WHOLE_STEP, requests_of
from minivllm.maps.wording import Words
from minivllm.trace.events import Event
from minivllm.trace.reader import Log

_OURS = "minivllm.analysis.explain_ledger:ledger"
_VLLM = "vllm/v1/metrics/stats.py::FinishedRequestStats"
_NS_A_MS = 1e6
_LIFE = ("life", "queue", "prefill", "decode")
_BOUNDARIES = {1: "frontend - engine core", 2: "engine core - worker", 3: "worker - device"}


def ledger(log: Log, ask: Ask) -> Explanation:
    """The five accounts of a request over the whole run.

    Raises:
        CannotKnowError: The log does not hold its arrival, its plans or its blocks.
        ValueError: It was never scheduled.
    """
    words = ask.words()
    request = ask.request or requests_of(log)[0]
    mine = [e for e in plans(log) if any(who == request for who, _ in e.data["scheduled"])]
    arrived = arrival(log, request)
    if not any(event.kind == "update" for event in log.events):
        raise CannotKnowError("the log cannot say: it does not hold what any plan brought (update)")
    if not mine:
        raise ValueError(f"{request} was never scheduled in this run: there is nothing to account for")
    time, own = _time(log, request, mine), _own(log, request, mine, arrived)
    accounts = {
        "time": time,
        "memory": _memory(log, request),
        "communication": _communication(log, request),
        "cpu": _cpu(log, request, mine),
        "request": own,
    }
    explanation = Explanation(
        "ledger",
        words("lived", request=request, **{part: time[f"{part}_iterations"] for part in _LIFE}),
        "life = queue + prefill + decode, in iterations",
        f"{time['life_iterations']} = {time['queue_iterations']} + {time['prefill_iterations']} + "
        f"{time['decode_iterations']}",
        accounts,
        {"life_iterations": time["life_iterations"], "e2e_ms": time["e2e_ms"]},
        _OURS,
        _VLLM,
        request=request,
        tables=[
            Table(words(f"title_{name}"), (words("account"), words("amount")), list(_rows(part, words)), at_left=(1,))
            for name, part in accounts.items()
            if part
        ],
        hint=f"map timeline --request {request}",
    )
    if time["e2e_ms"] is None:
        explanation.more.append(words("ledger_no_clocks"))
    if accounts["communication"] is None:
        explanation.more.append(words("ledger_no_messages"))
    if accounts["cpu"] is None:
        explanation.more.append(words("ledger_no_phases"))
    else:
        explanation.more.append(words("bears_its_share"))
    return explanation


def _time(log: Log, request: str, mine: list[Event]) -> dict[str, Any]:
    """In iterations, and in ms where the log has clocks. A request that never got a token has no decode."""
    came = next(e.step for e in log.events if e.kind == "request.arrived" and e.request == request)
    arrived, first = max(came, 0), mine[0]
    tokens = [e for e in log.events if e.kind == "update" and e.data["emitted"].get(request)]
    first_token = tokens[0].step if tokens else mine[-1].step
    last_token = tokens[-1].step if tokens else mine[-1].step
    gaps = [b.step - a.step for a, b in pairwise(tokens)]
    row: dict[str, Any] = next((r for r in latency(log, request)["requests"]), {})
    ttft, queue, e2e = (row.get(key) for key in ("ttft_ms", "queue_ms", "e2e_ms"))
    return {
        "arrived": arrived,
        "first_scheduled": first.step,
        "first_token": tokens[0].step if tokens else None,
        "last_token": tokens[-1].step if tokens else None,
        "queue_iterations": first.step - arrived,
        "prefill_iterations": first_token - first.step + 1,
        "decode_iterations": last_token - first_token,
        "life_iterations": last_token - arrived + 1,
        "ttft_iterations": first_token - arrived + 1 if tokens else None,
        "itl_iterations": sum(gaps) / len(gaps) if gaps else None,
        "queue_ms": queue,
        "prefill_ms": _prefill_ms(log, request, first),
        "decode_ms": None if e2e is None or ttft is None else e2e - ttft,
        "ttft_ms": ttft,
        "itl_ms": row.get("itl_ms"),
        "e2e_ms": e2e,
    }


def _prefill_ms(log: Log, request: str, first: Event) -> float | None:
    """From its first plan to its first token at the caller."""
    for event in log.events:
        if event.kind == "output.text" and event.request == request and event.data["tokens"]:
            known = event.wall_ns is not None and first.wall_ns is not None
            return ((event.wall_ns or 0) - (first.wall_ns or 0)) / _NS_A_MS if known else None
    return None


def _memory(log: Log, request: str) -> dict[str, Any]:
    """Blocks over time. A block-iteration is one block held for one iteration."""
    entries = {entry.step: entry for entry in holdings(log, request)}
    held, over_time = 0, []
    for event in plans(log):
        entry = entries.get(event.step)
        if entry is not None and entry.tokens is not None:
            held = entry.held
        elif entry is not None and entry.freed:
            held = 0
        if held:
            over_time.append([event.step, held])
        if entry is not None and entry.freed:
            held = 0
    freed = [[entry.step, len(entry.freed)] for entry in entries.values() if entry.freed]
    block = log.header.kv_cache.get("bytes_per_block")
    peak = max((count for _, count in over_time), default=0)
    return {
        "peak_blocks": peak,
        "peak_bytes": None if block is None else peak * block,
        "block_iterations": sum(count for _, count in over_time),
        "shared_blocks": sum(len(entry.shared) for entry in entries.values()),
        "allocated_blocks": sum(len(entry.allocated) for entry in entries.values()),
        "freed": freed,
        "over_time": over_time,
    }


def _communication(log: Log, request: str) -> dict[str, Any] | None:
    """Messages that carried it, by boundary; its part of one that carried several is the same for each."""
    messages = [e.data for e in log.events if e.kind == "message"]
    if not messages:
        return None
    account: dict[str, Any] = {}
    for boundary, name in _BOUNDARIES.items():
        carried = [m for m in messages if m["boundary"] == boundary and request in m["requests"]]
        account[f"boundary_{boundary}"] = {
            "between": name,
            "messages": len(carried),
            "bytes": sum(m["bytes"] for m in carried),
            "own_bytes": sum(m["bytes"] / len(m["requests"]) for m in carried),
        }
    return account


def _cpu(log: Log, request: str, mine: list[Event]) -> dict[str, Any] | None:
    """Its share of the time of each phase, in ms."""
    spans = [e for e in log.events if e.kind == "span" and e.dur_ns is not None and e.data["name"] != WHOLE_STEP]
    if not spans:
        return None
    by_step = {event.step: event.data for event in mine}
    account: dict[str, float] = {}
    for span in spans:
        plan = by_step.get(span.step)
        if plan is None:
            continue
        scheduled, name = dict(plan["scheduled"]), span.data["name"]
        tokens = scheduled[request] / sum(scheduled.values())
        share = tokens if name in ("forward", "replay") else 1 / len(scheduled)
        account[name] = account.get(name, 0.0) + (span.dur_ns or 0) * share / _NS_A_MS
    return {"phases_ms": account, "total_ms": sum(account.values())}


def _own(log: Log, request: str, mine: list[Event], arrived: dict[str, Any]) -> dict[str, Any]:
    """Tokens, preemptions, end, text."""
    computed = recomputed = reached = 0
    for event in mine:
        before, count = event.data["num_computed_before"][request], dict(event.data["scheduled"])[request]
        computed += count
        recomputed += max(0, min(before + count, reached) - before)
        reached = max(reached, before + count)
    cached = [e.data["num_computed_before"][request] for e in mine if request in e.data["new"]]
    again = [e.data["num_computed_before"][request] for e in mine if request in e.data["resumed"]]
    texts = [e.data for e in log.events if e.kind == "output.text" and e.request == request]
    return {
        "prompt_tokens": len(arrived["prompt_token_ids"]),
        "cached_tokens": sum(cached),
        "cached_again": sum(again),
        "computed_tokens": computed,
        "recomputed_tokens": recomputed,
        "sampled_tokens": sum(len(e.data["emitted"].get(request, [])) for e in log.events if e.kind == "update"),
        "preemptions": sum(event.data["preempted"].count(request) for event in plans(log)),
        "finish_reason": next((t["finish_reason"] for t in texts if t["finish_reason"]), None) or _ended(log, request),
        "stop_reason": next((t["stop_reason"] for t in texts if t["finish_reason"]), None),
        "characters_sent": texts[-1]["sent"] if texts else 0,
        "most_held": max((len(t["held"]) for t in texts), default=0),
    }


def _ended(log: Log, request: str) -> str | None:
    for event in log.events:
        if event.kind == "update" and request in event.data["finished"]:
            reason: str = event.data["finished"][request][0]
            return reason
        if event.kind == "requests.aborted" and request in event.data["ended"]:
            return "abort"
    return None


def _rows(account: dict[str, Any], words: Words) -> Iterator[tuple[str, ...]]:
    """What the screen has of an account: no lists, and no numbers that are not known."""
    for key, value in account.items():
        if key == "over_time":
            continue
        if isinstance(value, dict) and "between" in value:
            yield words(f"row_{key}"), words("messages", count=value["messages"], bytes=value["bytes"])
        elif isinstance(value, dict):
            yield from ((part, f"{ms:.3f} ms") for part, ms in value.items())
        elif key == "freed":
            told = words.names([words("back_in", count=count, step=step) for step, count in value])
            yield words("given_back"), told or words("not_yet")
        elif value is not None:
            yield words(f"row_{key}"), _shown(key, value)


def _shown(key: str, value: Any) -> str:
    if key.endswith("_ms"):
        return f"{value:.3f} ms"
    return f"{value:.2f}" if isinstance(value, float) else str(value)
