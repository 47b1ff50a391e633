"""Owns the check that a step's decision record is complete and true: every reason is derived again from the state.

Used under the "fixed" semantics only: vLLM 0.27.1's own rules skip a request without a reason (vllm#49097).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from minivllm.core.decisions import Decision, Reason
from minivllm.core.request import Request
from minivllm.core.scheduler import Scheduler
from minivllm.core.scheduler_output import SchedulerOutput
from minivllm.core.step import PauseState

R = Reason
IN_RUNNING_LOOP = {R.PAUSED_ALL, R.TOKEN_BUDGET, R.NO_FREE_BLOCKS}


@dataclass(frozen=True)
class _Before:
    """What a request looked like before the step."""

    request: Request
    num_computed: int
    num_tokens: int
    placeholders: int
    drafts: int
    stale: int

    @property
    def debt(self) -> int:
        return self.num_tokens + self.drafts + self.placeholders - self.num_computed


class DecisionCheck:
    """Made before `schedule()`, asked after it."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.running = [request.request_id for request in scheduler.running]
        self.num_waiting = len(scheduler.waiting) + len(scheduler.skipped_waiting)
        self.preempted_by_reset = set(scheduler.preempted_req_ids)
        self.before = {
            request.request_id: _Before(
                request,
                request.num_computed_tokens,
                request.num_tokens,
                request.num_output_placeholders,
                len(request.spec_token_ids),
                request.num_stale_output_tokens,
            )
            for request in scheduler.requests.values()
        }

    def check(self, plan: SchedulerOutput) -> None:
        record = self.scheduler.last_decisions
        assert record.stop is not None, "a step has exactly one reason to stop"
        granted = plan.num_scheduled_tokens
        not_scheduled = [decision.request_id for decision in record.not_scheduled]
        assert len(set(not_scheduled)) == len(not_scheduled), "one reason a request"
        assert not set(not_scheduled) & set(granted), "who is scheduled is not reported as passed over"
        assert [victim for victim, _, _ in record.preempted] == [
            d.request_id for d in record.not_scheduled if d.reason == R.PREEMPTED
        ]
        preempted = {victim for victim, _, _ in record.preempted}
        assert preempted | self.preempted_by_reset == plan.preempted_req_ids
        self._check_everyone_looked_at(plan, record.stop, set(not_scheduled))
        self._check_cuts(plan)
        for decision in record.not_scheduled:
            self._check_not_scheduled(decision, plan)
        self._check_stop(record.stop, plan)
        # Never one entry for each waiting request: those behind the stop were not looked at.
        looked_at = len(self.running) + len(granted) + len(self.scheduler.skipped_waiting)
        assert len(record.not_scheduled) + len(record.cut) <= looked_at

    def _check_everyone_looked_at(self, plan: SchedulerOutput, stop: Decision, reasoned: set[Any]) -> None:
        explained = reasoned | set(plan.num_scheduled_tokens)
        if stop.request_id in self.running and stop.reason in IN_RUNNING_LOOP:
            looked_at = self.running[: self.running.index(stop.request_id)]
        else:
            looked_at = self.running
        unexplained = [request_id for request_id in looked_at if request_id not in explained]
        assert not unexplained, f"{unexplained} were looked at and got neither tokens nor a reason ({stop})"
        for request in self.scheduler.skipped_waiting:
            if not request.status.is_blocked and stop.reason in (R.QUEUE_EMPTY, R.ALL_WAITING_BLOCKED):
                assert request.request_id in reasoned, f"{request} was passed over without a reason"

    def _check_cuts(self, plan: SchedulerOutput) -> None:
        cuts = {decision.request_id: decision for decision in self.scheduler.last_decisions.cut}
        hits = {request_id: hit for request_id, _, hit in self.scheduler.last_decisions.prefix_lookups}
        assert set(cuts) <= set(plan.num_scheduled_tokens)
        for request_id, count in plan.num_scheduled_tokens.items():
            before = self.before[request_id]
            wanted = before.debt - (0 if before.num_computed else hits.get(request_id, 0))
            assert (count < wanted) == (request_id in cuts), f"{request_id} got {count} of {wanted}"
            if request_id not in cuts:
                continue
            numbers, reason = cuts[request_id].numbers, cuts[request_id].reason
            assert (numbers["asked"], numbers["granted"]) == (wanted, count)
            if reason == R.MAX_MODEL_LEN:
                assert before.num_computed + count == numbers["limit"] - 1 == self.scheduler.max_model_len - 1
            else:
                assert reason in (R.TOKEN_BUDGET, R.LONG_PREFILL_THRESHOLD)
                assert numbers["limit"] == count
            if reason == R.LONG_PREFILL_THRESHOLD:
                assert count == self.scheduler.config.long_prefill_token_threshold

    def _check_not_scheduled(self, decision: Decision, plan: SchedulerOutput) -> None:
        assert decision.request_id is not None
        before, numbers, reason = self.before[decision.request_id], decision.numbers, decision.reason
        request = before.request
        if reason == R.PREEMPTED:
            _check_shortage(numbers)
            assert decision.request_id in plan.preempted_req_ids
        elif reason == R.OUTPUT_IN_FLIGHT:
            assert numbers == {"placeholders": before.placeholders, "max_tokens": request.max_tokens}
            assert before.placeholders > 0
            sure = before.num_computed + 2 - before.placeholders - request.num_prompt_tokens
            assert sure >= request.max_tokens
        elif reason == R.MAX_MODEL_LEN:
            assert numbers["granted"] == 0
            assert before.num_computed + 1 >= self.scheduler.max_model_len
        elif reason == R.STALE_OUTPUT_IN_FLIGHT:
            assert numbers["in_flight"] == before.stale > 0
            assert not request.drop_stale_output
        elif reason == R.LORA_LIMIT:
            assert numbers["loras"] >= numbers["max_loras"]
        else:
            assert request.status.is_blocked
            assert not request.ready
            assert reason.value.startswith("waiting_for")

    def _check_stop(self, stop: Decision, plan: SchedulerOutput) -> None:
        scheduler, numbers, total = self.scheduler, stop.numbers, plan.total_num_scheduled_tokens
        config, budget = scheduler.config, scheduler.last_decisions.budget
        left = budget - total
        if stop.reason == R.TOKEN_BUDGET:
            assert numbers == {"budget": budget, "left": 0}
            assert left == 0
        elif stop.reason == R.CHUNKED_PREFILL_OFF:
            assert not config.enable_chunked_prefill
            assert numbers["asked"] > numbers["left"] == left
        elif stop.reason == R.MAX_NUM_SEQS:
            assert numbers == {"running": config.max_num_seqs, "max_num_seqs": config.max_num_seqs}
            assert len(scheduler.running) == config.max_num_seqs
        elif stop.reason in (R.NO_FREE_BLOCKS, R.FULL_SEQUENCE_DOES_NOT_FIT):
            _check_shortage(numbers)
            assert stop.request_id not in plan.num_scheduled_tokens
        elif stop.reason == R.PREEMPTED_THIS_STEP:
            assert numbers == {"preempted": len(scheduler.last_decisions.preempted)}
            assert numbers["preempted"] > 0
        elif stop.reason == R.QUEUE_EMPTY:
            assert not scheduler.waiting
            assert not scheduler.skipped_waiting
        elif stop.reason == R.ALL_WAITING_BLOCKED:
            assert not scheduler.waiting
            assert scheduler.skipped_waiting
        else:
            assert scheduler.pause_state == PauseState[stop.reason.name]
        if stop.request_id is not None:
            assert stop.request_id in scheduler.requests
            assert stop.request_id not in plan.num_scheduled_tokens


def _check_shortage(numbers: dict[str, int]) -> None:
    assert numbers["asked"] + numbers["watermark"] > numbers["free"] - numbers["reserved"]
