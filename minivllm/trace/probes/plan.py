"""Owns the events of the control plane: what the scheduler took, planned, and committed.

The probes see the scheduler's answer the moment it is given, so an event holds the state of that moment.
"""

from __future__ import annotations

from dataclasses import asdict
from itertools import islice
from operator import attrgetter
from typing import Any

from minivllm.trace.events import EventLog
from minivllm.trace.wrap import Call, Probe

# How much of the free queue a step's last event carries. `why` needs the front, a picture needs a count.
NUM_FREE_HEAD = 12

_request_id = attrgetter("request_id")
_num_tokens = attrgetter("num_tokens")
_num_computed = attrgetter("num_computed_tokens")
_num_preemptions = attrgetter("num_preemptions")

_SCHEDULER = "minivllm.core.scheduler:Scheduler"


class PlanProbes:
    """`request.queued`, `schedule` and `update`.

    Args:
        log: Gets the events.
    """

    def __init__(self, log: EventLog) -> None:
        self._log = log
        # With async scheduling an output is committed one step after it was planned: which plan is of which step, and
        # which event told of it.
        self._plans: dict[int, tuple[int, int]] = {}

    def probes(self) -> dict[str, Probe]:
        return {
            f"{_SCHEDULER}.add_request": self._queued,
            f"{_SCHEDULER}.schedule": self._schedule,
            f"{_SCHEDULER}.update_from_output": self._update,
        }

    def _queued(self, call: Call) -> None:
        scheduler, request = call.args[:2]
        queue = scheduler.skipped_waiting if request.status.is_blocked else scheduler.waiting
        ahead = sum(other < request for other in queue) if scheduler.config.policy == "priority" else len(queue) - 1
        data = {
            "num_prompt_tokens": request.num_prompt_tokens,
            "position": ahead,
            "num_waiting": len(scheduler.waiting) + len(scheduler.skipped_waiting),
        }
        self._add(call, "request.queued", data, self._log.last.get("request.arrived"), request.request_id)

    def _schedule(self, call: Call) -> None:
        scheduler, plan = call.args[0], call.result
        data = _plan(scheduler, plan)
        if data["prefix_cache"]:
            data["cache_stats"] = asdict(scheduler.kv_cache_manager.prefix_cache_stats)
        seq = self._add(call, "schedule", data)
        self._plans[id(plan)] = (self._log.step, seq)

    def _update(self, call: Call) -> None:
        plan, output = call.args[1:3]
        outputs = call.result.outputs
        if id(plan) not in self._plans:
            return  # planned before the log began
        step, seq = self._plans.pop(id(plan))
        data = {
            "update_of": step,
            "sampled": dict(zip(output.req_ids, output.sampled_token_ids, strict=True)),
            "emitted": {o.request_id: o.new_token_ids for o in outputs},
            "finished": {
                o.request_id: (str(o.finish_reason), o.stop_reason) for o in outputs if o.finish_reason is not None
            },
        }
        self._add(call, "update", data, seq)

    def _add(
        self, call: Call, kind: str, data: dict[str, Any], cause: int | None = None, request: str | None = None
    ) -> int:
        return self._log.add(
            "engine_core",
            kind,
            request=request,
            cause=cause,
            data=data,
            src=call.entry.ours,
            ref=call.entry.vllm,
            wall_ns=call.end_ns,
            dur_ns=call.end_ns - call.start_ns,
        )


def _plan(scheduler: Any, plan: Any) -> dict[str, Any]:
    cached, scheduled, decisions = plan.scheduled_cached_reqs, plan.num_scheduled_tokens, scheduler.last_decisions
    manager, config = scheduler.kv_cache_manager, scheduler.config
    requests = list(map(scheduler.requests.__getitem__, scheduled))
    resumed = [i for i in cached.req_ids if i in cached.resumed_req_ids] if cached.resumed_req_ids else []
    before = dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
    block_ids = {i: blocks for i, blocks in zip(cached.req_ids, cached.new_block_ids, strict=True) if blocks}
    if new := plan.scheduled_new_reqs:
        before.update((request.req_id, request.num_computed_tokens) for request in new)
        block_ids.update((request.req_id, request.block_ids) for request in new)
    if new or resumed:  # else running requests are all there are, in the plan's order
        before = {i: before[i] for i in scheduled}
        block_ids = {i: block_ids[i] for i in scheduled if i in block_ids}
    return {
        "scheduled": list(scheduled.items()),
        "total_scheduled": plan.total_num_scheduled_tokens,
        "new": [request.req_id for request in new],
        "resumed": resumed,
        "running": [i for i in cached.req_ids if i not in resumed] if resumed else cached.req_ids,
        "preempted": [victim for victim, _, _ in decisions.preempted],
        "finished_since_last": sorted(plan.finished_req_ids),
        "block_ids": block_ids,
        "num_computed_before": before,
        "num_computed_after": dict(zip(scheduled, map(_num_computed, requests), strict=True)),
        "num_tokens": dict(zip(scheduled, map(_num_tokens, requests), strict=True)),
        "prefix_cache": decisions.prefix_lookups,
        "num_common_prefix_blocks": plan.num_common_prefix_blocks,
        "free_blocks_scheduled": manager.block_pool.free_block_queue.num_free_blocks,
        "waiting_scheduled": _ids(scheduler.waiting),
        "running_scheduled": _ids(scheduler.running),
        "spec_tokens": plan.scheduled_spec_decode_tokens,
        "budget": decisions.budget,
        "max_num_seqs": config.max_num_seqs,
        "block_size": manager.block_size,
        "not_scheduled": list(map(_decision, decisions.not_scheduled)),
        "cut": list(map(_decision, decisions.cut)),
        "preemptions": decisions.preempted,
        "stop": _decision(decisions.stop) if decisions.stop else None,
    }


def _decision(decision: Any) -> dict[str, Any]:
    return {"request": decision.request_id, "reason": str(decision.reason), "numbers": decision.numbers}


def _ids(queue: Any) -> list[str]:
    return list(map(_request_id, queue)) if queue else []


def _preempted(requests: dict[str, Any]) -> dict[str, int]:
    if not any(map(_num_preemptions, requests.values())):
        return {}
    return {i: request.num_preemptions for i, request in requests.items() if request.num_preemptions}


def queue_state(scheduler: Any) -> dict[str, Any]:
    """The queues and the pool, as they stand now."""
    pool = scheduler.kv_cache_manager.block_pool
    free_head = [block.block_id for block in islice(pool.free_block_queue, NUM_FREE_HEAD)]
    return {
        "waiting": _ids(scheduler.waiting),
        "running_after": [r.request_id for r in scheduler.running],
        "skipped_waiting": _ids(scheduler.skipped_waiting),
        "free_blocks": pool.get_num_free_blocks(),
        "free_head": free_head,
        "cached_hashes": len(pool.cached_block_hash_to_block),
        "num_preemptions": _preempted(scheduler.requests),
    }
