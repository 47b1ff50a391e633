"""Owns the events of the KV pool: every block that is shared, taken, published, freed or loses its hash, in order.

From the same events it counts what a step did to the pool, so nobody has to look at every block of it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import FrameType
from typing import Any

from minivllm.trace.events import EventLog
from minivllm.trace.probes.prefixes import PrefixMemory
from minivllm.trace.wrap import Around, Call, Probe

_MANAGER = "minivllm.core.kv_cache_manager:KVCacheManager"
_POOL = "minivllm.core.block_pool:BlockPool"

_TAKES_BLOCKS = frozenset({"get_new_blocks"})
_ASKS_FOR_BLOCKS = frozenset({"allocate_slots", "cache_blocks"})

# Hexadecimal digits of a hash that an event carries.
_HASH_DIGITS = 16


class BlockProbes:
    """`kv.*` events, and the counts that a step's last event carries.

    Args:
        log: Gets the events.
    """

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._manager: Any = None
        self._memory = PrefixMemory()
        self._num_cached_free = 0
        self._freed: set[int] = set()
        self._evicted: list[int] = []
        self._lookups: dict[str, tuple[int, list[int]]] = {}

    def probes(self) -> dict[str, Probe]:
        return {
            f"{_MANAGER}.get_computed_blocks": self._lookup,
            f"{_MANAGER}.free": Around(self._before_free, self._free),
            f"{_POOL}.touch": self._shared,
            f"{_POOL}.get_new_blocks": self._allocated,
            f"{_POOL}.evict_blocks": Around(_with_hash, self._evict),
            f"{_POOL}.cache_full_blocks": self._stored,
            f"{_POOL}.reset_prefix_cache": Around(lambda args: _with_hash((args[0], args[0].blocks)), self._reset),
        }

    def watch(self, manager: Any) -> None:
        """Begin with a KVCacheManager as it stands."""
        self._manager = manager
        self._memory.block_size = manager.block_size
        self._num_cached_free = sum(b.ref_cnt == 0 and b.block_hash is not None for b in manager.block_pool.blocks)

    def step_changes(self) -> dict[str, Any]:
        """Counts as they stand now, and the blocks that became free or lost their hash since the last call."""
        pool = self._manager.block_pool
        freed = sorted(self._freed) if self._freed else []
        evicted = sorted(set(self._evicted)) if self._evicted else []
        self._freed.clear()
        self._evicted.clear()
        return {
            "owned_blocks": pool.num_gpu_blocks - 1 - pool.get_num_free_blocks(),
            "cached_free_blocks": self._num_cached_free,
            "freed": freed,
            "evicted": evicted,
        }

    # ---- look-ups -------------------------------------------------------------------------------------------------

    def _lookup(self, call: Call) -> None:
        manager, request = call.args[:2]
        blocks, num_hit = call.result
        block_ids = [block.block_id for block in blocks]
        # Who waits for blocks is looked up in every step. Only a new answer is worth an event.
        answer = (request.num_tokens, block_ids)
        if self._lookups.get(request.request_id) == answer:
            return
        self._lookups[request.request_id] = answer
        asked = 0
        if manager.enable_caching and not request.sampling_params.skip_reading_prefix_cache:
            asked = (request.num_tokens - 1) // manager.block_size * manager.block_size
        missing = self._memory.why_missing(request, len(blocks), asked, enabled=manager.enable_caching)
        data = {"asked": asked, "hit": num_hit, "blocks": block_ids, "first_missing": missing}
        self._add(call, "kv.lookup", data, request.request_id)

    # ---- blocks come and go ---------------------------------------------------------------------------------------

    def _shared(self, call: Call) -> None:
        blocks = call.args[1]
        if not blocks:
            return
        # All of them have a hash, so one that nobody else uses was cached and free a moment ago.
        were_free = [block.block_id for block in blocks if block.ref_cnt == 1]
        self._num_cached_free -= len(were_free)
        self._freed.difference_update(were_free)
        data = {"blocks": _ids(blocks), "ref_cnt": [block.ref_cnt for block in blocks]}
        self._add(call, "kv.shared", data, _request_of_caller().request_id)

    def _allocated(self, call: Call) -> None:
        block_ids = _ids(call.result)
        self._freed.difference_update(block_ids)
        self._add(call, "kv.allocated", {"blocks": block_ids}, _request_of_caller().request_id)

    def _stored(self, call: Call) -> None:
        blocks, hashes = call.args[1:3]
        request, size = _request_of_caller(), self._manager.block_size
        # The manager's count goes up only after this.
        index = self._manager.num_cached_block[request.request_id]
        parent = request.block_hashes[index - 1] if index else None
        self._memory.store(request, index, hashes)
        data = {
            "blocks": _ids(blocks),
            "hashes": [_short(block_hash) for block_hash in hashes],
            "parent": _short(parent) if parent is not None else None,
            "first_token": index * size,
            "block_size": size,
        }
        self._add(call, "kv.stored", data, request.request_id)

    def _evict(self, call: Call) -> None:
        if not call.memo:
            return
        # A block that is reused was free; one whose planned step was taken back still has its owner.
        is_reused = _caller(_TAKES_BLOCKS) is not None
        if is_reused:
            self._num_cached_free -= len(call.memo)
        for block_id, block_hash in call.memo:
            self._lose(call, block_id, block_hash, "reused" if is_reused else "taken_back")

    def _reset(self, call: Call) -> None:
        if not call.result:
            return
        self._num_cached_free = 0
        for block_id, block_hash in call.memo:
            self._lose(call, block_id, block_hash, "reset")
        self._add(call, "kv.reset", {})

    def _lose(self, call: Call, block_id: int, block_hash: bytes, why: str) -> None:
        is_last = block_hash not in self._manager.block_pool.cached_block_hash_to_block
        self._memory.lose(block_hash, is_last=is_last, was_computed=why != "taken_back")
        self._evicted.append(block_id)
        self._add(call, "kv.evicted", {"hash": _short(block_hash), "why": why}, block=block_id)

    def _before_free(self, args: tuple[Any, ...]) -> list[Any] | None:
        manager, request = args[:2]
        blocks: list[Any] | None = manager.req_to_blocks.get(request.request_id)
        return blocks

    def _free(self, call: Call) -> None:
        request = call.args[1]
        self._lookups.pop(request.request_id, None)
        if call.memo is None:
            return
        blocks = call.memo[::-1]
        returned: list[int] = []
        returned_front: list[int] = []
        for block in blocks:
            if block.ref_cnt == 0:
                is_cached = block.block_hash is not None
                self._num_cached_free += is_cached
                goes_last = is_cached or not self._manager.enable_caching
                (returned if goes_last else returned_front).append(block.block_id)
        self._freed.update(returned, returned_front)
        data = {"blocks": _ids(blocks), "returned": returned, "returned_front": returned_front}
        self._add(call, "kv.freed", data, request.request_id)

    def _add(
        self, call: Call, kind: str, data: dict[str, Any], request: str | None = None, block: int | None = None
    ) -> None:
        self._log.add(
            "engine_core",
            kind,
            request=request,
            block=block,
            data=data,
            src=call.entry.ours,
            ref=call.entry.vllm,
            wall_ns=call.end_ns,
            dur_ns=call.end_ns - call.start_ns,
        )


def _request_of_caller() -> Any:
    """For whom the pool is at work. It does not know; the manager's function that called it does."""
    frame = _caller(_ASKS_FOR_BLOCKS)
    assert frame is not None, "only the KV cache manager asks the pool for blocks"
    return frame.f_locals["request"]


def _caller(names: frozenset[str]) -> FrameType | None:
    """The innermost of these functions that is running.

    Looked for only when blocks change hands. A probe on such a function would be told of every request in every step.
    """
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_code.co_name not in names:
        frame = frame.f_back
    return frame


def _ids(blocks: Sequence[Any]) -> list[int]:
    return [block.block_id for block in blocks]


def _short(block_hash: bytes) -> str:
    return block_hash.hex()[:_HASH_DIGITS]


def _with_hash(args: tuple[Any, ...]) -> list[tuple[int, bytes]]:
    """The blocks of a call that have a hash now."""
    blocks = args[1]
    assert isinstance(blocks, list), "an iterator would be used up by looking at it"
    return [(block.block_id, block.block_hash) for block in blocks if block.block_hash is not None]
