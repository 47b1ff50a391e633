"""Owns the second half of a step: which waiting requests join the running ones.

Upstream: the second loop of vllm/v1/core/sched/scheduler.py::Scheduler.schedule.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from minivllm.core.decisions import Decision, Reason
from minivllm.core.free_block_queue import KVCacheBlock
from minivllm.core.kv_cache_manager import BlockShortage
from minivllm.core.request import Request, RequestStatus
from minivllm.core.request_queue import RequestQueue
from minivllm.core.schedule_running import why_less
from minivllm.core.step import PauseState, Step

if TYPE_CHECKING:
    from minivllm.core.scheduler import Scheduler

_BLOCKED_REASON = {
    RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR: Reason.WAITING_FOR_GRAMMAR,
    RequestStatus.WAITING_FOR_REMOTE_KVS: Reason.WAITING_FOR_REMOTE_KVS,
    RequestStatus.WAITING_FOR_STREAMING_REQ: Reason.WAITING_FOR_STREAMING_REQ,
}


def schedule_waiting(scheduler: Scheduler, step: Step) -> None:
    """Admit waiting requests from the front until a rule stops the loop; who is passed over keeps its turn."""
    skipped: list[Request] = []
    while step.decisions.stop is None:
        queue = _select_waiting_queue_for_scheduling(scheduler)
        step.decisions.stop = _why_admit_no_one(scheduler, step, queue, bool(skipped))
        if step.decisions.stop is not None or queue is None:
            break
        request = queue.peek_request()
        _unblock_if_ready(request)
        if why := _why_skip(scheduler, step, request):
            step.decisions.not_scheduled.append(why)
            skipped.append(queue.pop_request())
        else:
            step.decisions.stop = _admit(scheduler, step, request, queue)
    for request in reversed(skipped):
        scheduler.skipped_waiting.prepend_request(request)


def _select_waiting_queue_for_scheduling(scheduler: Scheduler) -> RequestQueue | None:
    waiting, skipped_waiting = scheduler.waiting, scheduler.skipped_waiting
    if not skipped_waiting:
        return waiting or None
    if scheduler.config.policy == "fcfs" or not waiting:
        return skipped_waiting
    return waiting if waiting.peek_request() < skipped_waiting.peek_request() else skipped_waiting


def _why_admit_no_one(
    scheduler: Scheduler, step: Step, queue: RequestQueue | None, any_skipped: bool
) -> Decision | None:
    """The rules that end the waiting loop whoever is at the head of the queue."""
    head = queue.peek_request().request_id if queue else None
    if step.preempted:
        return Decision(head, Reason.PREEMPTED_THIS_STEP, {"preempted": len(step.preempted)})
    if scheduler.pause_state != PauseState.UNPAUSED:
        return Decision(head, Reason[scheduler.pause_state.name])
    if queue is None:
        return Decision(None, Reason.ALL_WAITING_BLOCKED if any_skipped else Reason.QUEUE_EMPTY)
    if step.token_budget == 0:
        return Decision(head, Reason.TOKEN_BUDGET, {"budget": step.decisions.budget, "left": 0})
    if len(scheduler.running) >= scheduler.config.max_num_seqs:
        numbers = {"running": len(scheduler.running), "max_num_seqs": scheduler.config.max_num_seqs}
        return Decision(head, Reason.MAX_NUM_SEQS, numbers)
    return None


def _unblock_if_ready(request: Request) -> None:
    """Put a request whose grammar, KV or input has arrived back among those that only wait for their turn."""
    if request.status.is_blocked and request.ready:
        request.status = RequestStatus.PREEMPTED if request.num_preemptions else RequestStatus.WAITING


def _why_skip(scheduler: Scheduler, step: Step, request: Request) -> Decision | None:
    """Why a waiting request is passed over while those behind it may be admitted; None if it may go on."""
    if request.status.is_blocked:
        return Decision(request.request_id, _BLOCKED_REASON[request.status])
    if request.num_stale_output_tokens > 0 and not request.drop_stale_output:
        # Output from before its preemption is still to come: starting now could sample that token twice.
        numbers = {"in_flight": request.num_stale_output_tokens}
        return Decision(request.request_id, Reason.STALE_OUTPUT_IN_FLIGHT, numbers)
    lora = request.lora_request
    if lora is not None and lora not in step.loras and len(step.loras) >= scheduler.config.max_loras:
        numbers = {"loras": len(step.loras), "max_loras": scheduler.config.max_loras}
        return Decision(request.request_id, Reason.LORA_LIMIT, numbers)
    return None


def _admit(scheduler: Scheduler, step: Step, request: Request, queue: RequestQueue) -> Decision | None:
    """Move the head of a queue to the running list, or say why the loop must stop at it."""
    new_computed_blocks: list[KVCacheBlock] = []
    num_computed_tokens, num_hit_tokens = request.num_computed_tokens, 0
    if num_computed_tokens == 0:
        new_computed_blocks, num_hit_tokens = scheduler.kv_cache_manager.get_computed_blocks(request)
        num_computed_tokens = num_hit_tokens

    # num_tokens and not the prompt's length: a resumed request computes its output tokens again, too.
    debt = request.num_tokens - num_computed_tokens
    threshold = scheduler.config.long_prefill_token_threshold
    num_new_tokens = min(debt, threshold) if threshold else debt
    if not scheduler.config.enable_chunked_prefill and num_new_tokens > step.token_budget:
        numbers = {"asked": num_new_tokens, "left": step.token_budget}
        return Decision(request.request_id, Reason.CHUNKED_PREFILL_OFF, numbers)
    num_new_tokens = min(num_new_tokens, step.token_budget)

    new_blocks = scheduler.kv_cache_manager.allocate_slots(
        request,
        num_new_tokens,
        num_hit_tokens,
        new_computed_blocks,
        num_lookahead_tokens=scheduler.config.num_lookahead_tokens,
        full_sequence_must_fit=scheduler.config.scheduler_reserve_full_isl,
        has_scheduled_reqs=bool(scheduler.running),
    )
    if isinstance(new_blocks, BlockShortage):
        full = new_blocks.full_sequence
        reason = Reason.FULL_SEQUENCE_DOES_NOT_FIT if full else Reason.NO_FREE_BLOCKS
        return Decision(request.request_id, reason, new_blocks.numbers)

    queue.pop_request()
    scheduler.running.append(request)
    if scheduler.kv_cache_manager.record_prefix_cache_stats(request, num_hit_tokens):
        step.decisions.prefix_lookups.append((request.request_id, request.num_tokens, num_hit_tokens))
    if num_new_tokens != debt:
        step.decisions.cut.append(why_less(scheduler, step, request, debt, num_new_tokens))
    if request.num_preemptions == 0:
        request.num_cached_tokens = num_hit_tokens
    (step.scheduled_resumed_reqs if request.status == RequestStatus.PREEMPTED else step.scheduled_new_reqs).append(
        request
    )
    step.num_scheduled_tokens[request.request_id] = num_new_tokens
    step.token_budget -= num_new_tokens
    if request.lora_request is not None:
        step.loras.add(request.lora_request)
    request.status = RequestStatus.RUNNING
    request.num_computed_tokens = num_computed_tokens
    return None
