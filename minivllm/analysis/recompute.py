"""Owns finding out again why a request got nothing, from the state before the plan and the plan alone.

The scheduler records its reasons. A log of another engine has none, and then this is the only answer; where both
exist, a test holds them equal.
"""

from __future__ import annotations

from minivllm.analysis.iteration import DEFAULT_MAX_TOKENS, Iteration

Reason = tuple[str, dict[str, int]]


def why_not_scheduled(it: Iteration, request: str) -> Reason | None:
    """The rule that left a request out of an iteration's plan.

    Args:
        it: The iteration.
        request: A request that is known, has not ended, and is not planned.

    Returns:
        The reason's name and its numbers; None if nothing in the log explains it.
    """
    plan, state = it.the("schedule"), it.state_at("schedule")
    planned = dict(plan["scheduled"])
    left = plan["budget"] - plan["total_scheduled"]
    for victim, _, _ in plan["preemptions"]:
        if victim == request:
            return "preempted", {"free": len(state.pool.free_queue)}
    if request in plan["running_scheduled"]:
        return _running(it, request, left)
    if plan["preempted"]:
        return "preempted_this_step", {"preempted": len(plan["preempted"])}
    entry = state.requests[request]
    if entry.num_stale_output_tokens > 0:
        return "stale_output_in_flight", {"in_flight": entry.num_stale_output_tokens}
    running = len(plan["running_scheduled"])
    if left == 0:
        return "token_budget", {"budget": plan["budget"], "left": 0}
    if running >= plan["max_num_seqs"]:
        return "max_num_seqs", {"running": running, "max_num_seqs": plan["max_num_seqs"]}
    ahead = [other for other in plan["waiting_scheduled"] if other not in planned]
    if ahead and ahead[0] != request and request in ahead:
        return why_not_scheduled(it, ahead[0])
    return _head(it, request, left)


def _running(it: Iteration, request: str, left: int) -> Reason | None:
    plan, state = it.the("schedule"), it.state_at("schedule")
    entry, params = state.requests[request], it.run.params.get(request, {})
    in_flight = [p for p in state.in_flight if request in p.scheduled]
    placeholders = sum(1 + p.num_drafts.get(request, 0) for p in in_flight)
    known = entry.num_tokens
    max_tokens = params.get("max_tokens", DEFAULT_MAX_TOKENS)
    if placeholders and max_tokens is not None:
        sure = entry.num_computed_tokens + 1 - (placeholders - 1)
        if sure >= entry.num_prompt_tokens + max_tokens:
            return "output_in_flight", {"placeholders": placeholders, "max_tokens": max_tokens}
    if known + placeholders - entry.num_computed_tokens <= 0:
        return "output_in_flight", {"asked": 0, "granted": 0, "limit": 0}
    if left == 0:
        return "token_budget", {"budget": plan["budget"], "left": 0}
    if entry.num_computed_tokens + 1 >= it.run.scheduler_config["max_model_len"]:
        asked = known + placeholders - entry.num_computed_tokens
        return "max_model_len", {"asked": asked, "granted": 0, "limit": it.run.scheduler_config["max_model_len"]}
    return None


def _head(it: Iteration, request: str, left: int) -> Reason | None:
    """For the first that waits: chunks or memory."""
    plan, state, config = it.the("schedule"), it.state_at("schedule"), it.run.scheduler_config
    lookup = it.run.lookup_before(request, it.step)
    hit_blocks: list[int] = lookup["blocks"] if lookup else []
    hit = lookup["hit"] if lookup else 0
    known = state.requests[request].num_tokens
    asked = known - hit
    threshold = config["long_prefill_token_threshold"]
    tokens = min(asked, threshold) if threshold else asked
    if not config["enable_chunked_prefill"] and tokens > left:
        return "chunked_prefill_off", {"asked": tokens, "left": left}
    size, free = it.run.block_size, plan["free_blocks_scheduled"]
    watermark = int(config["watermark"] * state.pool.num_blocks) if plan["running_scheduled"] else 0
    # Blocks of a hit that nobody holds lie in the free queue, and are needed all the same.
    lying_free = sum(block not in state.pool.ref_cnt for block in hit_blocks)
    numbers = {"free": free, "watermark": watermark, "reserved": 0}
    if config["scheduler_reserve_full_isl"]:
        whole = max(_blocks(min(known, config["max_model_len"]), size) - len(hit_blocks), 0) + lying_free
        if whole + watermark > free:
            return "full_sequence_does_not_fit", {"asked": whole, **numbers}
    slots = min(hit + min(tokens, left) + config["num_lookahead_tokens"], config["max_model_len"])
    now = max(_blocks(slots, size) - len(hit_blocks), 0) + lying_free
    return ("no_free_blocks", {"asked": now, **numbers}) if now + watermark > free else None


def _blocks(tokens: int, size: int) -> int:
    return -(-tokens // size)
