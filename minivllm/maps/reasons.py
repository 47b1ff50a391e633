"""Owns the words for a reason: each decision of the scheduler as a clause, with the numbers of this run put in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Numbers = Mapping[str, int]


def detail(reason: str, numbers: Numbers) -> str:
    """Say a reason with its arithmetic, e.g. "needs 4 blocks, 2 are free"."""
    return _DETAIL[reason](numbers)


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _blocks(numbers: Numbers) -> str:
    text = f"needs {_plural(numbers['asked'], 'block')}, {numbers['free']} free"
    if numbers.get("watermark"):
        text += f", {numbers['watermark']} of them kept as the watermark"
    if numbers.get("reserved"):
        text += f", {numbers['reserved']} of them promised to others"
    return text


def _budget(numbers: Numbers) -> str:
    if "asked" in numbers:
        return f"the token budget had {_plural(numbers['limit'], 'token')} left, and it owed {numbers['asked']}"
    return f"the token budget is spent ({numbers['budget'] - numbers['left']} of {numbers['budget']})"


_DETAIL: dict[str, Callable[[Any], str]] = {
    "token_budget": _budget,
    "max_num_seqs": lambda n: f"{n['running']} of {n['max_num_seqs']} places are taken (max_num_seqs)",
    "long_prefill_threshold": lambda n: f"its chunk limit is {n['limit']} tokens a step, and it owed {n['asked']}",
    "chunked_prefill_off": lambda n: f"chunked prefill is off: it needs {n['asked']} tokens at once, {n['left']} left",
    "lora_limit": lambda n: f"{n['loras']} of {n['max_loras']} adapters are in this step already",
    "max_model_len": lambda n: f"the model's length ({n['limit']}) leaves it no position to compute",
    "no_free_blocks": _blocks,
    "full_sequence_does_not_fit": lambda n: "its whole sequence must fit: it " + _blocks(n),
    "preempted": lambda n: (
        f"{_plural(n['asked'], 'block')} {'was' if n['asked'] == 1 else 'were'} needed, {n['free']} free"
    ),
    "preempted_this_step": lambda n: f"nobody enters in a step that preempted ({n['preempted']})",
    "output_in_flight": lambda n: "its last tokens are still on their way (async scheduling)",
    "stale_output_in_flight": lambda n: (
        f"output from before its preemption is still on its way ({_plural(n['in_flight'], 'token')})"
    ),
    "waiting_for_grammar": lambda n: "its grammar is still being compiled",
    "waiting_for_remote_kvs": lambda n: "its KV is still being loaded",
    "waiting_for_streaming_req": lambda n: "its next input has not come yet",
    "paused_new": lambda n: "the engine is paused for new requests",
    "paused_all": lambda n: "the engine is paused",
    "queue_empty": lambda n: "nobody is waiting",
    "all_waiting_blocked": lambda n: "everyone who waits is waiting for something else",
}
