"""Owns the plan map: iteration by iteration who got how many tokens, who did not and why, and what it became.

A pure function of the log. The keys are those of `minivllm trace --json`.
"""

from __future__ import annotations

from typing import Any

from minivllm.maps import narrate
from minivllm.maps.reasons import detail
from minivllm.trace.events import Event
from minivllm.trace.reader import Log

_BATCH_KEYS = (
    "order",
    "places",
    "query_start_loc",
    "seq_lens",
    "positions",
    "slot_mapping",
    "block_table",
    "logits_indices",
    "num_tokens",
    "num_tokens_padded",
    "graph_mode",
    "attention_backend",
)


def plan_map(log: Log) -> dict[str, Any]:
    """Everything that the log says about plans.

    Returns:
        {"iterations": [...], "requests": [...]}, both in order.
    """
    by_step: dict[int, list[Event]] = {}
    for event in log.events:
        if event.step >= 0:
            by_step.setdefault(event.step, []).append(event)
    # An output belongs to the plan that made it, which with async scheduling is of an earlier step.
    updates = [event for event in log.events if event.kind == "update"]
    sampled = {event.data["update_of"]: event.data["sampled"] for event in updates}
    texts = {event.data["update_of"]: _texts(by_step[event.step]) for event in updates}
    requests = _requests(log)
    iterations = []
    tables: dict[str, list[int]] = {}  # a batch tells only what changed
    for step in sorted(by_step):
        iteration = _iteration(step, by_step[step], sampled.get(step, {}), texts.get(step, {}))
        if batch := iteration["batch"]:
            tables.update(batch["block_table"])
            batch["block_table"] = {i: tables[i] for i in batch["order"] if i in tables}
        iteration["narration"] = narrate.narrate(iteration, requests)
        iterations.append(iteration)
    return {"iterations": iterations, "requests": list(requests.values())}


def is_plain_decode(iteration: dict[str, Any], requests: dict[str, dict[str, Any]]) -> bool:
    """Whether nothing happened in an iteration but that requests which had been running got their next token.

    Args:
        iteration: One entry of `plan_map`'s iterations.
        requests: By id, what is known of each request.
    """
    events = ("arrived", "refused", "aborted", "not_scheduled", "told_finished", "cut", "preemptions", "finished")
    if not iteration["scheduled"] or any(iteration[key] for key in events):
        return False
    return all(
        entry["kind"] == "running"
        and entry["num_tokens"] == 1
        and entry["num_computed_before"] >= requests[entry["request"]]["num_prompt_tokens"]
        for entry in iteration["scheduled"]
    )


def _requests(log: Log) -> dict[str, dict[str, Any]]:
    requests: dict[str, dict[str, Any]] = {}
    for event in log.events:
        if event.kind == "request.arrived" and event.request is not None:
            requests[event.request] = {
                "request": event.request,
                "arrived": event.step,
                "prompt": event.data.get("prompt"),
                "num_prompt_tokens": len(event.data["prompt_token_ids"]),
                "output_token_ids": [],
                "text": "",
                "finish_reason": None,
                "stop_reason": None,
            }
        elif event.kind == "request.refused" and event.request is not None:
            requests[event.request]["finish_reason"] = "refused"
        elif event.kind == "requests.aborted":
            for request_id in event.data["ended"]:
                requests[request_id]["finish_reason"] = "abort"
        elif event.kind == "output.text" and event.request is not None:
            requests[event.request]["text"] += event.data["delta"]
        elif event.kind == "update":
            for request_id, token_ids in event.data["emitted"].items():
                requests[request_id]["output_token_ids"] += token_ids
            for request_id, (reason, stop_reason) in event.data["finished"].items():
                requests[request_id].update(finish_reason=reason, stop_reason=stop_reason)
    return requests


def _texts(events: list[Event]) -> dict[str, dict[str, Any]]:
    return {event.request: event.data for event in events if event.kind == "output.text" and event.request}


