"""The longest cached beginning of a request: names are looked up in order, up to the first that is missing."""

from __future__ import annotations

from minivllm.core.free_block_queue import KVCacheBlock
from minivllm.core.kv_cache_manager import KVCacheManager
from minivllm.core.request import Request


def get_computed_blocks(self: KVCacheManager, request: Request) -> tuple[list[KVCacheBlock], int]:
    """Find the longest cached prefix of a request. Changes nothing.

    Args:
        self: The KV cache manager: `enable_caching`, `block_size`, `block_pool`.
        request: The request: `block_hashes`, `num_tokens`.

    Returns:
        The blocks in order, and the number of tokens that they hold.
    """
    if not self.enable_caching or request.sampling_params.skip_reading_prefix_cache:
        return [], 0
    blocks: list[KVCacheBlock] = []
    most = (request.num_tokens - 1) // self.block_size  # the last token is computed in any case
    for name in request.block_hashes[:most]:
        block = self.block_pool.get_cached_block(name)
        if block is None:
            break
        blocks.append(block)
    return blocks, len(blocks) * self.block_size
