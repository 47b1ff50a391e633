"""Owns which block is free, which is cached, and how many users each has. Nobody else changes a reference count.

Upstream: vllm/v1/core/block_pool.py::BlockPool.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from minivllm.core.free_block_queue import FreeKVCacheBlockQueue, KVCacheBlock
from minivllm.sourcemap.registry import on_map


class BlockPool:
    """All blocks, the queue of free ones, and the map from hash to cached block.

    "Free" means that a block may be overwritten, not that it is erased: a free block that has a hash can still be
    hit, until it reaches the head of the queue and is handed out for something else.

    Args:
        num_gpu_blocks: Blocks in all; block 0 becomes the null block.
        enable_caching: Whether blocks may have hashes.
    """

    def __init__(self, num_gpu_blocks: int, enable_caching: bool) -> None:
        self.num_gpu_blocks = num_gpu_blocks
        self.enable_caching = enable_caching
        self.blocks = [KVCacheBlock(i) for i in range(num_gpu_blocks)]
        self.free_block_queue = FreeKVCacheBlockQueue(self.blocks)
        # One hash can have several blocks: a request whose whole prompt is cached computes its last block again and
        # publishes it a second time. All are kept, the first published first, so that losing one does not lose the
        # prefix.
        self.cached_block_hash_to_block: dict[bytes, dict[int, KVCacheBlock]] = {}
        self.null_block = self.free_block_queue.popleft_n(1)[0]
        self.null_block.is_null = True
        self.num_evictions = 0

    def get_num_free_blocks(self) -> int:
        return self.free_block_queue.num_free_blocks

    def get_usage(self) -> float:
        """Share of the blocks that requests hold, in [0, 1]."""
        usable = self.num_gpu_blocks - 1
        return 1.0 - self.get_num_free_blocks() / usable if usable else 0.0

    def get_cached_block(self, block_hash: bytes) -> KVCacheBlock | None:
        """A block of that name (the one published first), in use or free, or None."""
        blocks = self.cached_block_hash_to_block.get(block_hash)
        return next(iter(blocks.values())) if blocks else None

    @on_map("get new blocks", vllm="vllm/v1/core/block_pool.py::BlockPool.get_new_blocks")
    def get_new_blocks(self, num_blocks: int) -> list[KVCacheBlock]:
        """Take blocks from the head of the free queue; each loses the hash it may still have (an eviction)."""
        blocks = self.free_block_queue.popleft_n(num_blocks)
        for block in blocks:
            assert block.ref_cnt == 0, f"INV-02: free block #{block.block_id} has {block.ref_cnt} users"
            block.ref_cnt = 1
        self.evict_blocks(blocks)
        return blocks

    @on_map("evict blocks", vllm="vllm/v1/core/block_pool.py::BlockPool.evict_blocks")
    def evict_blocks(self, blocks: Iterable[KVCacheBlock]) -> None:
        """Take the hash from blocks that have one, in use or free: nobody can hit them any more."""
        for block in blocks:
            if block.block_hash is not None:
                self._evict(block)

    @on_map("touch", vllm="vllm/v1/core/block_pool.py::BlockPool.touch")
    def touch(self, blocks: Iterable[KVCacheBlock]) -> None:
        """Add a user to blocks that were found in the cache; a free one leaves the free queue."""
        for block in blocks:
            if block.ref_cnt == 0 and not block.is_null:
                self.free_block_queue.remove(block)
            block.ref_cnt += 1

    @on_map("free blocks", vllm="vllm/v1/core/block_pool.py::BlockPool.free_blocks")
    def free_blocks(self, ordered_blocks: Iterable[KVCacheBlock]) -> None:
        """Take a user from blocks; those without users become free.

        Args:
            ordered_blocks: Next to be reused first: a request hands in its table from the end, because the end of a
                sequence is what others are least likely to share.
        """
        to_head: list[KVCacheBlock] = []
        to_tail: list[KVCacheBlock] = []
        for block in ordered_blocks:
            block.ref_cnt -= 1
            assert block.ref_cnt >= 0, f"INV-02: block #{block.block_id} was freed more often than it was taken"
            if block.ref_cnt == 0 and not block.is_null:
                # Without a hash nobody can ever hit it, so it is the best one to reuse. (With caching off all are
                # equal, and the tail keeps the order of release.)
                (to_head if self.enable_caching and block.block_hash is None else to_tail).append(block)
        self.free_block_queue.prepend_n(to_head)
        self.free_block_queue.append_n(to_tail)

    @on_map("publish full blocks", vllm="vllm/v1/core/block_pool.py::BlockPool.cache_full_blocks")
    def cache_full_blocks(self, blocks: Sequence[KVCacheBlock], block_hashes: Sequence[bytes]) -> None:
        """Give full blocks their names, so that others can hit them. Both sequences have the same length."""
        for block, block_hash in zip(blocks, block_hashes, strict=True):
            if block.is_null:
                continue
            assert block.block_hash is None, f"INV-07: block #{block.block_id} is published twice"
            block.block_hash = block_hash
            self.cached_block_hash_to_block.setdefault(block_hash, {})[block.block_id] = block

    @on_map("reset prefix cache", vllm="vllm/v1/core/block_pool.py::BlockPool.reset_prefix_cache")
    def reset_prefix_cache(self) -> bool:
        """Forget every hash. Refused (False) while any block is in use: its KV may be half written."""
        if self.get_num_free_blocks() != self.num_gpu_blocks - 1:
            return False
        self.cached_block_hash_to_block.clear()
        for block in self.blocks:
            block.block_hash = None
        return True

    def _evict(self, block: KVCacheBlock) -> None:
        assert block.block_hash is not None
        same_hash = self.cached_block_hash_to_block[block.block_hash]
        del same_hash[block.block_id]
        if not same_hash:
            del self.cached_block_hash_to_block[block.block_hash]
        block.block_hash = None
        self.num_evictions += 1
