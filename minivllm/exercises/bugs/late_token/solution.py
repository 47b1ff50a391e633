"""A rule: after an abort comes nothing."""

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
    aborts, updates = it.all("requests.aborted"), it.all("update")
    last = it.events.index(updates[-1]) if updates else -1
    gone = set(memory)
    for event in aborts:
        place = it.events.index(event)
        if event.data["phase"] == "mid" or place < last:
            gone.update(event.data["ended"])
    for update in updates:
        told = [request for request, tokens in update.data["emitted"].items() if tokens and request in gone]
        yield from (f"{request} was aborted, and gets {update.data['emitted'][request]}" for request in told)
    for request in (request for event in aborts for request in event.data["ended"]):
        memory[request] = it.step
