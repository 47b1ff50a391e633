"""Owns the plan map: iteration by iteration who got how many tokens, who did not and why, and what it became.

A pure function of the log. The keys are those of `minivllm trace --json`.
"""

from __future__ import annotations

from typing import Any

from minivllm.maps import narrate, reasons
from minivllm.maps.happenings import happenings
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


def plan_map(log: Log, lang: str = "en") -> dict[str, Any]:
    """Everything that the log, or a window of it, says about plans.

    Args:
        log: What was read.
        lang: Language of the sentences: "en" or "zh".

    Returns:
        {"iterations": [...], "requests": [...], "lang": lang}, both lists in order.
    """
    requests = _requests(log)
    outputs = _Outputs(log)
    cache = log.header.config.get("cache_config", {})
    caching = cache.get("enable_prefix_caching", True)
    tables = {i: worker["block_ids"] for i, worker in (log.start or {}).get("worker", {}).items()}
    iterations = []
    unfinished = {i for i, text in (log.start or {}).get("frontend", {}).items() if _is_unfinished(text)}
    for step, events in sorted(log.by_step().items()):
        iteration = _iteration(step, events, lang) | happenings(events, caching=caching) | outputs.of(step)
        _fill_tables(iteration["batch"], tables)
        iteration["block_size"] = cache.get("block_size")
        iteration["was_unfinished"] = sorted(unfinished)
        _note_unfinished(iteration["texts"], unfinished)
        iteration["finished"] += _stopped_by_text(iteration)
        for entry in iteration["finished"]:
            entry["num_output_tokens"] = requests[entry["request"]]["num_output_tokens"]
        iteration["narration"] = narrate.narrate(iteration, requests, lang)
        iterations.append(iteration)
    return {"iterations": iterations, "requests": list(requests.values()), "lang": lang}


def _fill_tables(batch: dict[str, Any] | None, tables: dict[str, list[int]]) -> None:
    """A batch tells only the rows of the block table that changed: put in the others."""
    if batch is not None:
        tables.update(batch["block_table"])
        batch["block_table"] = {i: tables[i] for i in batch["order"] if i in tables}


def _note_unfinished(texts: list[dict[str, Any]], unfinished: set[str]) -> None:
    """Keep in mind whose last token was a part of a character."""
    for text in texts:
        unfinished.discard(text["request"])
        if _is_unfinished(text):
            unfinished.add(text["request"])


def _is_unfinished(text: dict[str, Any]) -> bool:
    """Whether what the frontend holds back ends with a part of a character."""
    return text["finish_reason"] is None and (text["held"] or "").endswith("\ufffd")


def _stopped_by_text(iteration: dict[str, Any]) -> list[dict[str, Any]]:
    """Requests whose text met a stop string: the frontend found it, and the core only heard of an abort."""
    ended = {entry["request"] for entry in iteration["aborts"] if entry["phase"] == "frontend"}
    return [
        {"request": text["request"], "reason": text["finish_reason"], "stop_reason": text["stop_reason"]}
        for text in iteration["texts"]
        if text["finish_reason"] == "stop" and text["request"] in ended
    ]


class _Outputs:
    """What each plan brought. With async scheduling that comes in a later iteration than the plan."""

    def __init__(self, log: Log) -> None:
        self._updates = {event.data["update_of"]: event for event in log.events if event.kind == "update"}
        self._texts: dict[int, dict[str, Event]] = {}
        for event in log.events:
            if event.kind == "output.text" and event.request is not None:
                self._texts.setdefault(event.step, {})[event.request] = event

    def of(self, step: int) -> dict[str, Any]:
        """Of one plan: what was sampled, whose sample was in vain, the tokens as texts, and what was sent."""
        update = self._updates.get(step)
        if update is None:
            return {"sampled": {}, "thrown_away": [], "is_late": False, "token_texts": {}, "text": {}, "stop_texts": {}}
        texts = self._texts.get(update.step, {})
        sampled = {i: tokens for i, tokens in update.data["sampled"].items() if tokens}
        token_texts = {i: [text for _, text in event.data["tokens"]] for i, event in texts.items()}
        return {
            "sampled": sampled,
            "thrown_away": [i for i in sampled if i not in update.data["emitted"]],
            "is_late": update.step > step,
            "token_texts": token_texts,
            "text": {i: event.data["delta"] for i, event in texts.items()},
            "stop_texts": self._stop_texts(step),
        }

    def _stop_texts(self, step: int) -> dict[str, str]:
        """The last token of each request that got any in a step, as text."""
        return {i: e.data["tokens"][-1][1] for i, e in self._texts.get(step, {}).items() if e.data["tokens"]}


