"""Owns when things of a log happened, in the microseconds of a trace file, whether the log has clocks or not.

Every moment is a multiple of 1/128 µs. Such numbers are exact in floating point, so that a slice that ends with the one
around it still does after its end was written as a start and a length.
"""

from __future__ import annotations

from minivllm.maps.stages import has_clock
from minivllm.trace.events import Event
from minivllm.trace.reader import Log

GRAIN = 1 / 128
# Without clocks every event takes one microsecond, in the order of the log.
_TICK = 1.0


class Clock:
    """The time axis of one log.

    Args:
        log: What is told.

    Attributes:
        is_logical: The log has no clocks: order is true, lengths are not.
    """

    def __init__(self, log: Log) -> None:
        self.is_logical = not has_clock(log)
        starts = [e.wall_ns - (e.dur_ns or 0) for e in log.events if e.wall_ns is not None]
        starts += [e.data["send_ns"] for e in log.events if e.kind == "message"]
        self._zero_ns = min(starts, default=0)
        self._zero_seq = log.events[0].seq if log.events else 0

    def at(self, ns: int) -> float:
        """A reading of the monotonic clock, in µs from the log's first."""
        return max(round((ns - self._zero_ns) * 0.128) * GRAIN, 0.0)

    def end(self, event: Event) -> float:
        """When an event was over."""
        if self.is_logical or event.wall_ns is None:
            return (event.seq - self._zero_seq + 1) * _TICK
        return max(self.at(event.wall_ns), GRAIN)

    def start(self, event: Event) -> float:
        """When an event began; nothing is shorter than a grain, so that it can be seen."""
        end = self.end(event)
        if self.is_logical or event.wall_ns is None:
            return end - _TICK
        return min(self.at(event.wall_ns - (event.dur_ns or 0)), end - GRAIN)
