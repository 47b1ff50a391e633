"""A prefix look-up that remembers its answer for whoever has to wait."""

from __future__ import annotations

from minivllm.core.free_block_queue import KVCacheBlock
from minivllm.core.kv_cache_manager import KVCacheManager
from minivllm.core.request import Request


def get_computed_blocks(self: KVCacheManager, request: Request) -> tuple[list[KVCacheBlock], int]:
    """Find the longest cached prefix of a request; once, since its prompt does not change while it waits."""
    hits: dict[str, list[KVCacheBlock]] = self.__dict__.setdefault("hits_of_waiting", {})
    if not self.enable_caching or request.sampling_params.skip_reading_prefix_cache:
        return [], 0
    if request.request_id not in hits:
        blocks = []
        for block_hash in request.block_hashes[: (request.num_tokens - 1) // self.block_size]:
            block = self.block_pool.get_cached_block(block_hash)
            if block is None:
                break
            blocks.append(block)
        hits[request.request_id] = blocks
    return hits[request.request_id], len(hits[request.request_id]) * self.block_size
