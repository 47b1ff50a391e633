"""Owns Ctrl-C during a run: it ends between two steps, so that no event of the log is torn in two."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def interrupt_between_steps() -> Iterator[Callable[[], None]]:
    """Hold Ctrl-C back until the function that this gives is called, which then raises KeyboardInterrupt.

    The second Ctrl-C is not held back.
    """
    seen: list[int] = []

    def check() -> None:
        if seen:
            raise KeyboardInterrupt

    # Only the main thread hears signals; and whoever ignores them goes on to do so.
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield check
        return

    def remember(number: int, frame: FrameType | None) -> None:
        seen.append(number)
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, remember)
    try:
        yield check
    finally:
        signal.signal(signal.SIGINT, before)
