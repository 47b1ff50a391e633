"""Owns what a user sees when something is wrong: one line that says what and what to do, and an exit code.

0 fine, 1 a check failed or bad input data, 2 usage, 3 something this machine lacks, 130 interrupted.
"""

from __future__ import annotations

import errno
import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn, TypeVar

import typer

T = TypeVar("T")

FINE = 0
BAD_INPUT = 1
USAGE = 2
LACKING = 3
INTERRUPTED = 130


# What helps against an error of the system, behind its own words.
_REMEDIES = {
    errno.ENOENT: "look at the path again",
    errno.EACCES: "change its permissions, or name another place",
    errno.EPERM: "change its permissions, or name another place",
    errno.EROFS: "name another place",
    errno.ENOSPC: "make room, or name another place",
    errno.EDQUOT: "make room, or name another place",
    errno.EISDIR: "name a file",
    errno.ENOTDIR: "a part of the path is a file; name a folder",
    errno.EEXIST: "a file has that name; name another one",
}


class LackingError(RuntimeError):
    """Something that this machine does not have; the message names the command that helps."""


def is_debug() -> bool:
    """Whether the traceback of an error is wanted (--debug or MINIVLLM_DEBUG=1)."""
    return bool(os.environ.get("MINIVLLM_DEBUG"))


def say(message: str) -> None:
    """Say what is wrong, on one line of stderr."""
    print(f"error: {' '.join(message.split())}", file=sys.stderr)


def fail(message: str, code: int) -> NoReturn:
    """Say what is wrong, and end with a code."""
    say(message)
    raise typer.Exit(code)


def user_errors(command: Callable[..., T]) -> Callable[..., T]:
    """Turn a user's mistakes into one line. With --debug (or MINIVLLM_DEBUG=1) they keep their traceback."""

    @functools.wraps(command)
    def guarded(*args: object, **kwargs: object) -> T:
        try:
            return command(*args, **kwargs)
        except KeyboardInterrupt:
            fail("interrupted", INTERRUPTED)
        except ImportError as error:
            if is_debug() or error.name is None or error.name.startswith("minivllm"):
                raise
            if isinstance(error, ModuleNotFoundError):
                fail(f"the package {error.name!r} is not installed; run: pip install {error.name}", LACKING)
            fail(f"the package {error.name!r} is there, but cannot be loaded: {error}; see: minivllm doctor", LACKING)
        except (ValueError, OSError, ArithmeticError, LackingError, MemoryError) as error:
            if is_debug() or isinstance(error, BrokenPipeError):
                raise
            lacking = isinstance(error, LackingError | MemoryError) or getattr(error, "is_lacking", False)
            fail(_message(error), LACKING if lacking else BAD_INPUT)
        except RuntimeError as error:
            from minivllm.engine.exceptions import EngineDeadError

            if is_debug() or not isinstance(error, EngineDeadError):
                raise
            fail(str(error), BAD_INPUT)
        except (LookupError, TypeError, AttributeError, AssertionError) as error:
            logs = [Path(str(kwargs[name])) for name in ("log", "a", "b") if kwargs.get(name) is not None]
            logs = [log for log in logs if log.is_file()]
            if is_debug() or not logs:
                raise
            fail(_fault(logs, error), BAD_INPUT)

    return guarded


def _fault(logs: list[Path], error: Exception) -> str:
    """What is wrong with a log over which a command has stumbled (a comparison has two): somebody has changed it."""
    from minivllm.trace.faults import first_fault

    names = " or ".join(map(str, logs))
    fits_not = f"{names}: its events do not fit together ({type(error).__name__}: {error})"
    fault = next(filter(None, map(first_fault, logs)), fits_not)
    return f"{fault}; was it changed by hand? --debug shows where it was missed"


def _message(error: Exception) -> str:
    if isinstance(error, MemoryError):
        return (
            "this machine has not enough memory for it; lower max_num_seqs, max_model_len or num_gpu_blocks, "
            "or take a smaller model"
        )
    if isinstance(error, OSError) and error.strerror:
        # Words that are not the system's own have their remedy.
        helps = _REMEDIES.get(error.errno or 0)
        remedy = f"; {helps}" if helps and error.strerror == os.strerror(error.errno or 0) else ""
        return f"{error.filename}: {error.strerror}{remedy}" if error.filename else f"{error.strerror}{remedy}"
    if isinstance(error, UnicodeEncodeError):
        return (
            f"the output's encoding ({error.encoding}) has no {error.object[error.start]!a}; "
            "set PYTHONIOENCODING=utf-8, or give --ascii where there is a picture"
        )
    return str(error) or type(error).__name__
