"""Owns the order in which waiting requests are looked at. Upstream: vllm/v1/core/sched/request_queue.py."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Collection, Iterator
from typing import Protocol

from minivllm.core.request import Request


class RequestQueue(Protocol):
    """What the scheduler needs of a queue."""

    def add_request(self, request: Request) -> None: ...
    def pop_request(self) -> Request: ...
    def peek_request(self) -> Request: ...
    def prepend_request(self, request: Request) -> None: ...
    def remove_requests(self, requests: Collection[Request]) -> None: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Request]: ...


class FCFSRequestQueue:
    """First come, first served; a preempted request goes back to the front."""

    def __init__(self) -> None:
        self._requests: deque[Request] = deque()

    def add_request(self, request: Request) -> None:
        self._requests.append(request)

    def pop_request(self) -> Request:
        return self._requests.popleft()

    def peek_request(self) -> Request:
        return self._requests[0]

    def prepend_request(self, request: Request) -> None:
        self._requests.appendleft(request)

    def remove_requests(self, requests: Collection[Request]) -> None:
        self._requests = deque(r for r in self._requests if r not in requests)

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests)


class PriorityRequestQueue:
    """Lowest (priority, arrival time, id) first. There is no front to put a request back to: its key decides."""

    def __init__(self) -> None:
        self._heap: list[Request] = []

    def add_request(self, request: Request) -> None:
        heapq.heappush(self._heap, request)

    def pop_request(self) -> Request:
        return heapq.heappop(self._heap)

    def peek_request(self) -> Request:
        return self._heap[0]

    def prepend_request(self, request: Request) -> None:
        heapq.heappush(self._heap, request)

    def remove_requests(self, requests: Collection[Request]) -> None:
        self._heap = [r for r in self._heap if r not in requests]
        heapq.heapify(self._heap)

    def __len__(self) -> int:
        return len(self._heap)

    def __iter__(self) -> Iterator[Request]:
        return iter(sorted(self._heap))


def create_request_queue(policy: str) -> RequestQueue:
    """The queue of a policy, "fcfs" or "priority"."""
    return PriorityRequestQueue() if policy == "priority" else FCFSRequestQueue()
