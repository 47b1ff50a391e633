"""Owns the first moment of the `minivllm` command: Ctrl-C ends it in one line even while its parts are being loaded.

python -m minivllm
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
from contextlib import suppress
from types import FrameType
from typing import NoReturn

_INTERRUPTED = 130  # as in entrypoints/cli/errors.py, which is not loaded yet


def command() -> NoReturn:
    """Entry point of the installed command."""
    code = main()
    # What an interpreter does at its end, but for taking itself apart: with torch inside that takes a second.
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # nobody reads it any more; `main` has seen to the exit code
            stream.flush()
    os._exit(code)


def main() -> int:
    """Run the command. Returns the exit code."""
    # A job in the background of a script is started with interrupts ignored, and keeps ignoring them.
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, _interrupt)
    from minivllm.entrypoints.cli.main import main as run

    code = run()
    # All is said and written: an interrupt from here on ends the process without a word.
    if signal.getsignal(signal.SIGINT) is _interrupt:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    return code


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt; but end at once inside an import, where it may be swallowed or leave half a module."""
    if "minivllm.entrypoints.cli.main" in sys.modules and not _is_importing(frame):
        raise KeyboardInterrupt
    os.write(2, b"error: interrupted\n")
    os._exit(_INTERRUPTED)


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False


if __name__ == "__main__":
    command()
