"""Owns checking a run while it goes on: iteration by iteration, as each comes to its end."""

from __future__ import annotations

from minivllm.analysis.invariants.registry import Checker
from minivllm.analysis.iteration import RunFacts, next_iteration, note_facts
from minivllm.trace.events import EventLog
from minivllm.trace.replay import State


class LiveChecker:
    """Looks at each iteration of a log that is being written.

    Args:
        log: The log, from its beginning.
    """

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._num_seen = 0
        self._checker = Checker()
        self._run = RunFacts(log.header.config)
        self._state = State(log.header)

    def check(self) -> list[tuple[str, str]]:
        """Look at the iteration that has just ended.

        Returns:
            (id, message) of what does not hold in it.
        """
        events = self._log.events[self._num_seen :]
        self._num_seen += len(events)
        for event in events:
            note_facts(self._run, event)
        return self._checker.check(next_iteration(self._log.step, events, self._state, self._run))
