"""Owns reading the whole state off a live engine: no probe, no log, and nothing is changed.

Keyframes of a log are such snapshots, and they are what the replay of a log is held to. Everything is read by its
name, so an engine with the same names can be read as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# How much of a block's hash is kept: enough to tell blocks of one run apart.
HASH_DIGITS = 16

Entry = dict[str, Any]


def snapshot(
    core: Any,
    runner: Any = None,
    output_processor: Any = None,
    *,
    plan: Any = None,
    known: Mapping[str, Entry] | None = None,
) -> dict[str, Any]:
    """The state of an engine between two of its steps, in the form of `replay.State.as_dict`.

    Args:
        core: An EngineCore.
        runner: The GPUModelRunner in the same process; None leaves the worker empty.
        output_processor: The frontend's; None leaves the frontend empty.
        plan: The plan of the step that was made last, which says how many tokens it gave to whom.
        known: Entries of requests that the core has forgotten, or what else is known of those that it has; requests
            appear in this order, then in the scheduler's.
    """
    scheduler = core.scheduler
    manager = scheduler.kv_cache_manager
    scheduled = plan.num_scheduled_tokens if plan is not None else {}
    requests = {req_id: dict(entry) for req_id, entry in (known or {}).items()}
    for req_id, request in scheduler.requests.items():
        live = request_entry(request)
        live["block_ids"] = list(manager.get_block_ids(req_id))
        live["num_scheduled"] = scheduled.get(req_id, 0)
        requests[req_id] = {**requests.get(req_id, {}), **live}
    return {
        "requests": requests,
        "waiting": [request.request_id for request in scheduler.waiting],
        "skipped_waiting": [request.request_id for request in scheduler.skipped_waiting],
        "running": [request.request_id for request in scheduler.running],
        "in_flight": [_plan_in_flight(submitted) for submitted, _ in reversed(core.batch_queue)],
        "pool": _pool(manager.block_pool),
        "worker": {} if runner is None else _worker(runner.batch),
        "frontend": {} if output_processor is None else frontend_snapshot(output_processor),
    }


def request_entry(request: Any) -> Entry:
    """What the scheduler's record of a request says; its blocks are in the KV manager's books."""
    status = request.status
    return {
        "status": status.name,
        "num_prompt_tokens": request.num_prompt_tokens,
        "num_tokens": request.num_tokens,
        "num_computed_tokens": request.num_computed_tokens,
        "num_scheduled": 0,
        "num_preemptions": request.num_preemptions,
        "num_in_flight_tokens": request.num_in_flight_tokens,
        "num_stale_output_tokens": request.num_stale_output_tokens,
        "block_ids": [],
        "finish_reason": str(status.finish_reason) if status.is_finished else None,
        "stop_reason": request.stop_reason,
    }


def frontend_snapshot(output_processor: Any) -> dict[str, Entry]:
    """What callers have been sent of each completion that has tokens, and what is held back."""
    states = output_processor.request_states.items()
    return {
        req_id: {
            "sent": state.sent_chars,
            "held": state.detokenizer.output_text[state.sent_chars :] + _unfinished(state.detokenizer._stream),
            "num_tokens": len(state.detokenizer.token_ids),
            "finish_reason": None,  # one that has ended is not there any more
        }
        for req_id, state in states
        if state.detokenizer.token_ids
    }


def _unfinished(stream: Any) -> str:
    """The text of tokens whose last character is not complete."""
    if stream is None or not stream._pending:
        return ""
    text: str = stream._decode(stream._settled + stream._pending)
    return text[len(stream._settled_text) :]


def _plan_in_flight(plan: Any) -> dict[str, dict[str, int]]:
    drafts = plan.scheduled_spec_decode_tokens
    return {
        "scheduled": dict(plan.num_scheduled_tokens),
        "num_drafts": {req_id: len(tokens) for req_id, tokens in drafts.items()},
    }


def _pool(pool: Any) -> dict[str, Any]:
    blocks = pool.blocks
    return {
        "num_blocks": pool.num_gpu_blocks,
        "ref_cnt": {block.block_id: block.ref_cnt for block in blocks if block.ref_cnt},
        "hashes": {
            block.block_id: block.block_hash.hex()[:HASH_DIGITS] for block in blocks if block.block_hash is not None
        },
        "free_queue": [block.block_id for block in pool.free_block_queue],
    }


def _worker(batch: Any) -> dict[str, Entry]:
    """Who has which slot or row, and what the worker's own columns say of it."""
    columns = batch.columns
    places: dict[str, int] = batch._slots if hasattr(batch, "_slots") else batch._rows
    table = columns.block_table
    return {
        req_id: {
            "row": place,
            "num_computed_tokens": int(columns.num_computed[place]),
            "block_ids": table.ids[place, : int(table.num_blocks[place])].tolist(),
        }
        for req_id, place in places.items()
    }
