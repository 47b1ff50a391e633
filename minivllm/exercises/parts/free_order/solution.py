"""What becomes of blocks that are given back: those that nobody can find again are used first."""

from __future__ import annotations

from collections.abc import Iterable

from minivllm.core.block_pool import BlockPool
from minivllm.core.free_block_queue import KVCacheBlock


def free_blocks(self: BlockPool, ordered_blocks: Iterable[KVCacheBlock]) -> None:
    """Take a user from blocks; those without users become free.

    Args:
        self: The block pool.
        ordered_blocks: Next to be reused first, of those that go to the same end of the queue.
    """
    to_head: list[KVCacheBlock] = []
    to_tail: list[KVCacheBlock] = []
    for block in ordered_blocks:
        block.ref_cnt -= 1
        if block.ref_cnt == 0 and not block.is_null:
            is_nameless = self.enable_caching and block.block_hash is None
            (to_head if is_nameless else to_tail).append(block)
    self.free_block_queue.prepend_n(to_head)
    self.free_block_queue.append_n(to_tail)
