"""Blocks for the tokens that a request is about to compute."""

from __future__ import annotations

from collections.abc import Sequence

from minivllm.core.free_block_queue import KVCacheBlock
from minivllm.core.kv_cache_manager import BlockShortage, KVCacheManager
from minivllm.core.request import Request


def allocate_slots(
    self: KVCacheManager,
    request: Request,
    num_new_tokens: int,
    num_new_computed_tokens: int = 0,
    new_computed_blocks: Sequence[KVCacheBlock] = (),
    *,
    num_lookahead_tokens: int = 0,
    num_external_computed_tokens: int = 0,
    delay_cache_blocks: bool = False,
    full_sequence_must_fit: bool = False,
    reserved_blocks: int = 0,
    has_scheduled_reqs: bool = False,
) -> list[KVCacheBlock] | BlockShortage:
    """Give a request slots for the tokens that it is about to compute, or say what is missing.

        |  computed  |  found in the cache  |   new   |  lookahead  |
        |<----- has keys and values ------->|<-- slots needed ----->|

    Args:
        self: The KV cache manager.
        request: The request.
        num_new_tokens: Tokens to compute.
        num_new_computed_tokens: Tokens that were found in the cache (only at admission).
        new_computed_blocks: Their blocks.
        num_lookahead_tokens: Slots to reserve behind the new tokens.
        num_external_computed_tokens: Always 0 here.
        delay_cache_blocks: Publish nothing.
        full_sequence_must_fit: Refuse unless every known token of the request fits.
        reserved_blocks: Free blocks to leave to others.
        has_scheduled_reqs: Others are running.

    Returns:
        The blocks taken from the free queue (without those of the hit), or the shortage.
    """
    computed = request.num_computed_tokens + num_new_computed_tokens
    need_slots = min(computed + num_new_tokens + num_lookahead_tokens, self.max_model_len)
    blocks = self.req_to_blocks.get(request.request_id)
    held = len(blocks) if blocks is not None else 0
    num_new_blocks = _blocks_for(need_slots, self.block_size) - held - len(new_computed_blocks)

    lying_free = sum(block.ref_cnt == 0 for block in new_computed_blocks)
    watermark = self._watermark(request, has_scheduled_reqs)
    if full_sequence_must_fit:
        full = _blocks_for(min(request.num_tokens, self.max_model_len), self.block_size)
        asked = max(full - held - len(new_computed_blocks), 0) + lying_free
        if shortage := self._shortage(asked, watermark, 0, full_sequence=True):
            return shortage
    asked = max(num_new_blocks, 0) + lying_free
    if asked and (shortage := self._shortage(asked, watermark, reserved_blocks, full_sequence=False)):
        return shortage

    if blocks is None:
        blocks = self._adopt(request, new_computed_blocks)
    new_blocks = self.block_pool.get_new_blocks(max(num_new_blocks, 0))
    blocks.extend(new_blocks)
    if self.enable_caching and not delay_cache_blocks:
        self.cache_blocks(request, min(computed + num_new_tokens, request.num_tokens))
    return new_blocks


def _blocks_for(num_tokens: int, block_size: int) -> int:
    """Blocks that hold so many tokens: the quotient, rounded up."""
    return -(-num_tokens // block_size)
