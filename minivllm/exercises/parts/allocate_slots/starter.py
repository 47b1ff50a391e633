"""Blocks for the tokens that a request is about to compute. Your function takes the place of the manager's method."""

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
    raise NotImplementedError("count the blocks, ask for them, take them, publish the full ones")
