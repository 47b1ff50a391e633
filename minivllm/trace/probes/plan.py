"""Owns the events of the control plane: what the scheduler took, planned, and committed.

The probes see the scheduler's answer the moment it is given, so an event holds the state of that moment.
"""

from __future__ import annotations

from typing import Any

from minivllm.trace.events import EventLog
from minivllm.trace.wrap import Call, Probe

# How much of the free queue a step's last event carries. `why` needs the front, a picture needs a count.
NUM_FREE_HEAD = 12

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
        seq = self._add(call, "schedule", _plan(scheduler, plan))
        self._plans[id(plan)] = (self._log.step, seq)

    def _update(self, call: Call) -> None:
        plan, output = call.args[1:3]
        outputs = call.result.outputs
        step, seq = self._plans.pop(id(plan))
        data = {
            "update_of": step,
            "sampled": {i: list(output.sampled_token_ids[k]) for i, k in output.req_id_to_index.items()},
            "emitted": {o.request_id: list(o.new_token_ids) for o in outputs},
            "finished": {
                o.request_id: [str(o.finish_reason), o.stop_reason] for o in outputs if o.finish_reason is not None
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
    cached = plan.scheduled_cached_reqs
    before = {new.req_id: new.num_computed_tokens for new in plan.scheduled_new_reqs}
    before.update(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
    block_ids = {new.req_id: new.block_ids for new in plan.scheduled_new_reqs}
    block_ids.update({i: blocks for i, blocks in zip(cached.req_ids, cached.new_block_ids, strict=True) if blocks})
    decisions = scheduler.last_decisions
    order = list(plan.num_scheduled_tokens)
    resumed = cached.resumed_req_ids
    requests = [scheduler.requests[i] for i in order]
    return {
        "scheduled": [list(item) for item in plan.num_scheduled_tokens.items()],
        "total_scheduled": plan.total_num_scheduled_tokens,
        "new": [new.req_id for new in plan.scheduled_new_reqs],
        "resumed": [i for i in cached.req_ids if i in resumed] if resumed else [],
        "running": [i for i in cached.req_ids if i not in resumed] if resumed else list(cached.req_ids),
        "preempted": [victim for victim, _, _ in decisions.preempted],
        "finished_since_last": sorted(plan.finished_req_ids),
        "block_ids": {i: list(block_ids[i]) for i in order if block_ids.get(i)} if block_ids else {},
        "num_computed_before": {i: before[i] for i in order},
        "num_computed_after": {r.request_id: r.num_computed_tokens for r in requests},
        "num_tokens": {r.request_id: r.num_tokens for r in requests},
        "prefix_cache": [list(lookup) for lookup in decisions.prefix_lookups],
        "num_common_prefix_blocks": plan.num_common_prefix_blocks,
        "free_blocks_scheduled": scheduler.kv_cache_manager.block_pool.get_num_free_blocks(),
        "waiting_scheduled": [r.request_id for r in scheduler.waiting],
        "running_scheduled": [r.request_id for r in scheduler.running],
        "spec_tokens": {i: list(tokens) for i, tokens in plan.scheduled_spec_decode_tokens.items()},
        "budget": decisions.budget,
        "max_num_seqs": scheduler.config.max_num_seqs,
        "block_size": scheduler.kv_cache_manager.block_size,
        "not_scheduled": [_decision(d) for d in decisions.not_scheduled],
        "cut": [_decision(d) for d in decisions.cut],
        "preemptions": [list(preemption) for preemption in decisions.preempted],
        "stop": _decision(decisions.stop) if decisions.stop else None,
    }


def _decision(decision: Any) -> dict[str, Any]:
    return {"request": decision.request_id, "reason": str(decision.reason), "numbers": decision.numbers}


def queue_state(scheduler: Any) -> dict[str, Any]:
    """The queues and the pool, as they stand now."""
    pool = scheduler.kv_cache_manager.block_pool
    free_head = [block.block_id for block, _ in zip(pool.free_block_queue, range(NUM_FREE_HEAD), strict=False)]
    return {
        "waiting": [r.request_id for r in scheduler.waiting],
        "running_after": [r.request_id for r in scheduler.running],
        "skipped_waiting": [r.request_id for r in scheduler.skipped_waiting],
        "free_blocks": pool.get_num_free_blocks(),
        "free_head": free_head,
        "cached_hashes": len(pool.cached_block_hash_to_block),
        "num_preemptions": {i: r.num_preemptions for i, r in scheduler.requests.items() if r.num_preemptions},
    }
