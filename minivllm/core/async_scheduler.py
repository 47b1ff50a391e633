"""Owns planning ahead: step N+1 is planned while step N runs, so tokens that nobody has seen yet count as placeholders.

Upstream: vllm/v1/core/sched/async_scheduler.py::AsyncScheduler.
"""

from __future__ import annotations

from minivllm.core.request import Request, RequestStatus
from minivllm.core.scheduler import Scheduler
from minivllm.core.scheduler_output import SchedulerOutput

# Compared for every token, and to look up a member of an enum takes longer than to compare it.
_RUNNING = RequestStatus.RUNNING


class AsyncScheduler(Scheduler):
    """A scheduler that may be a step ahead of the worker."""

    def _update_after_schedule(self, plan: SchedulerOutput) -> None:
        super()._update_after_schedule(plan)
        requests, drafts = self.requests, plan.scheduled_spec_decode_tokens
        for request_id in plan.num_scheduled_tokens:
            request = requests[request_id]
            if not request.is_prefill_chunk:
                # It will bring one token and, at best, every draft.
                request.num_output_placeholders += 1
                if request_id in drafts:
                    request.num_output_placeholders += len(drafts[request_id])

    def _update_request_with_output(
        self, request: Request, new_token_ids: list[int], is_stale: bool
    ) -> tuple[list[int], bool]:
        was_running = request.status is _RUNNING
        new_token_ids, has_stopped = super()._update_request_with_output(request, new_token_ids, is_stale)
        if not is_stale:  # a preemption has set the placeholders to 0 already
            request.num_output_placeholders -= len(new_token_ids)
            assert request.num_output_placeholders >= 0, "a step brought more tokens than it had announced"
        if was_running:
            # Now that the tokens are known, the blocks that they fill have names.
            num_known = request.num_computed_tokens - request.num_output_placeholders
            self.kv_cache_manager.cache_blocks(request, num_known)
        return new_token_ids, has_stopped
