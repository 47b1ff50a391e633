"""Owns the first half of a step: running requests, in order, and whom to preempt when blocks run out.

Upstream: the first loop of vllm/v1/core/sched/scheduler.py::Scheduler.schedule.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from minivllm.core.decisions import Decision, Reason
from minivllm.core.free_block_queue import KVCacheBlock
from minivllm.core.kv_cache_manager import BlockShortage
from minivllm.core.request import Request
from minivllm.core.step import PauseState, Step

if TYPE_CHECKING:
    from minivllm.core.scheduler import Scheduler


def schedule_running(scheduler: Scheduler, step: Step) -> None:
    """Give every running request as many tokens as it owes, within the budget, until one cannot get blocks."""
    # One turn of the loop is a request of a step, a thousand times a step under load: names that do not change are
    # looked up once, and what is only for drafts and prompts stays off the way of a request that owes one token.
    decisions, config = step.decisions, scheduler.config
    threshold, num_lookahead_tokens = config.long_prefill_token_threshold, config.num_lookahead_tokens
    max_computed = scheduler.max_model_len - 1  # the last token of the longest sequence is never computed
    allocate_slots = scheduler.kv_cache_manager.allocate_slots
    scheduled_running_reqs, num_scheduled_tokens = step.scheduled_running_reqs, step.num_scheduled_tokens
    index = 0
    while index < len(scheduler.running):
        request = scheduler.running[index]
        num_computed_tokens, placeholders = request.num_computed_tokens, request.num_output_placeholders
        if step.token_budget == 0:
            reason = Reason.PAUSED_ALL if scheduler.pause_state == PauseState.PAUSED_ALL else Reason.TOKEN_BUDGET
            decisions.stop = Decision(request.request_id, reason, {"budget": decisions.budget, "left": 0})
            return
        if placeholders and _max_tokens_in_flight(request):
            numbers = {"placeholders": placeholders, "max_tokens": request.max_tokens}
            decisions.not_scheduled.append(Decision(request.request_id, Reason.OUTPUT_IN_FLIGHT, numbers))
            index += 1
            continue

        debt = num_new_tokens = request.num_tokens + placeholders - num_computed_tokens
        if request.spec_token_ids:
            debt = num_new_tokens = debt + len(request.spec_token_ids)
        if debt != 1 or num_computed_tokens >= max_computed:  # one token is within every other limit
            num_new_tokens = min(debt, threshold or debt, step.token_budget, max_computed - num_computed_tokens)
        if num_new_tokens <= 0:
            decisions.not_scheduled.append(why_less(scheduler, step, request, debt, 0))
            index += 1  # not `break`: someone further down may still have work
            continue

        # Found out now: a preemption below may return tokens to the budget, and a comparison with it would be wrong.
        cut = why_less(scheduler, step, request, debt, num_new_tokens) if num_new_tokens != debt else None
        new_blocks = allocate_slots(request, num_new_tokens, num_lookahead_tokens=num_lookahead_tokens)
        if isinstance(new_blocks, BlockShortage):
            new_blocks, index = _allocate_or_preempt(scheduler, step, request, num_new_tokens, index, new_blocks)
            if isinstance(new_blocks, BlockShortage):
                decisions.stop = Decision(request.request_id, Reason.NO_FREE_BLOCKS, new_blocks.numbers)
                return
        if cut is not None:
            decisions.cut.append(cut)
        scheduled_running_reqs.append(request)
        num_scheduled_tokens[request.request_id] = num_new_tokens
        step.token_budget -= num_new_tokens
        if new_blocks:
            step.new_blocks[request.request_id] = new_blocks
        if request.lora_request is not None:
            step.loras.add(request.lora_request)
        if request.spec_token_ids:
            _schedule_drafts(step, request, num_new_tokens)
        index += 1


def _max_tokens_in_flight(request: Request) -> bool:
    """Whether steps in flight are sure to bring the last token that a request may have (async scheduling)."""
    # After the steps in flight there are num_computed_tokens + 1 tokens, but all placeholders except the first may
    # be drafts that are rejected.
    sure = request.num_computed_tokens + 1 - (request.num_output_placeholders - 1)
    return sure >= request.num_prompt_tokens + request.max_tokens


def _allocate_or_preempt(
    scheduler: Scheduler, step: Step, request: Request, num_new_tokens: int, index: int, shortage: BlockShortage
) -> tuple[list[KVCacheBlock] | BlockShortage, int]:
    """Get blocks for a running request that was refused, at the cost of others.

    Returns:
        The new blocks, or the shortage if the request itself became the victim; and the index of the request
        in `running`, which moves when someone before it leaves.
    """
    while True:
        victim, index = _take_victim(scheduler, step, index)
        step.decisions.preempted.append((victim.request_id, victim.num_computed_tokens, request.request_id))
        step.decisions.not_scheduled.append(Decision(victim.request_id, Reason.PREEMPTED, shortage.numbers))
        scheduler.preempt_request(victim)
        step.preempted.append(victim)
        if victim is request:
            return shortage, index
        new_blocks = scheduler.kv_cache_manager.allocate_slots(
            request, num_new_tokens, num_lookahead_tokens=scheduler.config.num_lookahead_tokens
        )
        if not isinstance(new_blocks, BlockShortage):
            return new_blocks, index
        shortage = new_blocks


def _take_victim(scheduler: Scheduler, step: Step, index: int) -> tuple[Request, int]:
    """Take the least important request off the running list, and out of the plan if it is in it already."""
    if scheduler.config.policy == "fcfs":
        return scheduler.running.pop(), index
    if scheduler.config.semantics == "vllm-0.27.1":
        # The first of several equal ones: two requests of one priority and arrival time can take turns in preempting
        # each other, and neither ever ends.
        victim = max(scheduler.running, key=lambda r: (r.priority, r.arrival_time))
    else:
        victim = max(scheduler.running)  # the order of the queue: whoever is first in it always moves on
    victim_index = scheduler.running.index(victim)
    del scheduler.running[victim_index]
    was_scheduled = victim.request_id in step.num_scheduled_tokens
    if was_scheduled:
        step.scheduled_running_reqs.remove(victim)
        step.token_budget += step.num_scheduled_tokens.pop(victim.request_id)
        step.new_blocks.pop(victim.request_id, None)
        step.spec_tokens.pop(victim.request_id, None)
        if scheduler.config.semantics == "fixed":
            # vLLM 0.27.1 leaves them published: the victim itself, or another request with its prefix, then takes
            # blocks for computed that no step has ever written.
            scheduler.kv_cache_manager.take_back_planned(victim)
    step.decisions.forget(victim.request_id)
    # vLLM 0.27.1 moves the index only for a victim that is in the plan. One that was passed over shifts the list
    # just the same, and then the next request is skipped (vllm#49097).
    moves = was_scheduled if scheduler.config.semantics == "vllm-0.27.1" else victim_index < index
    return victim, index - 1 if moves else index


def _schedule_drafts(step: Step, request: Request, num_new_tokens: int) -> None:
    """Put as many drafts into the plan as tokens were granted beyond the known ones."""
    num_drafts = num_new_tokens + request.num_computed_tokens - request.num_tokens - request.num_output_placeholders
    if num_drafts > 0:
        step.spec_tokens[request.request_id] = request.spec_token_ids[:num_drafts]
    request.spec_token_ids = []


def why_less(scheduler: Scheduler, step: Step, request: Request, debt: int, granted: int) -> Decision:
    """Which limit gives a request less than it owes. Asked before its tokens are taken off the budget."""
    threshold = scheduler.config.long_prefill_token_threshold
    if debt <= 0:
        reason, limit = Reason.OUTPUT_IN_FLIGHT, 0
    elif threshold and granted == threshold:
        reason, limit = Reason.LONG_PREFILL_THRESHOLD, threshold
    elif granted == step.token_budget:
        reason, limit = Reason.TOKEN_BUDGET, step.token_budget
    else:
        reason, limit = Reason.MAX_MODEL_LEN, scheduler.max_model_len
    return Decision(request.request_id, reason, {"asked": debt, "granted": granted, "limit": limit})
