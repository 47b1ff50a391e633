"""What becomes of blocks that are given back. Your function takes the place of the pool's method."""

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
    raise NotImplementedError("take a user from each block, and queue those that have none")
