"""Owns telling what a step did to the block pool, by comparing it with how it stood a step ago."""

from __future__ import annotations

from typing import Any


class PoolWatch:
    """Compares a pool with its last picture.

    Args:
        pool: A BlockPool (or anything with its names).
    """

    def __init__(self, pool: Any) -> None:
        self._pool = pool
        self._owned = self._owned_ids()
        self._hashes = self._block_hashes()

    def changes(self) -> dict[str, Any]:
        """Counts as they stand now, and the blocks that became free or lost their hash since the last call."""
        owned, hashes = self._owned_ids(), self._block_hashes()
        freed = sorted(self._owned - owned)
        evicted = sorted(i for i, block_hash in self._hashes.items() if hashes.get(i) != block_hash)
        self._owned, self._hashes = owned, hashes
        return {
            "owned_blocks": len(owned),
            "cached_free_blocks": len(hashes.keys() - owned),
            "freed": freed,
            "evicted": evicted,
        }

    def _owned_ids(self) -> set[int]:
        return {block.block_id for block in self._pool.blocks if block.ref_cnt > 0}

    def _block_hashes(self) -> dict[int, bytes]:
        return {block.block_id: block.block_hash for block in self._pool.blocks if block.block_hash is not None}
