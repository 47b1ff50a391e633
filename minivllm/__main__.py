"""Owns the first moment of the `minivllm` command: Ctrl-C ends it in one line even while its parts are being loaded.

python -m minivllm
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

_INTERRUPTED = 130  # as in entrypoints/cli/errors.py, which is not loaded yet


def main() -> int:
    """Entry point of the installed command. Returns the exit code."""
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
    sys.exit(main())
