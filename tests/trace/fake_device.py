"""A device's clock without a device: marks are passed when a test says so."""

from __future__ import annotations

from minivllm.trace.device_clock import DeviceClock


class FakeMark:
    """One mark. `elapsed_time` tells the same between any two neighbours."""

    def __init__(self, clock: FakeClock, place: int) -> None:
        self._clock, self._place = clock, place

    def query(self) -> bool:
        return self._place < self._clock.passed

    def synchronize(self) -> None:
        self._clock.waits += self._place >= self._clock.passed

    def elapsed_time(self, end: FakeMark) -> float:
        return (end._place - self._place) * self._clock.milliseconds


class FakeClock(DeviceClock):
    """Every mark is `milliseconds` after the one before.

    Attributes:
        passed: Marks that the device has passed.
        waits: How often somebody waited for one that it had not.
    """

    is_there = True

    def __init__(self, milliseconds: float, passed: int = 10**9) -> None:
        self.milliseconds, self.passed = milliseconds, passed
        self.waits = 0
        self.marks = 0

    def mark(self) -> FakeMark:
        self.marks += 1
        return FakeMark(self, self.marks - 1)
