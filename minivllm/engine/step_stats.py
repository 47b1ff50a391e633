"""Owns what the core counts for the frontend's metrics: it goes along with the next outputs, and decides nothing.

Upstream: vllm/v1/core/sched/scheduler.py::Scheduler.make_stats.
"""

from __future__ import annotations

import time

import msgspec

from minivllm.core.messages import EngineCoreOutputs, SchedulerStats
from minivllm.core.scheduler import Scheduler
from minivllm.core.scheduler_output import SchedulerOutput


class StepStats:
    """Collects over steps until there are outputs to go along with: a chunk of a prompt brings none."""

    def __init__(self) -> None:
        self._num_preemptions = 0
        self._scheduled: dict[str, float] = {}
        self._step_tokens: list[int] = []

    def note_plan(self, plan: SchedulerOutput) -> None:
        """Take note of a plan that starts to run now."""
        if plan.total_num_scheduled_tokens > 0:
            now = time.monotonic()
            self._scheduled.update((new.req_id, now) for new in plan.scheduled_new_reqs)
            self._step_tokens.append(plan.total_num_scheduled_tokens)
        self._num_preemptions += len(plan.preempted_req_ids)

    def attach(self, outputs: EngineCoreOutputs, scheduler: Scheduler) -> EngineCoreOutputs:
        """The outputs with the statistics."""
        if not outputs.outputs:
            return outputs
        manager = scheduler.kv_cache_manager
        stats = SchedulerStats(
            num_running_reqs=len(scheduler.running),
            num_waiting_reqs=len(scheduler.waiting) + len(scheduler.skipped_waiting),
            num_skipped_waiting_reqs=len(scheduler.skipped_waiting),
            kv_cache_usage=manager.block_pool.get_usage(),
            prefix_cache_queries=manager.prefix_cache_stats.queries,
            prefix_cache_hits=manager.prefix_cache_stats.hits,
            num_preemptions=self._num_preemptions,
            scheduled=self._scheduled,
            step_tokens=self._step_tokens,
            timestamp=time.monotonic(),
        )
        self._scheduled, self._step_tokens = {}, []
        return msgspec.structs.replace(outputs, scheduler_stats=stats)
