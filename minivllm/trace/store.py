"""Owns where logs are kept on this machine."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TextIO

_STDOUT = ("/dev/stdout", "/dev/fd/1", "/proc/self/fd/1")
_STDERR = ("/dev/stderr", "/dev/fd/2", "/proc/self/fd/2")


def state_home() -> Path:
    """The user's folder for logs: $MINIVLLM_HOME/logs, or minivllm/logs below $XDG_STATE_HOME."""
    if own := os.environ.get("MINIVLLM_HOME"):
        return Path(own) / "logs"
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "minivllm" / "logs"


def new_log_path(name: str) -> Path:
    """A path for a new log: names sort by time, and no other process makes the same one.

    Raises:
        ValueError: The folder for logs cannot be made.
    """
    try:
        state_home().mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"no logs can be kept in {state_home()} ({error.strerror}): set MINIVLLM_HOME") from None
    stem = f"{time.strftime('%Y%m%d-%H%M%S')}-{name}-{os.getpid()}"
    path = state_home() / f"{stem}.jsonl"
    number = 1
    while path.exists():
        number += 1
        path = state_home() / f"{stem}-{number}.jsonl"
    return path


def write_whole(path: Path, lines: Iterable[str]) -> None:
    """Write lines to a file that is there in full, or as it was before; to a device or a pipe as they come.

    Raises:
        OSError: It cannot be written.
    """
    if (stream := _own_stream(path)) is not None:
        stream.writelines(f"{line}\n" for line in lines)
        stream.flush()
        return
    _write_whole(path, (f"{line}\n".encode() for line in lines))


def write_whole_bytes(path: Path, parts: Iterable[bytes]) -> None:
    """The same for parts of a file that is no text, or whose lines have their ends.

    Raises:
        OSError: It cannot be written.
    """
    if (stream := _own_stream(path)) is not None:
        stream.flush()
        stream.buffer.writelines(parts)
        stream.buffer.flush()
        return
    _write_whole(path, parts)


def _own_stream(path: Path) -> TextIO | None:
    # Our own streams are written through, so that what is printed stands in order, whatever they lead to.
    for stream, names in ((sys.stdout, _STDOUT), (sys.stderr, _STDERR)):
        if str(path) in names:
            return stream
    return None


def _write_whole(path: Path, parts: Iterable[bytes]) -> None:
    # Asked before it is resolved: a pipe's own name leads nowhere.
    if path.exists() and not path.is_file():
        _write(path, parts)
        return
    path = path.resolve()
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        _write(unfinished, parts)
        unfinished.replace(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


def _write(path: Path, parts: Iterable[bytes]) -> None:
    with path.open("wb") as file:
        try:
            file.writelines(parts)
            file.flush()
        except OSError as error:
            # The system names no file where writing fails.
            error.filename = error.filename or str(path)
            raise


def newest_log() -> Path | None:
    """The log that was written last, or None."""
    logs = [path for path in state_home().glob("*.jsonl*") if path.is_file()]
    return max(logs, key=lambda path: (path.stat().st_mtime_ns, path.name), default=None)
