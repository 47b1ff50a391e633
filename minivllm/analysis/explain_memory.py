"""Owns the arithmetic of memory: bytes of a KV block, how many blocks there are and why, and what the weights take."""

from __future__ import annotations

from minivllm.analysis.answer import CannotKnowError
from minivllm.analysis.explain_answer import Ask, Explanation, Table, divided_up, settings, shape_of, size_text
from minivllm.trace.reader import Log

_OURS = "minivllm.worker.kv_cache_sizing:size_kv_cache"
_VLLM = "vllm/v1/core/kv_cache_utils.py::get_kv_cache_configs"
_FACTORS = ("num_hidden_layers", "num_key_value_heads", "head_dim")


def memory(log: Log, ask: Ask) -> Explanation:
    """How large the KV cache is, and how that came about.

    Raises:
        CannotKnowError: The header does not hold the model's shape or the size of the cache.
    """
    shape, cache = shape_of(log), log.header.kv_cache
    if not cache:
        raise CannotKnowError("the log cannot say: its header does not hold the size of the KV cache (kv_cache)")
    size, number = settings(log, "cache_config")["block_size"], shape["bytes_per_number"]
    longest = settings(log, "scheduler_config")["max_model_len"]
    layers, heads, head_dim = (shape[name] for name in _FACTORS)
    per_token = 2 * layers * heads * head_dim * number
    per_block, blocks = per_token * size, cache["num_blocks"]
    full = divided_up(longest, size)
    values = {
        **{name: shape[name] for name in _FACTORS},
        "block_size": size,
        "bytes_per_number": number,
        "bytes_per_token": per_token,
        "bytes_per_block": per_block,
        "num_blocks": blocks,
        "num_tokens": (blocks - 1) * size,
        "kv_bytes": per_block * blocks,
        "weight_bytes": shape["weight_bytes"],
    }
    rows = [
        ("one token", size_text(per_token), f"2 x {layers} x {heads} x {head_dim} x {number} bytes"),
        ("one block", size_text(per_block), f"{size} tokens"),
        ("KV cache", size_text(per_block * blocks), f"{blocks} blocks, one of them the null block"),
        ("one request of max_model_len", size_text(per_block * full), f"{longest} tokens, {full} blocks"),
        ("weights", size_text(shape["weight_bytes"]), shape["dtype"]),
    ]
    explanation = Explanation(
        "memory",
        f"A KV block takes {size_text(per_block)}, and there are {blocks} ({cache['reason']}): "
        f"{size_text(per_block * blocks)} with room for {(blocks - 1) * size} tokens.",
        "bytes per block = 2 * layers * KV heads * head size * block size * bytes per number",
        f"bytes per block = 2 * {layers} * {heads} * {head_dim} * {size} * {number} = {per_block}",
        values,
        per_block,
        _OURS,
        _VLLM,
        tables=[Table("memory", ("what", "bytes", "how"), rows)],
        hint="explain weights",
    )
    explanation.more = [
        "2 is for keys and values. Query heads cost nothing here: several of them share one KV head "
        f"({shape['num_attention_heads']} on {heads}).",
        "Block 0 is the null block: block tables are padded with it, and it is never anybody's.",
    ]
    if per_block != cache["bytes_per_block"] or per_block * blocks != cache["memory_bytes"]:
        explanation.more.append(
            f"The worker reported {cache['bytes_per_block']} bytes a block and {cache['memory_bytes']} for all: shape "
            "and report contradict each other."
        )
    return explanation
