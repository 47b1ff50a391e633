"""Whom to preempt when no block is free. The engine runs this function instead of its own, and it has a fault."""

from __future__ import annotations

from minivllm.core.request import Request
from minivllm.core.scheduler import Scheduler
from minivllm.core.step import Step


def take_victim(scheduler: Scheduler, step: Step, index: int) -> tuple[Request, int]:
    """Take the least important request off the running list, and out of the plan if it is in it already.

    Args:
        scheduler: Its `running` is the list that the loop goes through.
        step: The plan so far.
        index: Place in `running` of the request that needs a block.

    Returns:
        The victim, and the place of that same request now.
    """
    if scheduler.config.policy == "fcfs":
        return scheduler.running.pop(), index
    victim = max(scheduler.running)  # the order of the queue: the last in it
    victim_index = scheduler.running.index(victim)
    del scheduler.running[victim_index]
    was_scheduled = victim.request_id in step.num_scheduled_tokens
    if was_scheduled:
        step.scheduled_running_reqs.remove(victim)
        step.token_budget += step.num_scheduled_tokens.pop(victim.request_id)
        step.new_blocks.pop(victim.request_id, None)
        step.spec_tokens.pop(victim.request_id, None)
        scheduler.kv_cache_manager.take_back_planned(victim)
        index -= 1
    step.decisions.forget(victim.request_id)
    return victim, index
