"""A scheduler of one's own: short requests first, and nobody starves."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from minivllm.core.decisions import StepDecisions
from minivllm.core.plan_builder import build_plan
from minivllm.core.request import Request
from minivllm.core.schedule_running import schedule_running
from minivllm.core.schedule_waiting import schedule_waiting
from minivllm.core.scheduler import Scheduler
from minivllm.core.scheduler_output import SchedulerOutput
from minivllm.core.step import Step

# So often may a request be overtaken.
MAX_OVERTAKEN = 3


class ShortestFirstQueue:
    """The waiting requests; next is the one that owes the fewest tokens, or one that was overtaken too often."""

    def __init__(self) -> None:
        self._front: list[Request] = []  # preempted
        self._waiting: list[Request] = []  # in the order in which they were added
        self._overtaken: dict[str, int] = {}

    def add_request(self, request: Request) -> None:
        """A request comes."""
        self._waiting.append(request)
        self._overtaken[request.request_id] = 0

    def peek_request(self) -> Request:
        """Who is next; nobody is taken out."""
        if self._front:
            return self._front[0]
        for request in self._waiting:
            if self._overtaken[request.request_id] >= MAX_OVERTAKEN:
                return request
        return min(self._waiting, key=_owed)

    def pop_request(self) -> Request:
        """Take out who is next."""
        next_one = self.peek_request()
        if self._front:
            return self._front.pop(0)
        place = self._waiting.index(next_one)
        for request in self._waiting[:place]:
            self._overtaken[request.request_id] += 1
        del self._overtaken[next_one.request_id]
        return self._waiting.pop(place)

    def prepend_request(self, request: Request) -> None:
        """A preempted request is next."""
        self._front.insert(0, request)

    def remove_requests(self, requests: Collection[Request]) -> None:
        """These are gone."""
        self._front = [request for request in self._front if request not in requests]
        self._waiting = [request for request in self._waiting if request not in requests]

    def __len__(self) -> int:
        return len(self._front) + len(self._waiting)

    def __iter__(self) -> Iterator[Request]:
        copy = ShortestFirstQueue()
        copy._front, copy._waiting = list(self._front), list(self._waiting)
        copy._overtaken = dict(self._overtaken)
        while copy:
            yield copy.pop_request()


def _owed(request: Request) -> int:
    return request.num_tokens - request.num_computed_tokens


def schedule(self: Scheduler) -> SchedulerOutput:
    """Plan one step: running requests, then waiting ones.

    Args:
        self: The scheduler.
    """
    budget = self.config.max_num_batched_tokens
    step = Step(budget, StepDecisions(budget))
    schedule_running(self, step)
    schedule_waiting(self, step)
    plan = build_plan(step, self.running, self.kv_cache_manager, self.finished_req_ids, self.preempted_req_ids)
    self._update_after_schedule(plan)
    self.last_decisions = step.decisions
    return plan
