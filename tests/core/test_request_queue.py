"""Waiting queues, against the simplest model of each: a list, and a sorted list."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minivllm.core.request import Request
from minivllm.core.request_queue import create_request_queue
from tests.core.building import ids, make_request

Operation = st.one_of(
    st.tuples(st.just("add"), st.integers(0, 3), st.integers(0, 3)),
    st.tuples(st.just("prepend"), st.integers(0, 3), st.integers(0, 3)),
    st.tuples(st.just("pop"), st.just(0), st.just(0)),
    st.tuples(st.just("remove"), st.integers(0, 9), st.integers(0, 9)),
)


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
@given(operations=st.lists(Operation, max_size=40))
def test_a_queue_behaves_like_its_model(policy: str, operations: list[tuple[str, int, int]]) -> None:
    queue, model = create_request_queue(policy), []
    for number, (kind, first, second) in enumerate(operations):
        if kind in ("add", "prepend"):
            request = make_request(f"r{number}", 1, priority=first, arrival_time=float(second))
            getattr(queue, f"{kind}_request")(request)
            model.insert(0 if kind == "prepend" else len(model), request)
        elif kind == "pop":
            if model:
                assert queue.peek_request() is model[0]
                assert queue.pop_request() is model.pop(0)
        else:
            gone = {model[i] for i in {first, second} if i < len(model)}
            queue.remove_requests(gone)
            model = [request for request in model if request not in gone]
        if policy == "priority":
            model.sort(key=lambda r: (r.priority, r.arrival_time, r.request_id))
        assert list(queue) == model
        assert len(queue) == len(model)
        assert bool(queue) == bool(model)


def test_fcfs_puts_a_preempted_request_back_to_the_front() -> None:
    queue = create_request_queue("fcfs")
    for name in "abc":
        queue.add_request(make_request(name))
    queue.prepend_request(make_request("back"))
    assert ids(queue) == ["back", "a", "b", "c"]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"priority": 0, "arrival_time": 9.0}, {"priority": 1, "arrival_time": 0.0}),
        ({"priority": -1}, {"priority": 0}),
        ({"arrival_time": 1.0}, {"arrival_time": 2.0}),
        ({}, {}),  # all equal: the id decides
    ],
)
def test_priority_order_is_priority_then_arrival_then_id(first: dict, second: dict) -> None:
    a: Request = make_request("a", **first)
    b: Request = make_request("b", **second)
    assert a < b
    assert not b < a
    queue = create_request_queue("priority")
    queue.add_request(b)
    queue.prepend_request(a)
    assert ids(queue) == ["a", "b"]
