"""Running requests first. Your function takes the place of the first half of a step."""

from __future__ import annotations

from minivllm.core.decisions import Decision, Reason
from minivllm.core.kv_cache_manager import BlockShortage
from minivllm.core.request import Request
from minivllm.core.schedule_running import why_less
from minivllm.core.scheduler import Scheduler
from minivllm.core.step import Step


def schedule_running(scheduler: Scheduler, step: Step) -> None:
    """Give every running request as many tokens as it owes, until the budget or the blocks run out.

    Args:
        scheduler: `running`, `config`, `kv_cache_manager`.
        step: The plan in the making: `token_budget`, `scheduled_running_reqs`, `num_scheduled_tokens`, `new_blocks`.
    """
    raise NotImplementedError("go through scheduler.running in order")


# ---- given: the reasons, which the maps show -----------------------------------------------------------------------


def note_stop(step: Step, request: Request, shortage: BlockShortage | None = None) -> None:
    """The loop ends at this request: the budget is used up, or (with the shortage) blocks are."""
    reason = Reason.TOKEN_BUDGET if shortage is None else Reason.NO_FREE_BLOCKS
    numbers = {"budget": step.decisions.budget, "left": 0} if shortage is None else shortage.numbers
    step.decisions.stop = Decision(request.request_id, reason, numbers)


def note_cut(scheduler: Scheduler, step: Step, request: Request, owed: int, granted: int) -> None:
    """A request gets less than it owes. Called before its tokens are taken off the budget."""
    step.decisions.cut.append(why_less(scheduler, step, request, owed, granted))


def note_preemption(
    scheduler: Scheduler, step: Step, victim: Request, request: Request, shortage: BlockShortage
) -> None:
    """A request that was taken off the running list loses its blocks and waits again, for the sake of another."""
    step.decisions.preempted.append((victim.request_id, victim.num_computed_tokens, request.request_id))
    step.decisions.not_scheduled.append(Decision(victim.request_id, Reason.PREEMPTED, shortage.numbers))
    scheduler.preempt_request(victim)
    step.preempted.append(victim)
