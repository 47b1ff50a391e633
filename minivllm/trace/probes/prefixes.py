"""Owns what is remembered of published blocks, so that a look-up can say why it went no further.

The engine knows only hashes that are cached now. Here also those that were, and the tokens behind each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class _Stored:
    """A block that is cached now: who published it first, what comes before it, and its tokens."""

    request_id: str
    parent: bytes | None
    token_ids: list[int]


class PrefixMemory:
    """Every block that was published in this run, by hash.

    Attributes:
        block_size: Tokens per block.
    """

    def __init__(self) -> None:
        self.block_size = 0
        self._ever: set[bytes] = set()
        self._cached: dict[bytes, _Stored] = {}
        # Blocks that continue a prefix, by its hash and their own first token, oldest first.
        self._children: dict[tuple[bytes | None, int], dict[bytes, None]] = {}
        self._first_tokens: dict[bytes | None, dict[int, int]] = {}

    def store(self, request: Any, index: int, hashes: Sequence[bytes]) -> None:
        """Note that a request published its full blocks from `index` on."""
        size = self.block_size
        parent = request.block_hashes[index - 1] if index else None
        tokens = request._all_token_ids
        for i, block_hash in enumerate(hashes, index):
            if block_hash not in self._cached:
                stored = _Stored(request.request_id, parent, tokens[i * size : (i + 1) * size])
                self._cached[block_hash] = stored
                self._ever.add(block_hash)
                first = stored.token_ids[0]
                self._children.setdefault((parent, first), {})[block_hash] = None
                counts = self._first_tokens.setdefault(parent, {})
                counts[first] = counts.get(first, 0) + 1
            parent = block_hash

    def lose(self, block_hash: bytes, *, is_last: bool, was_computed: bool) -> None:
        """Note that a block lost its hash.

        Args:
            block_hash: The hash.
            is_last: No other block has it.
            was_computed: False if the step that was to fill the block never ran.
        """
        if not is_last:
            return
        if not was_computed:
            self._ever.discard(block_hash)
        stored = self._cached.pop(block_hash, None)
        if stored is None:
            return
        first = stored.token_ids[0]
        siblings = self._children[stored.parent, first]
        del siblings[block_hash]
        if not siblings:
            del self._children[stored.parent, first]
        counts = self._first_tokens[stored.parent]
        counts[first] -= 1
        if not counts[first]:
            del counts[first]
            if not counts:
                del self._first_tokens[stored.parent]

    def why_missing(self, request: Any, num_hit_blocks: int, asked: int, *, enabled: bool) -> dict[str, Any]:
        """Why a look-up ended behind its last hit.

        Args:
            request: Whose look-up.
            num_hit_blocks: Blocks that it found.
            asked: Tokens that it could have found.
            enabled: Prefix caching is on.

        Returns:
            `index` of the block in the prompt, `why`; for "differs" also `token`, the first position that differs,
            and `other`, who published the block that goes on differently.
        """
        missing: dict[str, Any] = {"index": num_hit_blocks}
        if not enabled:
            return missing | {"why": "caching_off"}
        if request.sampling_params.skip_reading_prefix_cache:
            return missing | {"why": "not_asked"}
        if num_hit_blocks * self.block_size == asked:
            is_full = request.num_tokens - asked == self.block_size
            return missing | {"why": "last_token" if is_full else "not_full"}
        block_hash = request.block_hashes[num_hit_blocks]
        if block_hash in self._ever:
            return missing | {"why": "evicted"}
        return missing | (self._differs(request, num_hit_blocks) or {"why": "never_computed"})

    def _differs(self, request: Any, index: int) -> dict[str, Any] | None:
        """The cached block that continues the same prefix and agrees for longest; None if nothing does."""
        start = index * self.block_size
        tokens = request._all_token_ids[start : start + self.block_size]
        parent = request.block_hashes[index - 1] if index else None
        best: tuple[int, str] | None = None
        for block_hash in self._children.get((parent, tokens[0]), ()):
            stored = self._cached[block_hash]
            same = next((k for k, (a, b) in enumerate(zip(tokens, stored.token_ids, strict=True)) if a != b), None)
            if same is None:  # equal tokens: a salt, an adapter or an image tells them apart
                return {"why": "differs", "other": stored.request_id}
            if best is None or same > best[0]:
                best = (same, stored.request_id)
        if best is None and parent is not None and (others := self._first_tokens.get(parent)):
            sibling = next(iter(self._children[parent, next(iter(others))]))
            best = (0, self._cached[sibling].request_id)
        if best is None:
            return None
        return {"why": "differs", "token": start + best[0], "other": best[1]}
