"""Owns why a prefix look-up found nothing, or no more than it did."""

from __future__ import annotations

from typing import Any

from minivllm.analysis.answer import Answer, CannotKnowError
from minivllm.analysis.moments import answer_for
from minivllm.maps.wording import Words
from minivllm.trace.reader import Log


def no_hit(log: Log, request: str, iteration: int | None, words: Words) -> Answer:
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
    of = words("of_prompt", known=known) if known is not None else words("of_tokens")
    place = {"index": missing["index"], "token": missing["index"] * size}
    text = words("no_hit", request=request, hit=data["hit"], of=of, **place, why=_missing(missing, words))
    numbers = {"asked": data["asked"], "hit": data["hit"], "block_size": size, "first_missing_block": missing["index"]}
    if known is not None:
        numbers["prompt_tokens"] = known
    answer = answer_for(request, "no-hit", event.step, text, missing["why"], numbers)
    answer.ours, answer.vllm = event.src or "", event.ref or ""
    could = words("could_be_hit", count=data["asked"])
    answer.steps = [
        (words("whole_blocks"), str(data["asked"] // size), could),
        (words("blocks_found"), str(len(data["blocks"])), words("tokens", count=data["hit"])),
    ]
    return answer


def _missing(missing: dict[str, Any], words: Words) -> str:
    if missing["why"] != "differs":
        return words(f"miss_{missing['why']}")
    if "token" not in missing:
        return words("miss_differs_key", other=missing.get("other"))
    return words("miss_differs", other=missing.get("other"), token=missing["token"])


def _caching(log: Log) -> bool:
    enabled: bool = log.header.config["cache_config"]["enable_prefix_caching"]
    return enabled
