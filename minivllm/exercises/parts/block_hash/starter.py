"""The name of a block of the prefix cache. Your function takes the place of the engine's."""

from __future__ import annotations

from collections.abc import Sequence

ExtraKey = tuple[str | int, ...]


def hash_block_tokens(parent_hash: bytes, token_ids: Sequence[int], extra_keys: Sequence[ExtraKey] = ()) -> bytes:
    """The name of one full block.

    Args:
        parent_hash: Name of the block before it; of the first block, the start of the chain (32 bytes).
        token_ids: The block's tokens.
        extra_keys: What else must be the same, such as (("salt", "x"),).

    Returns:
        32 bytes.
    """
    raise NotImplementedError("name the block by its parent, its tokens and the extra keys")
