"""Blocks: who gets which one next, what stays findable, and what is evicted."""

from __future__ import annotations

import pytest

from minivllm.core.block_pool import BlockPool


def make_pool(num_blocks: int = 9, *, caching: bool = True) -> BlockPool:
    return BlockPool(num_blocks, caching)


def order(pool: BlockPool) -> list[int]:
    return [block.block_id for block in pool.free_block_queue]


def test_block_0_is_the_null_block_and_is_never_handed_out() -> None:
    pool = make_pool(4)
    assert pool.null_block.block_id == 0
    assert pool.null_block.is_null
    assert [block.block_id for block in pool.get_new_blocks(3)] == [1, 2, 3]
    assert pool.get_num_free_blocks() == 0


def test_new_blocks_come_from_the_head_of_the_free_queue() -> None:
    pool = make_pool()
    assert [block.block_id for block in pool.get_new_blocks(2)] == [1, 2]
    assert order(pool) == [3, 4, 5, 6, 7, 8]


class TestFreedBlocks:
    def test_hashed_ones_go_to_the_tail_and_unhashed_ones_to_the_head(self) -> None:
        pool = make_pool()
        blocks = pool.get_new_blocks(4)
        pool.cache_full_blocks(blocks[:2], [b"a", b"b"])
        pool.free_blocks(reversed(blocks))  # a request gives its table back from the end
        assert order(pool) == [4, 3, 5, 6, 7, 8, 2, 1]

    def test_with_caching_off_all_go_to_the_tail(self) -> None:
        pool = make_pool(caching=False)
        pool.free_blocks(reversed(pool.get_new_blocks(3)))
        assert order(pool) == [4, 5, 6, 7, 8, 3, 2, 1]

    def test_a_block_becomes_free_with_its_last_user(self) -> None:
        pool = make_pool()
        (block,) = pool.get_new_blocks(1)
        pool.touch([block])
        pool.free_blocks([block])
        assert block.ref_cnt == 1
        assert block.block_id not in order(pool)
        pool.free_blocks([block])
        assert block.block_id in order(pool)

    def test_freeing_once_too_often_is_a_fault(self) -> None:
        pool = make_pool()
        (block,) = pool.get_new_blocks(1)
        pool.free_blocks([block])
        with pytest.raises(AssertionError, match="INV-02"):
            pool.free_blocks([block])


class TestCachedBlocks:
    def test_a_free_block_can_still_be_hit_and_leaves_the_middle_of_the_queue(self) -> None:
        pool = make_pool()
        blocks = pool.get_new_blocks(3)
        pool.cache_full_blocks(blocks, [b"a", b"b", b"c"])
        pool.free_blocks(reversed(blocks))
        hit = pool.get_cached_block(b"b")
        assert hit is blocks[1]
        pool.touch([hit])
        assert order(pool) == [4, 5, 6, 7, 8, 3, 1]
        assert hit.ref_cnt == 1

    def test_a_lookup_changes_nothing(self) -> None:
        pool = make_pool()
        blocks = pool.get_new_blocks(2)
        pool.cache_full_blocks(blocks, [b"a", b"b"])
        pool.free_blocks(reversed(blocks))
        before = order(pool)
        assert pool.get_cached_block(b"a") is blocks[0]
        assert pool.get_cached_block(b"unknown") is None
        assert order(pool) == before
        assert blocks[0].ref_cnt == 0

    def test_being_handed_out_again_evicts_it(self) -> None:
        pool = make_pool(4)
        blocks = pool.get_new_blocks(3)
        pool.cache_full_blocks(blocks, [b"a", b"b", b"c"])
        pool.free_blocks(reversed(blocks))
        (reused,) = pool.get_new_blocks(1)
        assert reused is blocks[2], "the last block of a sequence goes first"
        assert reused.block_hash is None
        assert pool.get_cached_block(b"c") is None
        assert pool.get_cached_block(b"a") is blocks[0]
        assert pool.num_evictions == 1

    def test_two_blocks_of_one_hash_are_both_kept_and_the_first_published_is_hit(self) -> None:
        pool = make_pool(4)
        first, second = pool.get_new_blocks(2)
        pool.cache_full_blocks([second], [b"same"])
        pool.cache_full_blocks([first], [b"same"])
        assert pool.get_cached_block(b"same") is second
        pool.free_blocks([second, first])
        pool.get_new_blocks(2)  # block 3, and then `second`
        assert pool.get_cached_block(b"same") is first, "losing one does not lose the prefix"
        assert len(pool.cached_block_hash_to_block) == 1
        pool.get_new_blocks(1)
        assert pool.get_cached_block(b"same") is None
        assert not pool.cached_block_hash_to_block

    def test_a_block_is_published_once(self) -> None:
        pool = make_pool()
        blocks = pool.get_new_blocks(1)
        pool.cache_full_blocks(blocks, [b"a"])
        with pytest.raises(AssertionError, match="INV-07"):
            pool.cache_full_blocks(blocks, [b"b"])


class TestReset:
    def test_it_is_refused_while_a_block_is_in_use(self) -> None:
        pool = make_pool()
        blocks = pool.get_new_blocks(2)
        pool.cache_full_blocks(blocks, [b"a", b"b"])
        pool.free_blocks(blocks[:1])
        assert not pool.reset_prefix_cache()
        assert pool.get_cached_block(b"a") is blocks[0]

    def test_it_forgets_every_hash(self) -> None:
        pool = make_pool()
        blocks = pool.get_new_blocks(2)
        pool.cache_full_blocks(blocks, [b"a", b"b"])
        pool.free_blocks(reversed(blocks))
        assert pool.reset_prefix_cache()
        assert pool.get_cached_block(b"a") is None
        assert all(block.block_hash is None for block in pool.blocks)
        pool.get_new_blocks(8)
        assert pool.num_evictions == 0


def test_usage_is_the_share_of_blocks_that_requests_hold() -> None:
    pool = make_pool(9)
    assert pool.get_usage() == 0.0
    blocks = pool.get_new_blocks(4)
    pool.cache_full_blocks(blocks, [b"a", b"b", b"c", b"d"])
    assert pool.get_usage() == 0.5
    pool.free_blocks(blocks)
    assert pool.get_usage() == 0.0, "a cached block that nobody holds is free"
