"""Owns the state map: each request as the frontend, the scheduler and the worker have it, and the block pool.

A pure function of the log: the state is replayed, and what an iteration changed is told beside it. The keys are those
of `minivllm map state --format json`.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from minivllm.trace.reader import Log
from minivllm.trace.replay import NULL_BLOCK, RequestEntry, State

# How many blocks of each end of the free queue are told.
_NUM_HEAD, _NUM_TAIL = 12, 4

# Who keeps what is drawn: our symbol, and vLLM's.
SOURCE = {
    "frontend": {
        "ours": "minivllm.engine.output_processor:RequestState",
        "vllm": "vllm/v1/engine/output_processor.py::RequestState",
    },
    "scheduler": {"ours": "minivllm.core.request:Request", "vllm": "vllm/v1/request.py::Request"},
    "worker": {"ours": "minivllm.worker.block_table:BlockTable", "vllm": "vllm/v1/worker/block_table.py::BlockTable"},
    "pool": {"ours": "minivllm.core.block_pool:BlockPool", "vllm": "vllm/v1/core/block_pool.py::BlockPool"},
}

_NOBODY: list[str] = []

_SCHEDULER_KEYS = (
    "status",
    "num_prompt_tokens",
    "num_tokens",
    "num_computed_tokens",
    "num_scheduled",
    "num_preemptions",
    "block_ids",
    "finish_reason",
    "stop_reason",
)


def state_map(log: Log, iterations: Collection[int] | None = None) -> dict[str, Any]:
    """The state after each iteration, and what the iteration changed.

    Args:
        log: A log, or a window of one.
        iterations: Those to tell; None for all.

    Returns:
        {"iterations": [...], "requests": [id in order of arrival], "source": {place: {"ours", "vllm"}}}.
    """
    state = State(log.header, log.start)
    told = []
    for step, events in log.by_step().items():
        is_told = iterations is None or step in iterations
        before = _Picture(state) if is_told else None
        for event in events:
            state.apply(event)
        if before is not None:
            told.append(_iteration(step, before, state, log))
    return {"iterations": told, "requests": list(state.requests), "source": SOURCE}


class _Picture:
    """What is needed of a state to say later what has changed."""

    def __init__(self, state: State) -> None:
        self.requests = {i: _scheduler(entry) for i, entry in state.requests.items() if not entry.is_finished}
        self.gone = state.requests.keys() - self.requests.keys()
        self.worker = {i: _worker(state, i) for i in state.worker}
        self.frontend = {i: _frontend(state, i) for i in state.frontend}
        self.hashes = dict(state.pool.hashes)
        self.owners = _owners(state)


def _iteration(step: int, before: _Picture, state: State, log: Log) -> dict[str, Any]:
    blocks = _blocks(before, state)
    shown = [request_id for request_id in state.requests if request_id not in before.gone]
    free_queue = list(state.pool.free_queue)
    counts = dict.fromkeys(("null", "owned", "shared", "cached_free", "free"), 0)
    for block in blocks:
        counts[block["state"]] += 1
    return {
        "iteration": step,
        "requests": [_request(request_id, before, state) for request_id in shown],
        "queues": {
            "running": list(state.running),
            "waiting": list(state.waiting),
            "skipped_waiting": list(state.skipped_waiting),
        },
        "block_size": log.header.config.get("cache_config", {}).get("block_size"),
        "pool": blocks,
        "pool_counts": counts,
        "free_queue": {
            "num_blocks": len(free_queue),
            "head": free_queue[:_NUM_HEAD],
            "tail": free_queue[_NUM_HEAD:][-_NUM_TAIL:],
        },
    }


def _request(request_id: str, before: _Picture, state: State) -> dict[str, Any]:
    entry = state.requests[request_id]
    scheduler = _scheduler(entry)
    worker = _worker(state, request_id) if request_id in state.worker else None
    frontend = _frontend(state, request_id) if request_id in state.frontend else None
    return {
        "request": request_id,
        "is_new": request_id not in before.requests,
        "frontend": _with_changes(frontend, before.frontend.get(request_id)),
        "scheduler": _with_changes(scheduler, before.requests.get(request_id)),
        "worker": _with_changes(worker, before.worker.get(request_id)),
        "worker_left": request_id in before.worker and worker is None,
    }


def _scheduler(entry: RequestEntry) -> dict[str, Any]:
    return {key: getattr(entry, key) for key in _SCHEDULER_KEYS}


def _worker(state: State, request_id: str) -> dict[str, Any]:
    """The mirror. It may lag behind: the worker hears with the next plan that a request has ended."""
    mirror, truth = state.worker[request_id], state.requests.get(request_id)
    return {
        "row": mirror.row,
        "num_computed_tokens": mirror.num_computed_tokens,
        "block_ids": mirror.block_ids,
        "equal": truth is not None and mirror.block_ids == truth.block_ids,
    }


def _frontend(state: State, request_id: str) -> dict[str, Any]:
    text = state.frontend[request_id]
    return {
        "sent": text.sent,
        "held": len(text.held),
        "held_text": text.held,
        "num_tokens": text.num_tokens,
        "finish_reason": text.finish_reason,
    }


def _with_changes(now: dict[str, Any] | None, was: dict[str, Any] | None) -> dict[str, Any] | None:
    """The same, and under "changed" what each changed value was before; null for what was not there at all."""
    if now is None:
        return None
    changed = {key: (was or {}).get(key) for key in now if was is None or was[key] != now[key]}
    return {**now, "changed": changed}


def _owners(state: State) -> dict[int, list[str]]:
    """Who holds each block that somebody holds, in order of arrival."""
    owners: dict[int, list[str]] = {}
    for request_id, entry in state.requests.items():
        for block_id in entry.block_ids:
            owners.setdefault(block_id, []).append(request_id)
    return owners


def _blocks(before: _Picture, state: State) -> list[dict[str, Any]]:
    pool, owners = state.pool, _owners(state)
    blocks = []
    for block_id in range(pool.num_blocks):
        holders, block_hash = owners.get(block_id, _NOBODY), pool.hashes.get(block_id)
        held_by, had_hash = before.owners.get(block_id, _NOBODY), before.hashes.get(block_id)
        changed = holders != held_by or block_hash != had_hash
        ref_cnt = pool.ref_cnt.get(block_id, 0)
        blocks.append(
            {
                "block_id": block_id,
                "state": _block_state(block_id, ref_cnt, block_hash is not None),
                "ref_cnt": ref_cnt,
                "owners": holders,
                "hash": block_hash,
                "changed": changed,
                "happened": _happened(held_by, had_hash, holders, block_hash) if changed else [],
            }
        )
    return blocks


def _block_state(block_id: int, ref_cnt: int, is_cached: bool) -> str:
    if block_id == NULL_BLOCK:
        return "null"
    if ref_cnt:
        return "owned" if ref_cnt == 1 else "shared"
    return "cached_free" if is_cached else "free"


def _happened(held_by: list[str], had_hash: str | None, holders: list[str], block_hash: str | None) -> list[str]:
    """What happened to a block, in the order in which it can happen."""
    words = {
        "evicted": had_hash is not None and block_hash != had_hash,
        "freed": any(request_id not in holders for request_id in held_by),
        "taken": any(request_id not in held_by for request_id in holders),
        "stored": block_hash is not None and block_hash != had_hash,
    }
    return [word for word, is_so in words.items() if is_so]
