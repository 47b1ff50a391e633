"""Owns what a user sees when something is wrong: one line that says what and what to do, and an exit code.

0 fine, 1 a check failed or bad input data, 2 usage, 3 something this machine lacks, 130 interrupted.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from typing import NoReturn, TypeVar

import typer

T = TypeVar("T")

BAD_INPUT = 1
USAGE = 2
LACKING = 3
INTERRUPTED = 130


class LackingError(RuntimeError):
    """Something that this machine does not have; the message names the command that helps."""


def fail(message: str, code: int) -> NoReturn:
    """Say what is wrong, on stderr, and end with a code."""
    line = " ".join(message.split())
    print(f"error: {line}", file=sys.stderr)
    raise typer.Exit(code)


def user_errors(command: Callable[..., T]) -> Callable[..., T]:
    """Turn a user's mistakes into one line. With --debug (or MINIVLLM_DEBUG=1) they keep their traceback."""

    @functools.wraps(command)
    def guarded(*args: object, **kwargs: object) -> T:
        try:
            return command(*args, **kwargs)
        except KeyboardInterrupt:
            fail("interrupted", INTERRUPTED)
        except ModuleNotFoundError as error:
            if os.environ.get("MINIVLLM_DEBUG") or error.name is None or error.name.startswith("minivllm"):
                raise
            fail(f"the package {error.name!r} is not installed; run: pip install {error.name}", LACKING)
        except (ValueError, OSError, LackingError, MemoryError) as error:
            if os.environ.get("MINIVLLM_DEBUG") or isinstance(error, BrokenPipeError):
                raise
            lacking = isinstance(error, LackingError) or getattr(error, "is_lacking", False)
            fail(str(error) or type(error).__name__, LACKING if lacking else BAD_INPUT)

    return guarded