def is_plain_decode(iteration: dict[str, Any], requests: dict[str, dict[str, Any]], before: dict[str, Any]) -> bool:
    """Whether nothing happened in an iteration but that the requests which had been running got their next token.

    Args:
        iteration: One entry of `plan_map`'s iterations.
        requests: By id, what is known of each request.
        before: The iteration before it: whoever waited there for the same reason still waits.
    """
    events = ("arrived", "refused", "aborted", "told_finished", "cut", "preemptions", "finished", "moved")
    if not iteration["scheduled"] or any(iteration[key] for key in events):
        return False
    if any(_told(iteration, key) != _told(before, key) for key in ("scheduled", "not_scheduled")):
        return False
    return all(
        entry["kind"] == "running"
        and entry["num_tokens"] == 1
        and entry["num_computed_before"] >= requests[entry["request"]]["num_prompt_tokens"]
        for entry in iteration["scheduled"]
    )


def _told(iteration: dict[str, Any], key: str) -> list[tuple[str, str]]:
    return [(entry["request"], entry.get("reason", "")) for entry in iteration[key]]


def _requests(log: Log) -> dict[str, dict[str, Any]]:
    requests: dict[str, dict[str, Any]] = {}
    for request_id, entry in (log.start or {}).get("requests", {}).items():
        request = requests[request_id] = _new_request(request_id, entry["arrived"], entry["num_prompt_tokens"])
        request["num_output_tokens"] = entry["num_tokens"] - entry["num_prompt_tokens"]
        request.update(finish_reason=entry.get("finish_reason"), stop_reason=entry.get("stop_reason"))
    max_model_len = log.header.config.get("scheduler_config", {}).get("max_model_len")
    for event in log.events:
        if event.kind == "request.arrived" and event.request is not None:
            request = _new_request(event.request, event.step, len(event.data["prompt_token_ids"]))
            request.update({key: event.data.get(key) for key in ("prompt", "parent", "index")})
            requests[event.request] = request
        elif event.kind == "request.refused" and event.request is not None:
            requests[event.request]["finish_reason"] = "refused"
        elif event.kind == "requests.aborted":
            for request_id in event.data["ended"]:
                # Whose text has met a stop string is aborted in the core only.
                requests[request_id]["finish_reason"] = requests[request_id]["finish_reason"] or "abort"
        elif event.kind == "output.text" and event.request is not None:
            request = requests[event.request]
            request["text"] += event.data["delta"]
            if event.data["finish_reason"] is not None:  # of a stop string only the frontend knows
                reasons = {key: event.data.get(key) for key in ("finish_reason", "stop_reason")}
                request.update(reasons)
        elif event.kind == "update":
            for request_id, token_ids in event.data["emitted"].items():
                requests[request_id]["output_token_ids"] += token_ids
                requests[request_id]["num_output_tokens"] += len(token_ids)
            for request_id, (reason, stop_reason) in event.data["finished"].items():
                requests[request_id].update(finish_reason=reason, stop_reason=stop_reason)
                length = requests[request_id]["num_prompt_tokens"] + requests[request_id]["num_output_tokens"]
                requests[request_id]["reached_model_length"] = reason == "length" and length == max_model_len
    return requests


def _new_request(request_id: str, arrived: int, num_prompt_tokens: int) -> dict[str, Any]:
    return {
        "request": request_id,
        "arrived": arrived,
        "prompt": None,
        "parent": None,
        "num_prompt_tokens": num_prompt_tokens,
        "num_output_tokens": 0,
        "output_token_ids": [],
        "text": "",
        "finish_reason": None,
        "stop_reason": None,
    }


def _iteration(step: int, events: list[Event], lang: str) -> dict[str, Any]:
    data = {event.kind: event.data for event in events}
    plan = data.get("schedule")
    batch = data.get("prepare_inputs")
    update = data.get("update", {"finished": {}})
    end = data.get("step.end", {})
    return {
        "iteration": step,
        "idle": plan is None,
        "budget": _budget(plan),
        "scheduled": _scheduled(plan) if plan else [],
        "not_scheduled": _not_scheduled(plan, lang) if plan else [],
        "told_finished": plan["finished_since_last"] if plan else [],
        "cut": [_reason(d, lang) for d in plan["cut"]] if plan else [],
        "stop": _reason(plan["stop"], lang) if plan and plan["stop"] else None,
        "preempted": plan["preempted"] if plan else [],
        "preemptions": plan["preemptions"] if plan else [],
        "finished": [
            {"request": i, "reason": reason, "stop_reason": stop} for i, (reason, stop) in update["finished"].items()
        ],
        "batch": {key: batch[key] for key in _BATCH_KEYS} if batch else None,
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


def _reason(decision: dict[str, Any], lang: str) -> dict[str, Any]:
    reason, numbers = decision["reason"], decision["numbers"]
    words = reasons.detail(reason, numbers, lang)
    return {"request": decision["request"], "reason": reason, "detail": words, "numbers": numbers}


def _not_scheduled(plan: dict[str, Any], lang: str) -> list[dict[str, Any]]:
    """Those that were looked at, with their own reason; then those behind the point where the loop stopped."""
    looked_at = [_reason(d, lang) for d in plan["not_scheduled"]]
    seen = {entry["request"] for entry in looked_at} | {i for i, _ in plan["scheduled"]}
    stop = _reason(plan["stop"], lang) if plan["stop"] else None
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
        text = reasons.behind(stop["request"], lang) if is_behind else stop["detail"]
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
