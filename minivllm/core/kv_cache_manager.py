"""Owns which request holds which blocks, in which order: the logical block tables.

The scheduler asks here for slots; the pool (`block_pool.py`) knows the blocks; the worker gets their ids in the plan
and keeps a mirror. Upstream: vllm/v1/core/kv_cache_manager.py, and for its one full-attention group
single_type_kv_cache_manager.py::FullAttentionManager.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from minivllm.core.block_pool import BlockPool
from minivllm.core.free_block_queue import KVCacheBlock
from minivllm.core.request import Request, RequestStatus
from minivllm.sourcemap.registry import on_map


@dataclass(frozen=True, slots=True)
class BlockShortage:
    """Why an allocation was refused; nothing was changed by it.

    Attributes:
        asked: Blocks that would leave the free queue.
        free: Blocks in the free queue.
        watermark: Blocks to keep free beyond that.
        reserved: Free blocks promised to others.
        full_sequence: True if `asked` is for the whole known sequence, False if for the scheduled tokens only.
    """

    asked: int
    free: int
    watermark: int
    reserved: int
    full_sequence: bool

    @property
    def numbers(self) -> dict[str, int]:
        """The quantities that were compared: asked + watermark > free - reserved."""
        return {"asked": self.asked, "free": self.free, "watermark": self.watermark, "reserved": self.reserved}


@dataclass(slots=True)
class PrefixCacheStats:
    """Look-ups of admitted requests, in tokens. Upstream: vllm/v1/metrics/stats.py::PrefixCacheStats.

    Requests that come back from a preemption are counted apart: they find what they computed themselves, which says
    nothing of what prompts have in common.
    """

    requests: int = 0
    queries: int = 0
    hits: int = 0
    preempted_requests: int = 0
    preempted_queries: int = 0
    preempted_hits: int = 0

    def record(self, num_tokens: int, num_hits: int, preempted: bool) -> None:
        """Count one look-up."""
        if preempted:
            self.preempted_requests += 1
            self.preempted_queries += num_tokens
            self.preempted_hits += num_hits
        else:
            self.requests += 1
            self.queries += num_tokens
            self.hits += num_hits


_NO_BLOCKS: list[KVCacheBlock] = []


class KVCacheManager:
    """Allocation and prefix cache for one full-attention group.

    Args:
        num_gpu_blocks: Blocks in the pool, the null block included.
        block_size: Tokens per block.
        max_model_len: No request ever needs slots beyond it.
        enable_caching: Whether full blocks are published and looked up.
        watermark: Share of all blocks to keep free when a request is admitted beside others.
    """

    def __init__(
        self, num_gpu_blocks: int, block_size: int, max_model_len: int, enable_caching: bool, watermark: float = 0.0
    ) -> None:
        self.block_size = block_size
        self.max_model_len = max_model_len
        self.enable_caching = enable_caching
        self.watermark_blocks = int(watermark * num_gpu_blocks)
        self.block_pool = BlockPool(num_gpu_blocks, enable_caching)
        # A request's block table: position p lives in req_to_blocks[id][p // block_size].
        self.req_to_blocks: dict[str, list[KVCacheBlock]] = {}
        # How many of them, from the start, carry a published hash.
        self.num_cached_block: dict[str, int] = {}
        self.prefix_cache_stats = PrefixCacheStats()
        # The common prefix can only change when a request gets its first blocks or gives its blocks back.
        self._common_prefix: tuple[str, int] | None = None

    @on_map("prefix lookup", vllm="vllm/v1/core/kv_cache_manager.py::KVCacheManager.get_computed_blocks")
    def get_computed_blocks(self, request: Request) -> tuple[list[KVCacheBlock], int]:
        """Find the longest cached prefix of a request. Changes nothing: the blocks are not the request's yet.

        At least the last token is always computed, because its logits are needed; as hits are whole blocks, a prompt
        that is cached to its end and fills its last block recomputes that block.

        Returns:
            The blocks in order, and the number of tokens that they hold.
        """
        if not self._looks_up(request):
            return _NO_BLOCKS, 0
        max_hit_blocks = (request.num_tokens - 1) // self.block_size
        computed_blocks: list[KVCacheBlock] = []
        for block_hash in request.block_hashes[:max_hit_blocks]:
            block = self.block_pool.get_cached_block(block_hash)
            if block is None:
                break  # hashes are chained: whatever follows a miss cannot be this prefix
            computed_blocks.append(block)
        return computed_blocks, len(computed_blocks) * self.block_size

    def record_prefix_cache_stats(self, request: Request, num_hits: int) -> bool:
        """Count the look-up of a request that was admitted (one that led nowhere is not counted).

        Returns:
            Whether there was one: not with the cache off, nor for a request whose KV had come from outside.
        """
        if request.num_computed_tokens > 0 or not self._looks_up(request):
            return False
        self.prefix_cache_stats.record(request.num_tokens, num_hits, preempted=request.num_preemptions > 0)
        return True

    @on_map("allocate slots", vllm="vllm/v1/core/kv_cache_manager.py::KVCacheManager.allocate_slots")
    def allocate_slots(
        self,
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

            |  comp  |  new_comp  |  ext_comp  |   new   |  lookahead  |
            |<---------- has KV -------------->|<- compute ->|         |
                     |< found here >|< from outside >|< slots needed ->|

        comp is `request.num_computed_tokens`. Blocks of comp are the request's already; those of new_comp get one
        more user; the rest is taken from the free queue. Full blocks up to the last known token are published at
        once, before their KV is written. Even a request that is admitted in this same step may hit them: each layer
        writes the KV of the whole batch before any query of the batch reads it.

        Args:
            request: The request.
            num_new_tokens: Tokens to compute, drafts included.
            num_new_computed_tokens: Tokens of the local prefix hit (only at admission).
            new_computed_blocks: Their blocks, from `get_computed_blocks`.
            num_lookahead_tokens: Slots to reserve behind them.
            num_external_computed_tokens: Tokens whose KV arrives from outside.
            delay_cache_blocks: Publish nothing yet, because that KV is still on its way.
            full_sequence_must_fit: Refuse unless every known token of the request fits.
            reserved_blocks: Free blocks to leave to others.
            has_scheduled_reqs: Others are running: the watermark applies to an admission.

        Returns:
            The blocks taken from the free queue (without those of the hit), or the shortage.
        """
        assert num_new_tokens > 0 or num_external_computed_tokens > 0, "an allocation must be for at least one token"
        blocks = self.req_to_blocks.get(request.request_id)
        has_found = num_new_computed_tokens or num_external_computed_tokens
        if blocks is not None and not has_found and not full_sequence_must_fit:
            num_tokens = request.num_computed_tokens + num_new_tokens
            if num_tokens + num_lookahead_tokens <= len(blocks) * self.block_size:
                # By far the most calls: a request that decodes, and its last block has room.
                if self.enable_caching and not delay_cache_blocks:
                    self.cache_blocks(request, min(num_tokens, request.num_tokens))
                return _NO_BLOCKS

        local_computed = request.num_computed_tokens + num_new_computed_tokens
        total_computed = min(local_computed + num_external_computed_tokens, self.max_model_len)
        num_tokens_main_model = total_computed + num_new_tokens
        need_slots = min(num_tokens_main_model + num_lookahead_tokens, self.max_model_len)

        num_held = len(blocks) if blocks is not None else 0
        num_new_blocks = -(-need_slots // self.block_size) - num_held - len(new_computed_blocks)

        if num_new_blocks > 0 or blocks is None or full_sequence_must_fit:
            # A hit block without users lies in the free queue and is about to leave it, so it counts as asked for.
            hits_lying_free = sum(block.ref_cnt == 0 for block in new_computed_blocks)
            watermark = self._watermark(request, has_scheduled_reqs)
            if full_sequence_must_fit:
                full_blocks = -(-min(request.num_tokens, self.max_model_len) // self.block_size)
                asked = max(full_blocks - num_held - len(new_computed_blocks), 0) + hits_lying_free
                if shortage := self._shortage(asked, watermark, 0, full_sequence=True):
                    return shortage
            asked = max(num_new_blocks, 0) + hits_lying_free
            if shortage := self._shortage(asked, watermark, reserved_blocks, full_sequence=False):
                return shortage

        if blocks is None:
            blocks = self._adopt(request, new_computed_blocks)
        new_blocks = _NO_BLOCKS
        if num_new_blocks > 0:
            new_blocks = self.block_pool.get_new_blocks(num_new_blocks)
            blocks.extend(new_blocks)
        if self.enable_caching and not delay_cache_blocks:
            # Drafts may be rejected: nothing beyond the known tokens is published.
            self.cache_blocks(request, min(num_tokens_main_model, request.num_tokens))
        return new_blocks

    @on_map("publish blocks", vllm="vllm/v1/core/kv_cache_manager.py::KVCacheManager.cache_blocks")
    def cache_blocks(self, request: Request, num_tokens: int) -> None:
        """Publish the full blocks among a request's first num_tokens tokens that are not published yet."""
        num_full_blocks = num_tokens // self.block_size
        num_cached = self.num_cached_block[request.request_id]
        if num_cached >= num_full_blocks or not self.enable_caching:
            return
        self.block_pool.cache_full_blocks(
            self.req_to_blocks[request.request_id][num_cached:num_full_blocks],
            request.block_hashes[num_cached:num_full_blocks],
        )
        self.num_cached_block[request.request_id] = num_full_blocks

    def take_back_planned(self, request: Request) -> None:
        """Unpublish the blocks that a planned step was to fill, because the request has left the plan.

        Nobody will write them, and whoever hit them would read what an earlier owner left there.
        """
        first_unwritten = request.num_computed_tokens // self.block_size
        num_cached = self.num_cached_block[request.request_id]
        if first_unwritten < num_cached:
            self.block_pool.evict_blocks(self.req_to_blocks[request.request_id][first_unwritten:num_cached])
            self.num_cached_block[request.request_id] = first_unwritten

    @on_map("free a request", vllm="vllm/v1/core/kv_cache_manager.py::KVCacheManager.free")
    def free(self, request: Request) -> None:
        """Give a request's blocks back, its last block first: the tail is what others are least likely to share."""
        blocks = self.req_to_blocks.pop(request.request_id, None)
        if blocks is not None:
            del self.num_cached_block[request.request_id]
            self._common_prefix = None
            self.block_pool.free_blocks(reversed(blocks))

    def get_block_ids(self, request_id: str) -> list[int]:
        """The block table of a request, as page numbers."""
        return [block.block_id for block in self.req_to_blocks.get(request_id, ())]

    def get_num_common_prefix_blocks(self, running_request_id: str) -> int:
        """Leading blocks of a request that every request holding blocks shares (a hint for cascade attention).

        Counted anew only after a request got its first blocks or gave its blocks back: nothing else changes who
        shares what. So a decode step pays the same however long the prefix is.
        """
        if not self.enable_caching:
            return 0
        num_owners = len(self.req_to_blocks)
        blocks = self.req_to_blocks[running_request_id]
        if num_owners == 1:
            return len(blocks)
        if self._common_prefix is None or self._common_prefix[0] != running_request_id:
            count = 0
            while count < len(blocks) and blocks[count].ref_cnt == num_owners:
                count += 1
            self._common_prefix = (running_request_id, count)
        return self._common_prefix[1]

    def reset_prefix_cache(self) -> bool:
        """Forget every cached block; False if some block is in use."""
        return self.block_pool.reset_prefix_cache()

    def _adopt(self, request: Request, computed_blocks: Sequence[KVCacheBlock]) -> list[KVCacheBlock]:
        """Start a request's block table with the blocks of its prefix hit."""
        self.block_pool.touch(computed_blocks)
        blocks = list(computed_blocks)
        self.req_to_blocks[request.request_id] = blocks
        self.num_cached_block[request.request_id] = len(blocks)
        self._common_prefix = None
        return blocks

    def _looks_up(self, request: Request) -> bool:
        return self.enable_caching and not request.sampling_params.skip_reading_prefix_cache

    def _watermark(self, request: Request, has_scheduled_reqs: bool) -> int:
        is_admission = request.status in (RequestStatus.WAITING, RequestStatus.PREEMPTED)
        return self.watermark_blocks if has_scheduled_reqs and is_admission else 0

    def _shortage(self, asked: int, watermark: int, reserved: int, *, full_sequence: bool) -> BlockShortage | None:
        free = self.block_pool.get_num_free_blocks()
        if asked + watermark <= free - reserved:
            return None
        return BlockShortage(asked, free, watermark, reserved, full_sequence)
