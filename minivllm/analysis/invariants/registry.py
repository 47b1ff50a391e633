"""Owns what an invariant is, and going through a log with all of them.

An invariant is a sentence that holds in every iteration, the function that checks it there, and the bug of a real
engine that it would have caught.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from minivllm.analysis.iteration import BROKEN, Iteration, iterations
from minivllm.trace.reader import Log

Check = Callable[[Iteration], Iterator[str]]

# Of one invariant; a broken log breaks it in every iteration.
MAX_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Invariant:
    """A rule that holds in every iteration.

    Attributes:
        id: "INV-03".
        sentence: The rule.
        reason: What goes wrong where it does not hold.
        map: The map that shows it: "plan", "state", "process", "hot" or "timeline".
        bug: A report of a real engine of this kind, and what happened.
        needs: Kinds of events that it reads. A log without them cannot tell.
        check: Yields a message for each violation in an iteration.
    """

    id: str
    sentence: str
    reason: str
    map: str
    bug: str
    needs: tuple[str, ...]
    check: Check


@dataclass(slots=True)
class Verdict:
    """What a log says of an invariant.

    Attributes:
        status: "ok", "violated", or "not_applicable" if the log holds nothing that it could be checked on.
        violations: (iteration, message), the first MAX_SHOWN of them.
        num_violations: All of them.
    """

    invariant: Invariant
    status: str = "not_applicable"
    violations: list[tuple[int, str]] = field(default_factory=list)
    num_violations: int = 0

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "id": self.invariant.id,
            "sentence": self.invariant.sentence,
            "status": self.status,
            "violations": [{"iteration": step, "message": message} for step, message in self.violations],
            "num_violations": self.num_violations,
            "reason": self.invariant.reason,
            "map": self.invariant.map,
            "bug": self.invariant.bug,
        }


_INVARIANTS: dict[str, Invariant] = {}


def invariant(
    id: str, sentence: str, *, reason: str, map: str, bug: str, needs: tuple[str, ...]
) -> Callable[[Check], Check]:
    """Register a check; its function is returned as it is."""

    def register(check: Check) -> Check:
        assert id not in _INVARIANTS, f"{id} exists twice"
        _INVARIANTS[id] = Invariant(id, sentence, reason, map, bug, needs, check)
        return check

    return register


def all_invariants() -> list[Invariant]:
    """Every invariant, by id."""
    return [_INVARIANTS[key] for key in sorted(_INVARIANTS)]


class Checker:
    """Goes through a run with every invariant, iteration by iteration.

    Attributes:
        verdicts: By id, as far as it has come.
    """

    def __init__(self) -> None:
        self.verdicts = {each.id: Verdict(each) for each in all_invariants()}

    def check(self, iteration: Iteration) -> list[tuple[str, str]]:
        """Look at one iteration; an incomplete one (a log that was cut off) is left out.

        Returns:
            (id, message) of what does not hold in it.
        """
        if not iteration.is_complete:
            return []
        kinds = {event.kind for event in iteration.events}
        found: list[tuple[str, str]] = []
        for verdict in self.verdicts.values():
            if kinds.isdisjoint(verdict.invariant.needs):
                continue
            if verdict.status == "not_applicable":
                verdict.status = "ok"
            for message in _messages(verdict.invariant, iteration):
                verdict.status = "violated"
                verdict.num_violations += 1
                found.append((verdict.invariant.id, message))
                if len(verdict.violations) < MAX_SHOWN:
                    verdict.violations.append((iteration.step, message))
        return found


def check_log(log: Log) -> list[Verdict]:
    """Check a whole log, or a window of one.

    Returns:
        One verdict for each invariant, by id.
    """
    checker = Checker()
    for iteration in iterations(log):
        checker.check(iteration)
    return list(checker.verdicts.values())


def _messages(rule: Invariant, iteration: Iteration) -> Iterator[str]:
    try:
        yield from rule.check(iteration)
    except BROKEN as error:
        yield f"the events do not fit together ({type(error).__name__}: {error})"
