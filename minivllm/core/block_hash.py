"""Owns the names of cached blocks: a chain of hashes, one per full block.

    hash(block i) = sha256(hash(block i-1) | tokens of block i | extra keys of block i)

A block's hash therefore names the whole prefix up to its end: equal tokens after different prefixes differ. Extra keys
keep apart what the tokens do not show (adapter, salt, images). Each key is tagged with its kind, so that an adapter
named like a salt is still something else; vLLM 0.27.1 mixes bare strings there.

Upstream: vllm/v1/core/kv_cache_utils.py (hash_block_tokens, generate_block_hash_extra_keys, get_request_block_hasher).
"""

from __future__ import annotations

import hashlib
import os
from array import array
from collections.abc import Sequence

import msgspec

from minivllm.core.request import BlockHasher, Request
from minivllm.sourcemap.registry import on_map

# (kind, value...) with kind one of "lora", "salt", "mm".
ExtraKey = tuple[str | int, ...]


@on_map("block hash", vllm="vllm/v1/core/kv_cache_utils.py::hash_block_tokens")
def hash_block_tokens(parent_hash: bytes, token_ids: Sequence[int], extra_keys: Sequence[ExtraKey] = ()) -> bytes:
    """Hash of one full block.

    Args:
        parent_hash: Hash of the block before it, or the chain's start (32 bytes).
        token_ids: The block's tokens; exactly block_size of them.
        extra_keys: See `generate_block_hash_extra_keys`.

    Returns:
        32 bytes.
    """
    content = parent_hash + array("q", token_ids).tobytes()
    if extra_keys:
        # The parent and the tokens have a fixed length, so whatever follows them is unambiguous.
        content += msgspec.msgpack.encode(extra_keys)
    return hashlib.sha256(content).digest()


def generate_block_hash_extra_keys(request: Request, start: int, end: int) -> list[ExtraKey]:
    """What besides its tokens decides the KV of the block that holds tokens [start, end) of a request.

    The salt is in the first block only: every later block has it through its parent. An image is named with its
    place relative to the block, so that the same image two tokens further is another block.
    """
    keys: list[ExtraKey] = []
    if request.lora_request is not None:
        keys.append(("lora", request.lora_request.name, request.lora_request.path))
    if start == 0 and request.cache_salt is not None:
        keys.append(("salt", request.cache_salt))
    for item in request.mm_features:
        if item.offset < end and item.offset + item.length > start:
            keys.append(("mm", item.identifier, item.offset - start))
    return keys


@on_map("request block hasher", vllm="vllm/v1/core/kv_cache_utils.py::get_request_block_hasher")
def get_request_block_hasher(block_size: int, seed: bytes | None = None) -> BlockHasher:
    """Make the function that hashes a request's full blocks.

    Args:
        block_size: Tokens per block.
        seed: Start of the chain (vLLM's NONE_HASH); None draws 32 random bytes.
    """
    return _RequestBlockHasher(block_size, os.urandom(32) if seed is None else hashlib.sha256(seed).digest())


class _RequestBlockHasher:
    """Implements `BlockHasher`."""

    def __init__(self, block_size: int, none_hash: bytes) -> None:
        self.block_size = block_size
        self._none_hash = none_hash

    def __call__(self, request: Request) -> list[bytes]:
        block_size, hashes = self.block_size, request._block_hashes
        start = len(hashes) * block_size
        parent = hashes[-1] if hashes else self._none_hash
        has_extra = request.lora_request is not None or request.cache_salt is not None or bool(request.mm_features)
        new_hashes = []
        tokens = request._all_token_ids
        for end in range(start + block_size, request.num_tokens + 1, block_size):
            extra = generate_block_hash_extra_keys(request, end - block_size, end) if has_extra else ()
            parent = hash_block_tokens(parent, tokens[end - block_size : end], extra)
            new_hashes.append(parent)
        return new_hashes
