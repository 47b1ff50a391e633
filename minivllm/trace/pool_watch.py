"""Owns telling what a step did to the block pool, by comparing it with how it stood a step ago."""

from __future__ import annotations

from itertools import compress
from operator import attrgetter, is_not
from typing import Any

_ref_cnt = attrgetter("ref_cnt")
_block_hash = attrgetter("block_hash")


class PoolWatch:
    """Compares a pool with its last picture. Looks at every block in every step, so it leaves the looping to C.

    Args:
        pool: A BlockPool (or anything with its names).
    """

    def __init__(self, pool: Any) -> None:
        self._pool = pool
        self._owned = self._owned_ids()
        self._hashes = self._block_hashes()

    def changes(self) -> dict[str, Any]:
        """Counts as they stand now, and the blocks that became free or lost their hash since the last call."""
        owned, hashes, hashes_before = self._owned_ids(), self._block_hashes(), self._hashes
        freed = sorted(self._owned - owned)
        changed = compress(range(len(hashes)), map(is_not, hashes_before, hashes))
        evicted = [i for i in changed if hashes_before[i] not in (None, hashes[i])]
        num_cached = len(hashes) - hashes.count(None)
        num_cached_owned = sum(hashes[i] is not None for i in owned)
        self._owned, self._hashes = owned, hashes
        return {
            "owned_blocks": len(owned),
            "cached_free_blocks": num_cached - num_cached_owned,
            "freed": freed,
            "evicted": evicted,
        }

    def _owned_ids(self) -> set[int]:
        blocks = self._pool.blocks
        return set(compress(range(len(blocks)), map(_ref_cnt, blocks)))

    def _block_hashes(self) -> list[bytes | None]:
        return list(map(_block_hash, self._pool.blocks))
