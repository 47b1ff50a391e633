"""The integrity check itself: it accepts what is sound, and names what is broken."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from minivllm.core.block_pool import BlockPool
from minivllm.core.free_block_queue import KVCacheBlock
from minivllm.core.integrity import check_integrity
from minivllm.core.request import RequestStatus
from minivllm.core.scheduler import Scheduler
from tests.core.building import add, make_request, make_scheduler, step


def busy() -> Scheduler:
    """Two running requests that share a prefix, one waiting, one blocked, cached blocks in the free queue."""
    scheduler = make_scheduler(max_num_seqs=2, num_gpu_blocks=20)
    add(scheduler, make_request("gone", list(range(100, 109)), max_tokens=1))
    step(scheduler)
    add(scheduler, make_request("a", list(range(9))))
    step(scheduler)
    add(scheduler, make_request("b", [*range(8), 50]), make_request("waiting"))
    add(scheduler, make_request("blocked", status=RequestStatus.WAITING_FOR_REMOTE_KVS))
    step(scheduler)
    check_integrity(scheduler)
    assert [len(scheduler.running), len(scheduler.waiting), len(scheduler.skipped_waiting)] == [2, 1, 1]
    return scheduler


def table(scheduler: Scheduler, request_id: str = "a") -> list[KVCacheBlock]:
    return scheduler.kv_cache_manager.req_to_blocks[request_id]


def put(target: object, **values: object) -> None:
    for name, value in values.items():
        setattr(target, name, value)


def pool(scheduler: Scheduler) -> BlockPool:
    return scheduler.kv_cache_manager.block_pool


def first_free(scheduler: Scheduler) -> KVCacheBlock:
    return next(iter(pool(scheduler).free_block_queue))


CORRUPTIONS: list[tuple[str, Callable[[Scheduler], object]]] = [
    # A block that is nowhere, or in two places.
    ("INV-01", lambda s: pool(s).free_block_queue.remove(first_free(s))),
    ("INV-01", lambda s: pool(s).free_block_queue.append_n([table(s)[0]])),
    ("INV-01", lambda s: pool(s).free_block_queue.append_n([pool(s).null_block])),
    # Reference counts.
    ("INV-02", lambda s: put(table(s)[0], ref_cnt=1)),
    ("INV-02", lambda s: put(first_free(s), ref_cnt=1)),
    ("INV-02", lambda s: table(s).append(first_free(s))),
    # The free queue.
    ("INV-05", lambda s: put(first_free(s), prev_free=None)),
    ("INV-05", lambda s: put(first_free(s), next_free=first_free(s))),
    ("INV-05", lambda s: put(pool(s).free_block_queue, num_free_blocks=3)),
    ("INV-05", lambda s: put(table(s)[0], next_free=first_free(s))),
    # The hash map.
    ("INV-06", lambda s: pool(s).cached_block_hash_to_block.clear()),
    ("INV-06", lambda s: pool(s).cached_block_hash_to_block.update({b"ghost": {}})),
    ("INV-06", lambda s: put(table(s)[0], block_hash=b"other")),
    # Published blocks.
    ("INV-07", lambda s: s.kv_cache_manager.num_cached_block.update(a=3)),
    ("INV-07", lambda s: s.kv_cache_manager.num_cached_block.update(a=1)),
    ("INV-07", lambda s: s.requests["a"].block_hashes.reverse()),
    # Queues and statuses.
    ("INV-08", lambda s: s.waiting.add_request(s.running[0])),
    ("INV-08", lambda s: s.running.append(s.running[0])),
    ("INV-08", lambda s: put(s.running[0], status=RequestStatus.WAITING)),
    ("INV-08", lambda s: s.waiting.pop_request()),
    ("INV-04", lambda s: s.running.append(s.waiting.pop_request()) or put(s.running[-1], status=RequestStatus.RUNNING)),
    # Counters.
    ("INV-09", lambda s: put(s.requests["a"], num_output_placeholders=-1)),
    ("INV-09", lambda s: put(s.requests["a"], num_output_placeholders=1)),
    ("INV-09", lambda s: put(s.requests["a"], num_in_flight_tokens=-1)),
    ("INV-09", lambda s: put(s.requests["a"], num_stale_output_tokens=1)),
    ("INV-09", lambda s: put(s.requests["a"], num_computed_tokens=99)),
    ("INV-09", lambda s: put(s.requests["a"], num_computed_tokens=s.requests["a"].num_tokens)),
    ("INV-09", lambda s: put(s.requests["a"], num_tokens=3)),
    ("INV-09", lambda s: put(s.requests["waiting"], num_computed_tokens=2)),
    # Who holds blocks.
    ("INV-10", lambda s: s.kv_cache_manager.allocate_slots(s.requests["waiting"], 4)),
    ("INV-11", lambda s: s.kv_cache_manager.free(s.requests["b"])),
    # The dead.
    ("INV-12", lambda s: put(s.running[0], status=RequestStatus.FINISHED_ABORTED)),
    ("INV-12", lambda s: s.requests.pop("waiting")),
]  # fmt: skip


@pytest.mark.parametrize(("invariant", "corrupt"), CORRUPTIONS)
def test_a_fault_is_found_and_named(invariant: str, corrupt: Callable[[Scheduler], object]) -> None:
    scheduler = busy()
    corrupt(scheduler)
    with pytest.raises(AssertionError, match=invariant):
        check_integrity(scheduler)


def test_an_empty_scheduler_is_sound() -> None:
    check_integrity(make_scheduler())
