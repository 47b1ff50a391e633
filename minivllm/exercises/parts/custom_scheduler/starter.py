"""A scheduler of one's own: short requests first, and nobody starves."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from minivllm.core.decisions import StepDecisions  # noqa: F401
from minivllm.core.plan_builder import build_plan  # noqa: F401
from minivllm.core.request import Request
from minivllm.core.schedule_running import schedule_running  # noqa: F401
from minivllm.core.schedule_waiting import schedule_waiting  # noqa: F401
from minivllm.core.scheduler import Scheduler
from minivllm.core.scheduler_output import SchedulerOutput
from minivllm.core.step import Step  # noqa: F401

# So often may a request be overtaken.
MAX_OVERTAKEN = 3


class ShortestFirstQueue:
    """The waiting requests; next is the one that owes the fewest tokens, or one that was overtaken too often."""

    def __init__(self) -> None:
        raise NotImplementedError("what must be remembered?")

    def add_request(self, request: Request) -> None:
        """A request comes."""
        raise NotImplementedError("add it")

    def peek_request(self) -> Request:
        """Who is next; nobody is taken out."""
        raise NotImplementedError("the shortest, or one that was overtaken too often")

    def pop_request(self) -> Request:
        """Take out who is next."""
        raise NotImplementedError("take it out, and count whom it has overtaken")

    def prepend_request(self, request: Request) -> None:
        """A preempted request is next."""
        raise NotImplementedError("before all others")

    def remove_requests(self, requests: Collection[Request]) -> None:
        """These are gone."""
        raise NotImplementedError("take them out")

    def __len__(self) -> int:
        raise NotImplementedError("count them")

    def __iter__(self) -> Iterator[Request]:
        raise NotImplementedError("in the order in which they would be served")


def schedule(self: Scheduler) -> SchedulerOutput:
    """Plan one step: running requests, then waiting ones.

    Args:
        self: The scheduler.
    """
    raise NotImplementedError("an empty plan, running, waiting, the plan, and what comes after it")