def _iteration(
    step: int, events: list[Event], sampled: dict[str, list[int]], texts: dict[str, dict[str, Any]]
) -> dict[str, Any]:
    data = {event.kind: event.data for event in events}
    plan = data.get("schedule")
    batch = data.get("prepare_inputs")
    update = data.get("update", {"finished": {}})
    end = data.get("step.end", {})
    return {
        "iteration": step,
        "arrived": [e.request for e in events if e.kind == "request.arrived"],
        "refused": [[e.request, e.data["message"]] for e in events if e.kind == "request.refused"],
        "aborted": [i for e in events if e.kind == "requests.aborted" for i in e.data["ended"]],
        "idle": plan is None,
        "budget": _budget(plan),
        "scheduled": _scheduled(plan) if plan else [],
        "not_scheduled": _not_scheduled(plan) if plan else [],
        "told_finished": plan["finished_since_last"] if plan else [],
        "cut": [_reason(d) for d in plan["cut"]] if plan else [],
        "stop": _reason(plan["stop"]) if plan and plan["stop"] else None,
        "preempted": plan["preempted"] if plan else [],
        "preemptions": plan["preemptions"] if plan else [],
        "finished": [
            {"request": i, "reason": reason, "stop_reason": stop} for i, (reason, stop) in update["finished"].items()
        ],
        "batch": {key: batch[key] for key in _BATCH_KEYS} if batch else None,
        "sampled": {i: tokens for i, tokens in sampled.items() if tokens},
        "token_texts": {i: [text for _, text in e["tokens"]] for i, e in texts.items()},
        "text": {i: e["delta"] for i, e in texts.items()},
        "blocks": {
            "free": end.get("free_blocks"),
            "owned": end.get("owned_blocks"),
            "cached": end.get("cached_free_blocks"),
            "allocated": _allocated(plan) if plan else {},
            "freed": end.get("freed", []),
            "evicted": end.get("evicted", []),
        },
        "num_running": len(plan["running_scheduled"]) if plan else 0,
        "num_waiting": len(plan["waiting_scheduled"]) if plan else 0,
        "source": {e.kind: {"ours": e.src, "vllm": e.ref} for e in events if e.kind in ("schedule", "prepare_inputs")},
    }


def _budget(plan: dict[str, Any] | None) -> dict[str, int] | None:
    if plan is None:
        return None
    return {"tokens": plan["budget"], "used": plan["total_scheduled"], "max_num_seqs": plan["max_num_seqs"]}


def _scheduled(plan: dict[str, Any]) -> list[dict[str, Any]]:
    kinds = {i: kind for kind in ("new", "resumed", "running") for i in plan[kind]}
    hits = {i: hit for i, _, hit in plan["prefix_cache"]}
    return [
        {
            "request": i,
            "kind": kinds[i],
            "num_tokens": num_tokens,
            "num_computed_before": plan["num_computed_before"][i],
            "num_tokens_known": plan["num_tokens"][i],
            "num_cached": hits.get(i, 0),
            "num_drafts": len(plan["spec_tokens"].get(i, ())),
        }
        for i, num_tokens in plan["scheduled"]
    ]


def _reason(decision: dict[str, Any]) -> dict[str, Any]:
    reason, numbers = decision["reason"], decision["numbers"]
    return {"request": decision["request"], "reason": reason, "detail": detail(reason, numbers), "numbers": numbers}


def _not_scheduled(plan: dict[str, Any]) -> list[dict[str, Any]]:
    """Those that were looked at, with their own reason; then those behind the point where the loop stopped."""
    looked_at = [_reason(d) for d in plan["not_scheduled"]]
    seen = {entry["request"] for entry in looked_at} | {i for i, _ in plan["scheduled"]}
    stop = _reason(plan["stop"]) if plan["stop"] else None
    if stop is None:
        return looked_at
    in_line = [*plan["running_scheduled"], *plan["waiting_scheduled"]]
    if stop["request"] in in_line:
        in_line.remove(stop["request"])
        in_line.insert(0, stop["request"])
    for request_id in in_line:
        if request_id in seen:
            continue
        is_behind = request_id != stop["request"]
        text = f"behind {stop['request']}, where the loop stopped" if is_behind else stop["detail"]
        looked_at.append({**stop, "request": request_id, "detail": text})
    return looked_at


def _allocated(plan: dict[str, Any]) -> dict[str, list[int]]:
    """Blocks that each request gained; for an admitted one without those of its prefix hit."""
    hit_tokens = {i: hit for i, _, hit in plan["prefix_cache"]}
    allocated = {}
    for request_id, block_ids in plan["block_ids"].items():
        num_hit_blocks = hit_tokens.get(request_id, 0) // plan["block_size"]
        if gained := block_ids[num_hit_blocks:]:
            allocated[request_id] = gained
    return allocated
