"""Owns the invariants of the core as one check that can run after every operation. Reads everything, changes nothing.

INV-01  every block is in exactly one place: free, free and cached, held by requests, or the null block
INV-02  a block's reference count is the number of block tables that hold it
INV-03  a step never spends more than its token budget                       (asserted in `Scheduler.schedule`)
INV-04  at most max_num_seqs requests run
INV-05  the free queue is one list, the same in both directions
INV-06  the hash map and the blocks name each other
INV-07  only full blocks are published, each under the hash of its request's chain, and once
INV-08  every request is in exactly one queue, and its status says in which
INV-09  the counters of a request stay within what is known, drafted and in flight
INV-10  a request that waits holds no blocks
INV-11  a running request has a slot for every token that it has computed
INV-12  an ended request is forgotten
"""

from __future__ import annotations

from collections import Counter

from minivllm.core.block_pool import BlockPool
from minivllm.core.free_block_queue import KVCacheBlock
from minivllm.core.kv_cache_manager import KVCacheManager
from minivllm.core.request import Request, RequestStatus
from minivllm.core.scheduler import Scheduler


def check_integrity(scheduler: Scheduler) -> None:
    """Check everything that must hold between two operations of a scheduler.

    Costs one pass over blocks and requests: for tests and for hunting a fault, not for every step of a busy engine.

    Raises:
        AssertionError: Something does not hold; the sentence names the invariant.
    """
    check_block_pool(scheduler.kv_cache_manager)
    _check_queues(scheduler)
    for request in scheduler.requests.values():
        _check_counters(request)
        _check_block_table(request, scheduler.kv_cache_manager)
    strangers = set(scheduler.kv_cache_manager.req_to_blocks) - set(scheduler.requests)
    assert not strangers, f"INV-12: {sorted(strangers)} have ended and still hold blocks"


def check_block_pool(manager: KVCacheManager) -> None:
    """The part that needs no requests: blocks, tables, free queue and hash map agree."""
    pool = manager.block_pool
    free = _walk_free_queue(pool)
    users = Counter(block.block_id for table in manager.req_to_blocks.values() for block in table)
    num_owned = num_free = num_cached_free = 0
    for block in pool.blocks:
        where = f"block #{block.block_id}"
        if block.is_null:
            assert block is pool.null_block, f"INV-01: {where} says that it is the null block, and is not"
            assert block.block_id not in free, f"INV-01: the null block {where} is in the free queue"
            assert block.block_id not in users, f"INV-01: the null block {where} is in a block table"
            continue
        held = users[block.block_id]
        assert block.ref_cnt == held, f"INV-02: {where} has ref_cnt {block.ref_cnt} and is in {held} block tables"
        if held:
            assert block.block_id not in free, f"INV-01: {where} is held by {held} requests and lies in the free queue"
            num_owned += 1
        else:
            assert block.block_id in free, f"INV-01: {where} is lost: no request holds it, and it is not free"
            num_cached_free += block.block_hash is not None
            num_free += block.block_hash is None
    total = num_free + num_cached_free + num_owned + 1
    assert total == pool.num_gpu_blocks, f"INV-01: {total} blocks were found, {pool.num_gpu_blocks} were made"
    assert set(manager.req_to_blocks) == set(manager.num_cached_block), "INV-07: a block table has no published count"
    _check_hash_map(pool)


def _walk_free_queue(pool: BlockPool) -> set[int]:
    """The ids in the free queue, after going through it in both directions."""
    queue = pool.free_block_queue
    forward: list[int] = []
    previous: KVCacheBlock = queue._head
    block = queue._head.next_free
    while block is not None and block is not queue._tail:
        assert block.prev_free is previous, f"INV-05: block #{block.block_id} does not point back at its predecessor"
        assert len(forward) < pool.num_gpu_blocks, "INV-05: the free queue runs in a circle"
        forward.append(block.block_id)
        previous, block = block, block.next_free
    assert block is queue._tail, "INV-05: the free queue breaks off before its end"
    assert queue._tail.prev_free is previous, "INV-05: the end of the free queue does not point back"
    assert queue._head.prev_free is None, "INV-05: something stands before the head of the free queue"
    assert queue._tail.next_free is None, "INV-05: something stands behind the end of the free queue"
    num_free = queue.num_free_blocks
    assert len(forward) == num_free, f"INV-05: the free queue holds {len(forward)} blocks and counts {num_free}"
    free = set(forward)
    assert len(free) == len(forward), "INV-05: a block is in the free queue twice"
    for block_id in free:
        assert pool.blocks[block_id].block_id == block_id, f"INV-05: block #{block_id} is not one of the pool's"
    for outside in pool.blocks:
        linked = outside.prev_free is not None or outside.next_free is not None
        assert linked == (outside.block_id in free), f"INV-05: block #{outside.block_id} has links of its own"
    return free


