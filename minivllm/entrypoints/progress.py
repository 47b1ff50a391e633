"""Owns the one line that tells on a terminal how far long work is. Upstream: tqdm, which vLLM uses."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Protocol

_WIDTH = 24
_SECONDS_BETWEEN = 0.1


class CanAdvance(Protocol):
    """What tells how far work is."""

    def advance(self, num_tokens: int) -> None: ...


def make_progress(what: str, total: int, use_tqdm: bool | Callable[..., Any]) -> AbstractContextManager[CanAdvance]:
    """The line of this module, none, or a bar of the caller's making (`tqdm.tqdm`, or a partial of it)."""
    if isinstance(use_tqdm, bool):
        return Progress(what, total, enabled=use_tqdm)
    if not callable(use_tqdm):
        raise ValueError(f"use_tqdm must be True, False or a function that makes a bar, got {use_tqdm!r}")
    return _ForeignBar(use_tqdm(total=total, desc=f"Processed {what}"))


class _ForeignBar:
    """A bar with tqdm's methods."""

    def __init__(self, bar: Any) -> None:
        self._bar = bar

    def advance(self, num_tokens: int) -> None:
        self._bar.update(1)

    def __enter__(self) -> _ForeignBar:
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.close()


class Progress:
    """A bar on stderr, redrawn in place and gone at the end; nothing where stderr is no terminal.

    Args:
        what: What is counted, in the plural.
        total: How many there are.
        enabled: False draws nothing.
    """

    def __init__(self, what: str, total: int, enabled: bool = True) -> None:
        self._what = what
        self._total = total
        self._enabled = enabled and sys.stderr.isatty()
        self._done = 0
        self._tokens = 0
        self._start = time.monotonic()
        self._drawn = 0.0

    def advance(self, num_tokens: int) -> None:
        """One more is done, and brought so many tokens."""
        self._done += 1
        self._tokens += num_tokens
        now = time.monotonic()
        if self._enabled and now - self._drawn >= _SECONDS_BETWEEN:
            self._drawn = now
            filled = _WIDTH * self._done // max(1, self._total)
            rate = self._tokens / max(1e-9, now - self._start)
            line = (
                f"{'#' * filled}{'.' * (_WIDTH - filled)} {self._done}/{self._total} {self._what}, {rate:.0f} tokens/s"
            )
            print(f"\r{line}\033[K", end="", file=sys.stderr, flush=True)

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._enabled and self._drawn:
            print("\r\033[K", end="", file=sys.stderr, flush=True)
