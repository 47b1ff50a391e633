"""Owns the question whether a request could ever run, asked once, before it joins the queue.

vLLM 0.27.1 does not ask: such a request stays at the head of the queue, and everyone behind it waits for ever
(vllm#35541).
"""

from __future__ import annotations

from minivllm.config import SchedulerConfig
from minivllm.core.kv_cache_manager import KVCacheManager
from minivllm.core.request import Request


class RequestRefusedError(ValueError):
    """A request that no amount of waiting could ever run. The message names the value and the remedy."""


def why_never(request: Request, config: SchedulerConfig, kv_cache_manager: KVCacheManager) -> str | None:
    """Why a request could never run to its end, with the remedy; None if it can."""
    if request.num_prompt_tokens >= config.max_model_len:
        return (
            f"its prompt has {request.num_prompt_tokens} tokens, and max_model_len {config.max_model_len} leaves no "
            "room for an output token. Shorten the prompt or raise max_model_len."
        )
    min_tokens = request.sampling_params.min_tokens
    if request.num_prompt_tokens + min_tokens > config.max_model_len:
        return (
            f"min_tokens {min_tokens} after a prompt of {request.num_prompt_tokens} tokens is beyond max_model_len "
            f"{config.max_model_len}, so nothing could end it. Lower min_tokens or raise max_model_len."
        )
    # The last token is sampled and never fed back, so it needs no slot.
    longest = min(request.num_prompt_tokens + request.max_tokens, config.max_model_len) - 1
    num_slots = min(longest + config.num_lookahead_tokens, config.max_model_len)
    asked = -(-num_slots // kv_cache_manager.block_size)
    usable = kv_cache_manager.block_pool.num_gpu_blocks - 1
    if asked > usable:
        return (
            f"at its longest it needs {asked} KV blocks, and the whole cache has {usable}. "
            "Lower max_tokens, shorten the prompt, or give the KV cache more memory."
        )
    threshold = config.long_prefill_token_threshold
    largest_chunk = min(longest, threshold) if threshold else longest
    if not config.enable_chunked_prefill and largest_chunk > config.max_num_batched_tokens:
        return (
            f"without chunked prefill it may need {largest_chunk} tokens in one step, and max_num_batched_tokens "
            f"is {config.max_num_batched_tokens}. Raise it, or enable chunked prefill."
        )
    if request.lora_request is not None and config.max_loras == 0:
        return f"it asks for adapter {request.lora_request.name!r}, and adapters are off. Set max_loras."
    return None
