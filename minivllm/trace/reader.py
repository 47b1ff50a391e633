"""Owns reading a log file back. No engine, no torch."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from pathlib import Path

import msgspec

from minivllm.trace.events import SCHEMA, Event, Header


class LogError(ValueError):
    """A file that is not a log that this version can read."""


@dataclass(frozen=True, slots=True)
class Log:
    """A log in memory.

    Attributes:
        header: What it is of.
        events: Its events, in order.
        num_dropped: Events that the writer left out because there were too many.
        truncated: The file ends in the middle of a line: the writer was cut off.
        path: Where it was read from; None if it never was a file.
    """

    header: Header
    events: list[Event]
    num_dropped: int = 0
    truncated: bool = False
    path: Path | None = None


def read_log(path: Path) -> Log:
    """Read a log; one that was cut off is read up to the cut.

    Raises:
        LogError: The file is missing, or is no log of this version.
    """
    try:
        lines = _read(path).split(b"\n")
    except OSError as error:
        raise LogError(f"{path}: cannot be read: {error.strerror or error}") from None
    try:
        header = msgspec.json.decode(lines[0], type=Header)
    except msgspec.DecodeError:
        raise LogError(f"{path}: not a minivllm log: its first line is no header") from None
    if header.schema != SCHEMA:
        raise LogError(f"{path}: written as {header.schema!r}; this version reads {SCHEMA!r}. Record it again.")
    events: list[Event] = []
    num_dropped = 0
    decoder = msgspec.json.Decoder(Event)
    for number, line in enumerate(lines[1:], 2):
        if not line:
            continue
        if line.startswith(b'{"dropped"'):
            num_dropped = msgspec.json.decode(line)["dropped"]
            continue
        try:
            events.append(decoder.decode(line))
        except msgspec.DecodeError as error:
            if number == len(lines):  # only the very last line has no newline behind it
                return Log(header, events, num_dropped, True, path)
            raise LogError(f"{path}, line {number}: not an event: {error}") from None
    return Log(header, events, num_dropped, False, path)


def _read(path: Path) -> bytes:
    raw = path.read_bytes()
    if path.suffix != ".gz":
        return raw
    # A plain decompress() would give nothing of a file that was cut off.
    decompressor = zlib.decompressobj(wbits=31)
    try:
        return decompressor.decompress(raw)
    except zlib.error as error:
        raise LogError(f"{path}: not a gzip file: {error}") from None
