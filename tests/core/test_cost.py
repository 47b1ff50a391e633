"""What a decode step costs: the same after ten tokens and after ten thousand, with one waiting and with thousands."""

from __future__ import annotations

from typing import Any, NoReturn

import msgspec
import pytest

from minivllm.core.scheduler import Scheduler
from tests.core.building import add, answer, make_request, make_scheduler, step


def decoding(context: int, num_requests: int = 4, **settings: Any) -> Scheduler:
    """Requests in the middle of decoding, each with a context of that many tokens and the same place in its block."""
    scheduler = make_scheduler(
        max_model_len=20_000,
        max_num_batched_tokens=100_000,
        num_gpu_blocks=30_000,
        **settings,
    )
    shared = list(range(context // 2))
    for i in range(num_requests):
        prompt = shared + [1_000_000 + i] * (context - len(shared))
        add(scheduler, make_request(f"r{i}", prompt, max_tokens=200))
    step(scheduler)
    step(scheduler)
    return scheduler


class Untouchable(list[Any]):
    """A list that may grow and be read at single places or a block at a time, and must not be gone through."""

    def __iter__(self) -> NoReturn:
        raise AssertionError("a decode step went through a list that grows with the context")

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            start, stop, _ = index.indices(len(self))
            assert stop - start <= 4, "a decode step copied a part of a list that grows with the context"
        return super().__getitem__(index)


@pytest.mark.parametrize("is_async", [False, True])
def test_the_plan_of_a_decode_step_has_the_same_size_for_every_context(is_async: bool) -> None:
    def sizes(context: int) -> list[int]:
        scheduler = decoding(context, async_scheduling=is_async)
        result = []
        for _ in range(8):
            plan = scheduler.schedule()
            result.append(len(msgspec.msgpack.encode(plan)))
            scheduler.update_from_output(plan, answer(scheduler, plan))
        return result

    # A number above 255 takes two bytes more than a small one: in both contexts all counts and block ids are above.
    short, long = sizes(2400), sizes(16_000)
    assert short == long
    assert max(short) < 700


@pytest.mark.parametrize("is_async", [False, True])
def test_a_decode_step_goes_through_no_list_that_grows_with_the_context(is_async: bool) -> None:
    scheduler = decoding(4000, async_scheduling=is_async)
    manager = scheduler.kv_cache_manager
    for request in scheduler.running:
        request._all_token_ids = Untouchable(request._all_token_ids)
        request._block_hashes = Untouchable(request.block_hashes)
        manager.req_to_blocks[request.request_id] = Untouchable(manager.req_to_blocks[request.request_id])
    manager.block_pool.blocks = Untouchable(manager.block_pool.blocks)
    for _ in range(9):  # across the borders of two blocks
        plan = scheduler.schedule()
        assert plan.total_num_scheduled_tokens == 4
        assert plan.num_common_prefix_blocks == 500
        scheduler.update_from_output(plan, answer(scheduler, plan))


def test_a_decode_step_looks_at_no_more_than_one_waiting_request() -> None:
    scheduler = decoding(400, max_num_seqs=4)
    add(scheduler, *(make_request(f"w{i}") for i in range(50)))
    requests = list(scheduler.waiting)

    class Front(list[Any]):
        def __iter__(self) -> NoReturn:
            raise AssertionError("a step went through the waiting queue")

    scheduler.waiting._requests = Front(requests)  # type: ignore[attr-defined]
    plan = scheduler.schedule()
    assert len(plan.num_scheduled_tokens) == 4


def test_the_common_prefix_is_counted_again_only_when_owners_change() -> None:
    scheduler = decoding(4000)
    manager = scheduler.kv_cache_manager
    assert manager.get_num_common_prefix_blocks("r0") == 500
    remembered = manager._common_prefix
    for _ in range(8):  # two new blocks each
        step(scheduler)
    assert manager._common_prefix is remembered
