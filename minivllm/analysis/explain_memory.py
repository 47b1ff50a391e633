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
    words = ask.words()
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
    factors = {"layers": layers, "heads": heads, "head_dim": head_dim, "number": number}
    whole = size_text(per_block * blocks)
    rows = [
        (words("one_token"), size_text(per_token), words("factors", **factors)),
        (words("one_block"), size_text(per_block), words("so_many_tokens", count=size)),
        (words("kv_cache"), whole, words("with_null_block", count=blocks)),
        (
            words("one_long_request"),
            size_text(per_block * full),
            words("tokens_and_blocks", tokens=longest, blocks=full),
        ),
        (words("weights"), size_text(shape["weight_bytes"]), shape["dtype"]),
    ]
    fits = {"blocks": blocks, "reason": cache["reason"], "all": whole, "tokens": (blocks - 1) * size}
    explanation = Explanation(
        "memory",
        words("memory", block=size_text(per_block), **fits),
        "bytes per block = 2 * layers * KV heads * head size * block size * bytes per number",
        f"bytes per block = 2 * {layers} * {heads} * {head_dim} * {size} * {number} = {per_block}",
        values,
        per_block,
        _OURS,
        _VLLM,
        tables=[Table(words("memory_title"), tuple(map(words, ("what", "bytes", "how"))), rows, at_left=(2,))],
        hint="explain weights",
    )
    explanation.more = [
        words("two_is_for", queries=shape["num_attention_heads"], heads=heads),
        words("null_block"),
    ]
    if per_block != cache["bytes_per_block"] or per_block * blocks != cache["memory_bytes"]:
        reported = {"block": cache["bytes_per_block"], "all": cache["memory_bytes"]}
        explanation.more.append(words("memory_contradiction", **reported))
    return explanation
