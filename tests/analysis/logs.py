"""Owns the logs that questions are asked of: the packaged scenarios, and copies in which something is changed."""

from __future__ import annotations

import copy
from collections.abc import Callable

from minivllm.scenarios.registry import get_scenario
from minivllm.trace.events import Event
from minivllm.trace.reader import Log, read_log


def recorded(name: str) -> Log:
    """The log of a scenario that ships with the package."""
    return read_log(get_scenario(name).log_path)


def changed(log: Log, change: Callable[[list[Event]], None]) -> Log:
    """A copy of a log after a change of its events."""
    events = copy.deepcopy(log.events)
    change(events)
    for seq, event in enumerate(events):
        event.seq = seq
    return Log(log.header, events, path=log.path)


def event_of(events: list[Event], kind: str, step: int) -> Event:
    """The event of a kind in a step."""
    return next(event for event in events if event.kind == kind and event.step == step)
