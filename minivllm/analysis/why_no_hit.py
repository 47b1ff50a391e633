"""Owns why a prefix look-up found nothing, or no more than it did."""

from __future__ import annotations

from typing import Any

from minivllm.analysis.answer import Answer, CannotKnowError
from minivllm.analysis.moments import answer_for
from minivllm.trace.reader import Log

_MISSING = {
    "never_computed": "no request has computed a block with this content before",
    "evicted": "it was cached, and its block has been given to somebody else since",
    "not_full": "the rest of the prompt fills no whole block, and only whole blocks are cached",
    "last_token": "the last token is always computed: its logits are wanted",
    "caching_off": "prefix caching is off",
    "not_asked": "the request asked not to read the cache",
}


def no_hit(log: Log, request: str, iteration: int | None) -> Answer:
    """Why a prefix look-up found nothing, or no more than it did."""
    found = [e for e in log.events if e.kind == "kv.lookup" and e.request == request]
    found = [e for e in found if iteration is None or e.step == iteration]
    if not found:
        if not any(event.kind == "kv.lookup" for event in log.events) and not _caching(log):
            raise ValueError(f"prefix caching is off in this run: {request} never looked anything up")
        when = f" in iteration {iteration}" if iteration is not None else ""
        raise CannotKnowError(f"the log holds no prefix look-up (kv.lookup) of {request}{when}")
    event = found[0]
    data, missing = event.data, event.data["first_missing"]
    size = log.header.config["cache_config"]["block_size"]
    known = next(
        (len(e.data["prompt_token_ids"]) for e in log.events if e.kind == "request.arrived" and e.request == request),
        None,
    )
    of = f" of its {known} prompt tokens" if known is not None else " tokens"
    text = f"{request} found {data['hit']}{of} in the prefix cache: "
    text += f"block {missing['index']} (from token {missing['index'] * size}) was the first that was missing: "
    text += _missing(missing)
    numbers = {"asked": data["asked"], "hit": data["hit"], "block_size": size, "first_missing_block": missing["index"]}
    if known is not None:
        numbers["prompt_tokens"] = known
    answer = answer_for(request, "no-hit", event.step, text + ".", missing["why"], numbers)
    answer.ours, answer.vllm = event.src or "", event.ref or ""
    answer.steps = [
        ("whole blocks before the last token", str(data["asked"] // size), f"{data['asked']} tokens that could be hit"),
        ("blocks found", str(len(data["blocks"])), f"{data['hit']} tokens"),
    ]
    return answer


def _missing(missing: dict[str, Any]) -> str:
    if missing["why"] != "differs":
        return _MISSING[missing["why"]]
    if "token" not in missing:
        return f"{missing.get('other')} cached the same tokens under another salt or adapter"
    return f"{missing.get('other')} cached a block there that differs from token {missing['token']} on"


def _caching(log: Log) -> bool:
    enabled: bool = log.header.config["cache_config"]["enable_prefix_caching"]
    return enabled