def _check_hash_map(pool: BlockPool) -> None:
    num_entries = 0
    for block_hash, blocks in pool.cached_block_hash_to_block.items():
        assert blocks, f"INV-06: the hash {block_hash.hex()[:8]} is known, and no block has it"
        for block_id, block in blocks.items():
            assert block is pool.blocks[block_id], f"INV-06: the hash map knows another block #{block_id}"
            assert block.block_hash == block_hash, f"INV-06: block #{block_id} is listed under a hash that it lost"
            num_entries += 1
    num_published = sum(block.block_hash is not None for block in pool.blocks)
    assert num_entries == num_published, f"INV-06: {num_published} blocks have a hash, {num_entries} can be found"
    assert pool.enable_caching or not num_published, "INV-06: a block is published although prefix caching is off"


def _check_queues(scheduler: Scheduler) -> None:
    queues: dict[str, list[Request]] = {
        "running": scheduler.running,
        "waiting": list(scheduler.waiting),
        "skipped": list(scheduler.skipped_waiting),
    }
    places: dict[str, str] = {}
    for place, queue in queues.items():
        for request in queue:
            known = scheduler.requests.get(request.request_id)
            assert known is request, f"INV-12: {request.request_id!r} is in {place} and has been forgotten"
            before = places.setdefault(request.request_id, place)
            assert before is place, f"INV-08: {request.request_id!r} is in {before} and in {place}"
    listed = sum(len(queue) for queue in queues.values())
    assert listed == len(places), "INV-08: a request is in one queue twice"
    for request_id, request in scheduler.requests.items():
        assert not request.is_finished, f"INV-12: {request_id!r} has ended ({request.status.name}) and is still known"
        place = places.get(request_id, "no queue")
        status = request.status
        if status == RequestStatus.RUNNING:
            allowed = ["running"]
        elif status.is_blocked:
            allowed = ["skipped"]
        else:
            allowed = ["waiting", "skipped"]
        assert place in allowed, f"INV-08: {request_id!r} is {status.name} and in {place}"
    num_running, limit = len(scheduler.running), scheduler.config.max_num_seqs
    assert num_running <= limit, f"INV-04: {num_running} requests run, max_num_seqs is {limit}"


def _check_counters(request: Request) -> None:
    who, computed, known = repr(request.request_id), request.num_computed_tokens, request.num_tokens
    placeholders, in_flight = request.num_output_placeholders, request.num_in_flight_tokens
    assert known == len(request._all_token_ids), f"INV-09: {who} counts {known} tokens, and has others"
    assert placeholders >= 0, f"INV-09: {who} has {placeholders} placeholders"
    assert in_flight >= 0, f"INV-09: {who} has {in_flight} tokens in flight"
    stale = request.num_stale_output_tokens
    assert 0 <= stale <= in_flight, f"INV-09: {who} has {stale} stale tokens of {in_flight} in flight"
    assert 0 <= computed <= known + placeholders + in_flight, f"INV-09: {who} has computed {computed} of {known} tokens"
    if in_flight == 0:
        assert computed < known, f"INV-09: {who} has computed all its {known} tokens and owes nothing"
        assert placeholders == 0, f"INV-09: {who} expects {placeholders} tokens and nothing is in flight"
    if request.status != RequestStatus.RUNNING:
        assert computed == 0, f"INV-09: {who} is {request.status.name} and has computed {computed} tokens"
        assert not request.spec_token_ids, f"INV-09: {who} is {request.status.name} and has drafts"


def _check_block_table(request: Request, manager: KVCacheManager) -> None:
    who, table = repr(request.request_id), manager.req_to_blocks.get(request.request_id)
    if request.status != RequestStatus.RUNNING:
        assert table is None, f"INV-10: {who} is {request.status.name} and holds blocks"
        return
    assert table is not None, f"INV-11: {who} is running and holds no blocks"
    num_slots = len(table) * manager.block_size
    computed = min(request.num_computed_tokens, manager.max_model_len)
    assert computed <= num_slots, f"INV-11: {who} has computed {computed} tokens in {num_slots} slots"
    assert len({block.block_id for block in table}) == len(table), f"INV-11: {who} holds a block twice"
    num_published = manager.num_cached_block[request.request_id]
    num_full = request.num_tokens // manager.block_size
    assert num_published <= min(num_full, len(table)), f"INV-07: {who} published {num_published} of {num_full} blocks"
    for position, block in enumerate(table):
        expected = request.block_hashes[position] if position < num_published else None
        assert block.block_hash == expected, f"INV-07: block {position} of {who} is not published under its own hash"
