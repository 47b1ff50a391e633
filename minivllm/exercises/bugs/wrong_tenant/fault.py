"""What vLLM 0.27.1 puts into a block's name beside its tokens: bare names."""

from __future__ import annotations

from typing import Any

from minivllm.core.request import Request


def generate_block_hash_extra_keys(request: Request, start: int, end: int) -> list[Any]:
    """What besides its tokens decides the KV of the block that holds tokens [start, end) of a request."""
    keys: list[Any] = []
    if request.lora_request is not None:
        keys.append(request.lora_request.name)
    if start == 0 and request.cache_salt is not None:
        keys.append(request.cache_salt)
    for item in request.mm_features:
        if item.offset < end and item.offset + item.length > start:
            keys.append((item.identifier, item.offset - start))
    return keys
