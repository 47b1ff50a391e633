"""Slots for tokens: the prefix hit, the five parts of an allocation, and a refusal that changes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from minivllm.core.free_block_queue import KVCacheBlock
from minivllm.core.integrity import check_block_pool
from minivllm.core.kv_cache_manager import BlockShortage, KVCacheManager
from minivllm.core.request import Request, RequestStatus
from tests.core.building import make_request


def make_manager(num_blocks: int = 21, *, caching: bool = True, watermark: float = 0.0) -> KVCacheManager:
    return KVCacheManager(num_blocks, 4, 64, caching, watermark)


def admit(manager: KVCacheManager, request: Request, num_new_tokens: int | None = None, **options: Any) -> list[int]:
    """Look up, allocate and advance, as the scheduler does; returns the ids of the newly taken blocks."""
    hit_blocks, num_hit = manager.get_computed_blocks(request)
    count = request.num_tokens - num_hit if num_new_tokens is None else num_new_tokens
    blocks = manager.allocate_slots(request, count, num_hit, hit_blocks, **options)
    assert not isinstance(blocks, BlockShortage)
    request.num_computed_tokens = num_hit + count
    check_block_pool(manager)
    return ids(blocks)


def ids(blocks: Sequence[KVCacheBlock]) -> list[int]:
    return [block.block_id for block in blocks]


def snapshot(manager: KVCacheManager) -> tuple[Any, ...]:
    pool = manager.block_pool
    return (
        [(block.block_id, block.ref_cnt, block.block_hash) for block in pool.blocks],
        ids(list(pool.free_block_queue)),
        {name: ids(table) for name, table in manager.req_to_blocks.items()},
        dict(manager.num_cached_block),
    )


class TestPrefixHit:
    @pytest.mark.parametrize(
        ("prompt_len", "hit"),
        [
            (3, 0),  # no full block
            (4, 0),  # a full hit recomputes its last block, which is all there is
            (5, 4),
            (8, 4),  # a multiple of the block size recomputes one full block
            (9, 8),
            (11, 8),
            (12, 8),
            (13, 12),
        ],
    )
    def test_a_full_hit_still_computes_at_least_the_last_token(self, prompt_len: int, hit: int) -> None:
        manager = make_manager()
        first = make_request("first", list(range(prompt_len)))
        admit(manager, first)
        again = make_request("again", list(range(prompt_len)))
        blocks, num_hit = manager.get_computed_blocks(again)
        assert num_hit == hit <= prompt_len - 1
        assert ids(blocks) == manager.get_block_ids("first")[: hit // 4]

    def test_a_lookup_changes_nothing(self) -> None:
        manager = make_manager()
        first = make_request("first", list(range(12)))
        admit(manager, first)
        manager.free(first)
        before = snapshot(manager)
        assert manager.get_computed_blocks(make_request("again", list(range(12))))[1] == 8
        assert snapshot(manager) == before

    def test_it_ends_at_the_first_miss(self) -> None:
        manager = make_manager()
        admit(manager, make_request("first", list(range(16))))
        other = make_request("other", [*range(4), 99, *range(5, 17)])
        assert manager.get_computed_blocks(other)[1] == 4

    def test_a_gap_in_the_chain_hides_what_follows_it(self) -> None:
        manager = make_manager()
        first = make_request("first", list(range(17)))
        admit(manager, first)
        second_block = manager.req_to_blocks["first"][1]
        manager.free(first)
        manager.block_pool._evict(second_block)
        assert manager.get_computed_blocks(make_request("again", list(range(17))))[1] == 4

    def test_there_is_none_with_caching_off_nor_for_a_request_that_declines_it(self) -> None:
        for caching, declines in ((False, False), (True, True)):
            manager = make_manager(caching=caching)
            admit(manager, make_request("first", list(range(12))))
            params = {"skip_reading_prefix_cache": declines}
            again = make_request("again", list(range(12)), params=params)
            assert manager.get_computed_blocks(again) == ([], 0)
            assert not manager.record_prefix_cache_stats(again, 0)

    def test_hit_blocks_are_shared_and_the_table_starts_with_them(self) -> None:
        manager = make_manager()
        admit(manager, make_request("first", list(range(9))))
        new = admit(manager, make_request("again", [*range(8), 77, 78]))
        table, first = manager.get_block_ids("again"), manager.get_block_ids("first")
        assert table == first[:2] + new
        assert [manager.block_pool.blocks[i].ref_cnt for i in table] == [2, 2, 1]

    def test_only_lookups_of_admitted_requests_are_counted(self) -> None:
        manager = make_manager()
        admit(manager, make_request("first", list(range(9))))
        again = make_request("again", list(range(9)))
        manager.get_computed_blocks(again)
        assert manager.prefix_cache_stats.requests == 0
        assert manager.record_prefix_cache_stats(again, 8)
        stats = manager.prefix_cache_stats
        assert (stats.requests, stats.queries, stats.hits) == (1, 9, 8)
        again.num_computed_tokens = 8
        assert not manager.record_prefix_cache_stats(again, 8)

    def test_those_that_come_back_from_a_preemption_are_counted_apart(self) -> None:
        manager = make_manager()
        again = make_request("again", list(range(9)))
        again.num_preemptions = 1
        assert manager.record_prefix_cache_stats(again, 8)
        stats = manager.prefix_cache_stats
        assert (stats.requests, stats.queries, stats.hits) == (0, 0, 0)
        assert (stats.preempted_requests, stats.preempted_queries, stats.preempted_hits) == (1, 9, 8)


class TestFiveParts:
    """comp | new_comp | ext_comp | new | lookahead"""

    @pytest.mark.parametrize(
        ("new", "external", "lookahead", "blocks"),
        [
            (1, 0, 0, 1),
            (4, 0, 0, 1),
            (5, 0, 0, 2),
            (5, 0, 3, 2),  # lookahead inside the last block is free
            (5, 0, 4, 3),
            (0, 4, 0, 1),  # all from outside: nothing to compute
            (1, 4, 0, 2),
            (3, 5, 4, 3),
        ],
    )
    def test_slots_cover_all_parts(self, new: int, external: int, lookahead: int, blocks: int) -> None:
        manager = make_manager()
        request = make_request("a", 16)
        got = manager.allocate_slots(
            request, new, num_external_computed_tokens=external, num_lookahead_tokens=lookahead
        )
        assert not isinstance(got, BlockShortage)
        assert len(got) == blocks
        check_block_pool(manager)

    def test_a_hit_then_external_then_new_tokens_stand_in_this_order(self) -> None:
        manager = make_manager()
        admit(manager, make_request("first", list(range(9))))
        request = make_request("a", [*range(8), *range(50, 62)])
        hit_blocks, num_hit = manager.get_computed_blocks(request)
        assert num_hit == 8
        new = manager.allocate_slots(
            request, 4, num_hit, hit_blocks, num_external_computed_tokens=6, num_lookahead_tokens=2
        )
        assert not isinstance(new, BlockShortage)
        assert len(new) == 3  # tokens 8..19: 6 from outside, 4 computed, 2 in reserve
        assert manager.get_block_ids("a") == manager.get_block_ids("first")[:2] + ids(new)
        assert manager.num_cached_block["a"] == 4  # 8 + 6 + 4 = 18 tokens fill 4 blocks; the reserve fills none

    def test_nothing_to_allocate_for_is_a_fault(self) -> None:
        with pytest.raises(AssertionError, match="at least one token"):
            make_manager().allocate_slots(make_request("a"), 0)

    def test_a_block_that_still_has_room_needs_no_new_one(self) -> None:
        manager = make_manager()
        request = make_request("a", 5)
        admit(manager, request)
        for expected in (0, 0, 0, 1, 0):  # tokens 6, 7 and 8 fit into the second block
            request.append_output_token_ids(1)
            blocks = manager.allocate_slots(request, 1)
            assert not isinstance(blocks, BlockShortage)
            assert len(blocks) == expected
            request.num_computed_tokens += 1

    def test_no_slot_is_ever_needed_beyond_max_model_len(self) -> None:
        manager = make_manager()  # max_model_len 64: 16 blocks
        request = make_request("a", 63)
        got = manager.allocate_slots(request, 63, num_lookahead_tokens=10)
        assert not isinstance(got, BlockShortage)
        assert len(got) == 16

    def test_only_newly_taken_blocks_are_returned(self) -> None:
        manager = make_manager()
        request = make_request("a", 9)
        assert admit(manager, request, 4) == [1]
        more = manager.allocate_slots(request, 5)
        assert not isinstance(more, BlockShortage)
        assert ids(more) == [2, 3]


class TestPublishing:
    def test_full_blocks_are_published_with_the_allocation(self) -> None:
        manager = make_manager()
        request = make_request("a", 10)
        admit(manager, request, 9)
        assert manager.num_cached_block["a"] == 2
        assert [block.block_hash for block in manager.req_to_blocks["a"]] == [*request.block_hashes[:2], None]

    def test_it_is_put_off_while_kv_is_on_its_way(self) -> None:
        manager = make_manager()
        request = make_request("a", 13)
        manager.allocate_slots(request, 0, num_external_computed_tokens=8, delay_cache_blocks=True)
        assert manager.num_cached_block["a"] == 0
        assert manager.get_computed_blocks(make_request("b", list(request.all_token_ids)))[1] == 0
        request.num_computed_tokens = 8
        manager.cache_blocks(request, 8)  # it has arrived
        assert manager.get_computed_blocks(make_request("b", list(request.all_token_ids)))[1] == 8
        check_block_pool(manager)

    def test_drafts_are_never_published(self) -> None:
        manager = make_manager()
        request = make_request("a", 5)
        admit(manager, request)
        request.append_output_token_ids(1)
        manager.allocate_slots(request, 1 + 3)  # one token and three drafts: slots up to 9
        assert request.num_tokens == 6
        assert manager.num_cached_block["a"] == 1
        assert manager.req_to_blocks["a"][1].block_hash is None

    def test_with_caching_off_nothing_is(self) -> None:
        manager = make_manager(caching=False)
        admit(manager, make_request("a", 16))
        assert manager.num_cached_block["a"] == 0
        assert not manager.block_pool.cached_block_hash_to_block


class TestShortage:
    def test_it_changes_nothing(self) -> None:
        manager = make_manager(8)  # 7 usable
        admit(manager, make_request("old", list(range(12))))
        request = make_request("a", [*range(8), *range(100, 124)])
        hit_blocks, num_hit = manager.get_computed_blocks(request)
        before = snapshot(manager)
        refused = manager.allocate_slots(request, 24, num_hit, hit_blocks)
        assert isinstance(refused, BlockShortage)
        assert snapshot(manager) == before
        assert refused.numbers == {"asked": 6, "free": 4, "watermark": 0, "reserved": 0}

    def test_a_hit_block_that_lies_free_counts_as_asked_for(self) -> None:
        manager = make_manager(5)  # 4 usable
        first = make_request("first", list(range(12)))
        admit(manager, first)
        manager.free(first)
        request = make_request("a", [*range(8), *range(50, 62)])  # 5 blocks in all, 2 of them hits
        hit_blocks, num_hit = manager.get_computed_blocks(request)
        assert num_hit == 8
        refused = manager.allocate_slots(request, 12, num_hit, hit_blocks)
        assert isinstance(refused, BlockShortage)
        assert refused.asked == 5
        assert refused.free == 4

    def test_a_hit_block_in_use_costs_nothing(self) -> None:
        manager = make_manager(5)
        admit(manager, make_request("first", list(range(8))))  # 2 of 4
        request = make_request("a", [*range(8), *range(50, 58)])  # 4 blocks, 2 shared
        admit(manager, request)
        assert manager.block_pool.get_num_free_blocks() == 0

    def test_reserved_blocks_are_not_free(self) -> None:
        manager = make_manager(5)
        refused = manager.allocate_slots(make_request("a", 12), 12, reserved_blocks=2)
        assert isinstance(refused, BlockShortage)
        assert refused.numbers == {"asked": 3, "free": 4, "watermark": 0, "reserved": 2}

    def test_the_whole_sequence_must_fit_if_that_is_asked_for(self) -> None:
        manager = make_manager(5)
        request = make_request("a", 20)
        refused = manager.allocate_slots(request, 4, full_sequence_must_fit=True)
        assert isinstance(refused, BlockShortage)
        assert refused.full_sequence
        assert (refused.asked, refused.free) == (5, 4)
        assert not isinstance(manager.allocate_slots(request, 4), BlockShortage)

    @pytest.mark.parametrize(
        ("status", "others_run", "refused"),
        [
            (RequestStatus.WAITING, True, True),
            (RequestStatus.PREEMPTED, True, True),
            (RequestStatus.WAITING, False, False),  # alone, a request may have everything
            (RequestStatus.RUNNING, True, False),  # the watermark is for admissions
        ],
    )
    def test_the_watermark_keeps_blocks_free_of_admissions_beside_others(
        self, status: RequestStatus, others_run: bool, refused: bool
    ) -> None:
        manager = make_manager(20, watermark=0.25)  # 19 usable, 5 to keep
        request = make_request("a", 60, status=status)  # 15 blocks
        got = manager.allocate_slots(request, 60, has_scheduled_reqs=others_run)
        assert isinstance(got, BlockShortage) == refused
        if isinstance(got, BlockShortage):
            assert got.numbers == {"asked": 15, "free": 19, "watermark": 5, "reserved": 0}


class TestFree:
    def test_a_table_goes_back_from_its_end(self) -> None:
        manager = make_manager(8)
        request = make_request("a", 14)  # 3 full blocks and a part
        admit(manager, request)
        manager.free(request)
        assert ids(list(manager.block_pool.free_block_queue)) == [4, 5, 6, 7, 3, 2, 1]
        assert manager.get_block_ids("a") == []

    def test_it_is_idempotent(self) -> None:
        manager = make_manager()
        request = make_request("a", 5)
        admit(manager, request)
        manager.free(request)
        manager.free(request)
        check_block_pool(manager)

    def test_the_tail_of_a_prefix_is_evicted_before_its_head(self) -> None:
        manager = make_manager(6)  # 5 usable
        first = make_request("first", list(range(13)))  # 4 blocks
        admit(manager, first)
        manager.free(first)
        admit(manager, make_request("other", 12))  # takes the free one, block 4 (not full) and block 3
        assert manager.get_computed_blocks(make_request("again", list(range(13))))[1] == 8


class TestCommonPrefix:
    def test_it_is_what_every_owner_of_blocks_shares(self) -> None:
        manager = make_manager()
        admit(manager, make_request("a", [*range(8), 50]))
        assert manager.get_num_common_prefix_blocks("a") == 3, "alone, a request shares all with everyone"
        admit(manager, make_request("b", [*range(8), 60]))
        assert manager.get_num_common_prefix_blocks("a") == 2
        admit(manager, make_request("c", [*range(4), 70, 71]))
        assert manager.get_num_common_prefix_blocks("a") == 1
        third = make_request("d", 4)
        admit(manager, third)
        assert manager.get_num_common_prefix_blocks("a") == 0
        manager.free(third)
        assert manager.get_num_common_prefix_blocks("a") == 1

    def test_equal_blocks_that_were_computed_twice_are_not_shared(self) -> None:
        manager = make_manager()
        a, b = make_request("a", list(range(8))), make_request("b", list(range(8)))
        manager.allocate_slots(a, 8)
        manager.allocate_slots(b, 8)  # in the same step, without a look-up
        assert manager.get_num_common_prefix_blocks("a") == 0

    def test_it_is_nothing_with_caching_off(self) -> None:
        manager = make_manager(caching=False)
        admit(manager, make_request("a", 8))
        assert manager.get_num_common_prefix_blocks("a") == 0
