"""Owns a terminal while a program fills it: keys come in one by one, pictures go out whole, and all is put back.

On Windows, which has no termios, `is_terminal` says no.
"""

from __future__ import annotations

import os
import re
import select
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Any

try:
    import termios
    import tty
except ModuleNotFoundError:  # Windows
    termios = None  # type: ignore[assignment]

# Another screen, so that the lines before are there again afterwards; no cursor; no wrapping of full lines.
_ENTER = "\x1b[?1049h\x1b[?25l\x1b[?7l"
_LEAVE = "\x1b[?7h\x1b[?25h\x1b[0m\x1b[?1049l"

# How long the rest of a key's sequence may take; an Escape alone has none.
_SEQUENCE_SECONDS = 0.05

_ONE_KEY = re.compile(r"\x1b\[[0-9;]*[A-Za-z~]|\x1bO[A-Za-z]|.", re.S)
_NAMES = {
    **{"\x1b[A": "up", "\x1b[B": "down", "\x1b[C": "right", "\x1b[D": "left"},
    **{"\x1bOA": "up", "\x1bOB": "down", "\x1bOC": "right", "\x1bOD": "left"},
    **{"\x1b[H": "home", "\x1bOH": "home", "\x1b[1~": "home", "\x1b[7~": "home"},
    **{"\x1b[F": "end", "\x1bOF": "end", "\x1b[4~": "end", "\x1b[8~": "end"},
    **{"\x1b[5~": "page up", "\x1b[6~": "page down", "\x1b[Z": "shift tab", "\t": "tab"},
    **{"\r": "enter", "\n": "enter", "\x7f": "backspace", "\x08": "backspace", "\x1b": "escape"},
    **{"\x03": "ctrl-c", "\x04": "ctrl-c"},
}
RESIZED = "resized"
_ENDING_SIGNALS = (signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else []))


def is_terminal() -> bool:
    """Whether keys can be read and pictures drawn here."""
    return (
        termios is not None
        and sys.stdin.isatty()
        and sys.stdout.isatty()
        and os.environ.get("TERM", "dumb") not in ("dumb", "unknown")
    )


class Terminal:
    """The terminal of this process, for the length of a `with` block."""

    def __init__(self) -> None:
        self._in, self._out = sys.stdin.fileno(), sys.stdout.fileno()
        self._before: list[Any] = []
        self._handlers: dict[int, Any] = {}
        self._woken, self._waker = -1, -1

    def __enter__(self) -> Terminal:
        sys.stdout.flush()
        self._before = termios.tcgetattr(self._in)
        try:
            # A signal only leaves a word in a pipe: the loop that waits for keys hears of it there.
            self._woken, self._waker = os.pipe()
            os.set_blocking(self._waker, False)
            self._handlers[signal.SIGWINCH] = signal.signal(signal.SIGWINCH, self._wake)
            for number in _ENDING_SIGNALS:
                self._handlers[number] = signal.signal(number, _end)
            tty.setraw(self._in)
            self._write(_ENTER)
        except BaseException:
            self._restore()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._restore()

    def size(self) -> tuple[int, int]:
        """Columns and lines, as they are now."""
        try:
            return tuple(os.get_terminal_size(self._out))  # type: ignore[return-value]
        except OSError:
            return tuple(shutil.get_terminal_size())  # type: ignore[return-value]

    def show(self, lines: list[str]) -> None:
        """Put a picture on the screen: so many lines as it has, none too long."""
        self._write("\x1b[H" + "\r\n".join(f"{line}\x1b[0m\x1b[K" for line in lines) + "\x1b[J")

    def pressed(self) -> Iterator[str]:
        """Characters, and the names of other keys; RESIZED when the screen has another size; ends with the input."""
        while True:
            ready, _, _ = select.select([self._in, self._woken], [], [])
            if self._woken in ready:
                os.read(self._woken, 1024)
                yield RESIZED
            if self._in in ready:
                text = self._read()
                if not text:
                    return
                for key in _ONE_KEY.findall(text):
                    yield _NAMES.get(key, key)

    def _read(self) -> str:
        try:
            raw = os.read(self._in, 1024)
        except OSError:  # the terminal is gone
            return ""
        while raw and (raw.endswith((b"\x1b", b"\x1b[", b"\x1bO")) or _is_cut(raw)):
            if not select.select([self._in], [], [], _SEQUENCE_SECONDS)[0]:
                break
            more = os.read(self._in, 1024)
            if not more:
                break
            raw += more
        return raw.decode("utf-8", "ignore")

    def _write(self, text: str) -> None:
        raw = text.encode("utf-8", "replace")
        while raw:
            raw = raw[os.write(self._out, raw) :]

    def _wake(self, number: int, frame: FrameType | None) -> None:
        with suppress(BlockingIOError):  # it is full of words that say the same
            os.write(self._waker, b"r")

    def _restore(self) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._handlers.clear()
        with suppress(OSError, termios.error):  # the terminal may be gone
            self._write(_LEAVE)
            termios.tcsetattr(self._in, termios.TCSADRAIN, self._before)
        for descriptor in (self._woken, self._waker):
            if descriptor >= 0:
                os.close(descriptor)
        self._woken = self._waker = -1


def _end(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def _is_cut(raw: bytes) -> bool:
    """Whether the last character's bytes are not all there."""
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError as error:
        return error.reason == "unexpected end of data"
    return False
