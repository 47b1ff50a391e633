"""The name of a block of the prefix cache: sha256 over the parent's name, the tokens and the extra keys."""

from __future__ import annotations

import hashlib
import struct
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
    digest = hashlib.sha256(parent_hash)
    digest.update(struct.pack(f"<{len(token_ids)}q", *token_ids))
    if extra_keys:
        digest.update(repr([tuple(key) for key in extra_keys]).encode())
    return digest.digest()
