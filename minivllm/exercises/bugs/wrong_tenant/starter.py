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
    yield from ()
