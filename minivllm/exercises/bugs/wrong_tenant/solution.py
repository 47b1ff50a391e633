"""A rule: who hits a block has the same adapter and salt as whoever published it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from minivllm.analysis.iteration import Iteration


def check(it: Iteration, memory: dict[str, Any]) -> Iterator[str]:
    """Yield a sentence for each thing in an iteration that must not be.

    Args:
        it: The iteration. `it.all("kv.shared", ...)` gives its events of some kinds, in order; an event has `kind`,
            `data`, and `request` and `block`, which are None unless it is about one. `it.before` and `it.after` are
            the state around it. docs/log.md (also in minivllm docs) says what each kind of event has.
        memory: Yours to fill: empty at the start of a run, and the same dict in each of its iterations.
    """
    for event in it.all("request.arrived", "kv.stored", "kv.shared"):
        if event.kind == "request.arrived":
            memory[event.request or ""] = (event.data.get("lora"), event.data.get("cache_salt"))
            continue
        own = memory.get(event.request or "")
        for block in event.data["blocks"]:
            if event.kind == "kv.stored":
                memory[block] = own
                continue
            theirs = memory.get(block)
            if theirs is not None and theirs != own:
                yield f"{event.request} {own} hit block {block}, which was published with {theirs}"
