"""Owns time on the device's own clock: marks behind the work that was submitted, read when the device has passed them.

A mark costs about a microsecond and never waits. Whoever reads it asks first whether it was passed, or reads when the
run is over.
"""

from __future__ import annotations

from typing import Any, Protocol


class Mark(Protocol):
    """A point in the device's work; as torch.cuda.Event has it."""

    def query(self) -> bool:
        """Whether the device has passed it. Does not wait."""
        ...

    def synchronize(self) -> None:
        """Wait until it has."""
        ...

    def elapsed_time(self, end: Any) -> float:
        """Milliseconds from here to a later mark. Both must be passed."""
        ...


class DeviceTimer:
    """From one mark to another.

    Args:
        clock: Makes marks.
    """

    def __init__(self, clock: DeviceClock) -> None:
        self._clock = clock
        self._start = clock.mark()
        self._end: Mark | None = None

    def stop(self) -> DeviceTimer:
        """Put the second mark behind all that was submitted up to now."""
        self._end = self._clock.mark()
        return self

    @property
    def is_known(self) -> bool:
        """Whether the device has passed the second mark."""
        return self._end is not None and self._end.query()

    def nanoseconds_after(self, mark: Mark) -> int:
        """From an earlier mark to the first one of these."""
        return int(mark.elapsed_time(self._start) * 1e6)

    def nanoseconds(self) -> int | None:
        """Between the marks, waiting for the second if need be; None if there is none."""
        if self._end is None:
            return None
        self._end.synchronize()
        return int(self._start.elapsed_time(self._end) * 1e6)

    def seconds(self) -> float | None:
        """The same in seconds."""
        passed = self.nanoseconds()
        return None if passed is None else passed / 1e9


class DeviceClock:
    """Makes marks. Of a CPU there are none: what it does takes the time of the call.

    Attributes:
        is_there: Whether there is such a clock.
    """

    is_there = False

    def mark(self) -> Mark:
        """A mark behind the work that was submitted up to now."""
        raise RuntimeError("a CPU has no clock of its own")

    def start(self) -> DeviceTimer:
        """A timer from here on."""
        return DeviceTimer(self)

    @staticmethod
    def of(device: str) -> DeviceClock:
        """The clock of "cuda", and none of any other."""
        return CudaClock() if device.startswith("cuda") else DeviceClock()


class CudaClock(DeviceClock):
    """Events on the current stream of the current GPU."""

    is_there = True

    def mark(self) -> Mark:
        import torch

        event: Mark = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()  # type: ignore[attr-defined]
        return event
