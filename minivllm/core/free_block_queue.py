"""Owns the order in which free blocks are used again.

The links live in the blocks themselves, so a block that is hit while it lies free leaves the middle of the queue
without a search. Upstream: vllm/v1/core/kv_cache_utils.py (KVCacheBlock, FreeKVCacheBlockQueue).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence


class KVCacheBlock:
    """What the scheduler knows of one page of the KV pool. The page itself is the worker's.

    Attributes:
        block_id: The page number.
        ref_cnt: Requests whose block table holds it.
        block_hash: Its name in the prefix cache; None unless it is full and published.
        is_null: The one placeholder block (id 0), which is never handed out and never freed.
    """

    __slots__ = ("block_hash", "block_id", "is_null", "next_free", "prev_free", "ref_cnt")

    def __init__(self, block_id: int) -> None:
        self.block_id = block_id
        self.ref_cnt = 0
        self.block_hash: bytes | None = None
        self.is_null = False
        self.prev_free: KVCacheBlock | None = None
        self.next_free: KVCacheBlock | None = None

    def __repr__(self) -> str:
        cached = self.block_hash.hex()[:8] if self.block_hash else None
        return f"KVCacheBlock(#{self.block_id}, ref_cnt={self.ref_cnt}, hash={cached})"


class FreeKVCacheBlockQueue:
    """A doubly linked list from the next block to be reused to the last.

        head (sentinel) <-> #7 <-> #3 <-> #12 <-> tail (sentinel)

    Two sentinels spare every operation the question whether it is at an end.
    """

    def __init__(self, blocks: Sequence[KVCacheBlock]) -> None:
        self._head = KVCacheBlock(-1)
        self._tail = KVCacheBlock(-1)
        self._head.next_free = self._tail
        self._tail.prev_free = self._head
        self.num_free_blocks = 0
        self.append_n(blocks)

    def popleft_n(self, n: int) -> list[KVCacheBlock]:
        """Take the n blocks at the head, in order. The caller has checked that there are n."""
        assert n <= self.num_free_blocks, f"INV-01: {n} blocks asked of {self.num_free_blocks} free ones"
        popped: list[KVCacheBlock] = []
        block = self._head.next_free
        for _ in range(n):
            assert block is not None
            popped.append(block)
            following = block.next_free
            block.prev_free = block.next_free = None
            block = following
        assert block is not None
        self._head.next_free = block
        block.prev_free = self._head
        self.num_free_blocks -= n
        return popped

    def remove(self, block: KVCacheBlock) -> None:
        """Take a block out of the middle."""
        before, after = block.prev_free, block.next_free
        assert before is not None, f"INV-01: block #{block.block_id} is not in the free queue"
        assert after is not None, f"INV-01: block #{block.block_id} is not in the free queue"
        before.next_free = after
        after.prev_free = before
        block.prev_free = block.next_free = None
        self.num_free_blocks -= 1

    def append_n(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Put blocks at the tail, in order: reused last."""
        assert self._tail.prev_free is not None
        self._insert_after(self._tail.prev_free, blocks)

    def prepend_n(self, blocks: Sequence[KVCacheBlock]) -> None:
        """Put blocks at the head, in order: reused first."""
        self._insert_after(self._head, blocks)

    def _insert_after(self, last: KVCacheBlock, blocks: Sequence[KVCacheBlock]) -> None:
        after = last.next_free
        assert after is not None
        for block in blocks:
            last.next_free = block
            block.prev_free = last
            last = block
        last.next_free = after
        after.prev_free = last
        self.num_free_blocks += len(blocks)

    def __iter__(self) -> Iterator[KVCacheBlock]:
        """The free blocks, next to be reused first."""
        block = self._head.next_free
        while block is not None and block is not self._tail:
            yield block
            block = block.next_free
