"""Owns reading a log file back. No engine, no torch."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from pathlib import Path

import msgspec

from minivllm.trace.events import SCHEMA, Event, Header


class LogError(ValueError):
    """A file that is not a log that this version can read."""


class _AnyHeader(msgspec.Struct):
    schema: str


class _Dropped(msgspec.Struct):
    dropped: int


_ANY_HEADER = msgspec.json.Decoder(_AnyHeader)
_DROPPED = msgspec.json.Decoder(_Dropped)
_EVENT = msgspec.json.Decoder(Event)


@dataclass(frozen=True, slots=True)
class Log:
    """A log in memory.

    Attributes:
        header: What it is of.
        events: Its events, in order.
        num_dropped: Events that the writer left out because there were too many.
        truncated: The file ends in the middle: the writer was cut off.
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
        text, truncated = _read(path)
    except OSError as error:
        raise LogError(f"{path}: cannot be read: {error.strerror or error}") from None
    first, *lines = text.split(b"\n")
    header = _header(first, path)
    events: list[Event] = []
    num_dropped = 0
    for number, line in enumerate(lines, 2):
        if not line:
            continue
        try:
            if line.startswith(b'{"dropped"'):
                num_dropped = _DROPPED.decode(line).dropped
            else:
                events.append(_EVENT.decode(line))
        except msgspec.DecodeError as error:
            if number <= len(lines):  # only the very last line has no newline behind it
                raise LogError(f"{path}, line {number}: not an event: {error}") from None
            truncated = True
        if events and events[-1].seq != len(events) - 1:
            raise LogError(f"{path}, line {number}: event {len(events) - 1} is missing. Record it again.")
    return Log(header, events, num_dropped, truncated, path)


def _header(line: bytes, path: Path) -> Header:
    if not line:
        raise LogError(f"{path}: not a minivllm log: there is nothing in it")
    try:
        schema = _ANY_HEADER.decode(line).schema
        if schema == SCHEMA:
            return msgspec.json.decode(line, type=Header)
    except msgspec.DecodeError:
        raise LogError(f"{path}: not a minivllm log: its first line is no header") from None
    if not schema.startswith("minivllm.log/"):
        raise LogError(f"{path}: not a minivllm log, but {schema!r}")
    raise LogError(f"{path}: written as {schema!r}; this version reads {SCHEMA!r}. Record it again with this one.")


def _read(path: Path) -> tuple[bytes, bool]:
    """The file's text, and whether its compression says that something is missing."""
    raw = path.read_bytes()
    if path.suffix != ".gz":
        return raw, False
    # A plain decompress() would give nothing of a file that was cut off.
    decompressor = zlib.decompressobj(wbits=31)
    try:
        return decompressor.decompress(raw), not decompressor.eof
    except zlib.error as error:
        raise LogError(f"{path}: not a gzip file: {error}") from None
