"""Owns what is remembered of published blocks, so that a look-up can say why it went no further.

The engine knows only hashes that are cached now. Here also those that were, and the tokens behind each.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

# A block that is cached now: who published it first, the hash of what comes before it, and its tokens.
_Stored = tuple[str, bytes | None, list[int]]


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
        self._children: dict[bytes | None, dict[int, dict[bytes, None]]] = {}

    def store(self, request: Any, index: int, hashes: Sequence[bytes]) -> None:
        """Note that a request published its full blocks from `index` on."""
        size = self.block_size
        parent = request.block_hashes[index - 1] if index else None
        tokens = request._all_token_ids
        for i, block_hash in enumerate(hashes, index):
            if block_hash not in self._cached:
                token_ids = tokens[i * size : (i + 1) * size]
                self._cached[block_hash] = (request.request_id, parent, token_ids)
                self._ever.add(block_hash)
                self._children.setdefault(parent, {}).setdefault(token_ids[0], {})[block_hash] = None
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
        if block_hash not in self._cached:
            return
        _, parent, token_ids = self._cached.pop(block_hash)
        children = self._children[parent]
        siblings = children[token_ids[0]]
        del siblings[block_hash]
        if not siblings:
            del children[token_ids[0]]
            if not children:
                del self._children[parent]

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
        children = self._children.get(parent, {})
        best: tuple[int, str] | None = None
        for block_hash in children.get(tokens[0], ()):
            request_id, _, others = self._cached[block_hash]
            same = next((k for k, (a, b) in enumerate(zip(tokens, others, strict=True)) if a != b), None)
            if same is None:  # equal tokens: a salt, an adapter or an image tells them apart
                return {"why": "differs", "other": request_id}
            if best is None or same > best[0]:
                best = (same, request_id)
        if best is None and parent is not None and children:
            siblings = next(iter(children.values()))
            best = (0, self._cached[next(iter(siblings))][0])
        if best is None:
            return None
        return {"why": "differs", "token": start + best[0], "other": best[1]}
