"""The queue of free blocks, against a plain list."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minivllm.core.free_block_queue import FreeKVCacheBlockQueue, KVCacheBlock

NUM_BLOCKS = 8


@given(operations=st.lists(st.tuples(st.sampled_from(["pop", "remove", "append", "prepend"]), st.integers(0, 7))))
def test_the_queue_behaves_like_a_list(operations: list[tuple[str, int]]) -> None:
    blocks = [KVCacheBlock(i) for i in range(NUM_BLOCKS)]
    queue, model = FreeKVCacheBlockQueue(blocks), list(range(NUM_BLOCKS))
    for kind, number in operations:
        outside = [block for block in blocks if block.block_id not in model][:number]
        if kind == "pop":
            count = min(number, len(model))
            assert [block.block_id for block in queue.popleft_n(count)] == model[:count]
            del model[:count]
        elif kind == "remove" and number in model:
            queue.remove(blocks[number])
            model.remove(number)
        elif kind == "append":
            queue.append_n(outside)
            model += [block.block_id for block in outside]
        elif kind == "prepend":
            queue.prepend_n(outside)
            model = [block.block_id for block in outside] + model
        assert [block.block_id for block in queue] == model
        assert queue.num_free_blocks == len(model)


def test_a_block_leaves_from_the_middle_without_a_search() -> None:
    blocks = [KVCacheBlock(i) for i in range(5)]
    queue = FreeKVCacheBlockQueue(blocks)
    queue.remove(blocks[2])
    assert [block.block_id for block in queue] == [0, 1, 3, 4]
    assert blocks[2].prev_free is None
    assert blocks[2].next_free is None


def test_taking_what_is_not_there_is_a_fault_of_the_caller() -> None:
    blocks = [KVCacheBlock(i) for i in range(2)]
    queue = FreeKVCacheBlockQueue(blocks)
    with pytest.raises(AssertionError, match="INV-01"):
        queue.popleft_n(3)
    queue.remove(blocks[0])
    with pytest.raises(AssertionError, match="INV-01"):
        queue.remove(blocks[0])
