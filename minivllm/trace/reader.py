"""Owns reading a log file back, whole or a few iterations of it. No engine, no torch.

A whole log stands in memory. A window is read without the rest: the trailer of a finished log says where its keyframes
begin, so that the state at any iteration is at most one keyframe's distance of replay away.
"""

from __future__ import annotations

import os
import sys
import zlib
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import msgspec

from minivllm.trace.device_times import join_device_times
from minivllm.trace.events import SCHEMA, End, Event, Header, Trailer
from minivllm.trace.replay import State

# What helps where a file is no log.
_RECORD = "Record one with: minivllm trace --out LOG"
_CHUNK = 1 << 20


class LogError(ValueError):
    """A file that is not a log that this version can read."""


class _AnyHeader(msgspec.Struct):
    schema: str


_ANY_HEADER = msgspec.json.Decoder(_AnyHeader)
_TRAILER = msgspec.json.Decoder(Trailer)
_EVENT = msgspec.json.Decoder(Event)
_TRAILER_START = b'{"end":'


@dataclass(frozen=True, slots=True)
class Log:
    """A log, or a window of one, in memory.

    Attributes:
        header: What it is of.
        events: Its events, in order. Those of a window are followed by the outputs of its last plans.
        num_dropped: Events that the writer left out because there were too many.
        truncated: The file ends in the middle: the writer was cut off.
        path: Where it was read from; None if it never was a file.
        window: First and last iteration, if it is a window.
        start: The state before its first event, in the form of `State.as_dict`; None for a fresh engine.
    """

    header: Header
    events: list[Event]
    num_dropped: int = 0
    truncated: bool = False
    path: Path | None = None
    window: tuple[int, int] | None = None
    start: dict[str, Any] | None = None

    def by_step(self) -> dict[int, list[Event]]:
        """The events of every iteration, in order."""
        steps: dict[int, list[Event]] = {}
        for event in self.events:
            if event.step >= 0 and (self.window is None or event.step <= self.window[1]):
                steps.setdefault(event.step, []).append(event)
        return steps


def read_log(path: Path) -> Log:
    """Read a log; one that was cut off is read up to the cut.

    Raises:
        LogError: The file is missing, or is no log of this version.
    """
    reading = _Reading(path)
    events = list(reading.events())
    join_device_times(events)
    return Log(reading.header, events, reading.num_dropped, reading.truncated, path)


def read_window(path: Path, first: int, last: int) -> Log:
    """Read some iterations of a log, both ends included, and the state before them.

    Args:
        path: The log.
        first: First iteration.
        last: Last iteration; one beyond the end of the log stands for the end.

    Raises:
        LogError: The file is missing, is no log of this version, or has none of these iterations.
    """
    reading = _Reading(path, before=first)
    state = State(reading.header)
    inside: list[Event] = []
    after: list[Event] = []  # of the step behind the window
    last_step = -1
    for event in reading.events():
        if event.step > last + 1 and reading.has_index:
            break
        if event.step > last:
            if event.step == last + 1:
                after.append(event)
            continue
        last_step = max(last_step, event.step)
        if event.step >= first or first == 0:  # what came before the first iteration belongs to it
            inside.append(event)
        elif event.kind == "keyframe" and event.step == reading.keyframe_step:
            state.load(event.data["state"])
        else:
            state.apply(event)
    if not inside:
        has = f"this run has 0 to {last_step}" if last_step >= 0 else "the run has no iterations"
        raise LogError(f"{path}: there is no iteration {first}: {has}")
    window = (first, min(last, last_step))
    events = inside + _late_output(after, last)
    join_device_times(events)
    return Log(reading.header, events, reading.num_dropped, reading.truncated, path, window, state.as_dict())


def last_iteration(path: Path) -> int:
    """Number of the last iteration of a log; -1 if it has none.

    Raises:
        LogError: The file is missing, or is no log of this version.
    """
    return max((event.step for event in _Reading(path, before=sys.maxsize).events()), default=-1)


def _late_output(after: list[Event], last: int) -> list[Event]:
    """Of the step behind a window: what the window's last plan has brought, if the run planned ahead."""
    if not any(event.kind == "update" and event.data["update_of"] <= last for event in after):
        return []
    return [event for event in after if event.kind in ("update", "output.text", "device.time")]


class _Reading:
    """One pass over a log file, from its beginning or from a keyframe.

    Args:
        path: The file.
        before: Begin at the last keyframe before this iteration, if the log has an index; None for the beginning.

    Attributes:
        header: The first line.
        has_index: The log's end was read first, and all of it is known.
        keyframe_step: Step of the keyframe where the pass begins; None for the beginning.
        num_dropped: Events that the writer left out; known at the end of the log.
        truncated: The end of the log is missing.

    Raises:
        LogError: The file is missing, or is no log of this version.
    """

    def __init__(self, path: Path, before: int | None = None) -> None:
        self._path = path
        self.has_index = False
        self.keyframe_step: int | None = None
        self.num_dropped = 0
        self.truncated = True  # until the trailer is read
        try:
            lines = self._lines(0)
            self.header = _header(next(lines, b""), path)
            lines.close()
            self._start = self._keyframe(before) if before is not None and path.suffix != ".gz" else (0, 0)
        except OSError as error:
            raise LogError(f"{path}: cannot be read: {error.strerror or error}") from None

    def events(self) -> Iterator[Event]:
        """The events, in order, up to the end or the cut."""
        offset, seq = self._start
        lines = self._lines(offset)
        number = 1
        if not offset:
            next(lines, None)
        for number, line in enumerate(lines, 2):
            if line == b"\n":
                continue
            try:
                if line.startswith(_TRAILER_START):
                    end = _TRAILER.decode(line).end
                    self.num_dropped, self.truncated = end.dropped, False
                    self._expect(seq == end.events, number, seq)
                    return
                event = _EVENT.decode(line)
            except msgspec.DecodeError as error:
                if not line.endswith(b"\n"):  # the very last line: the writer was cut off
                    return
                place = f"{self._path}, {self._place(number)}"
                raise LogError(f"{place}: not an event: {error}. Record it again.") from None
            self._expect(event.seq == seq, number, seq)
            seq += 1
            yield event

    def _expect(self, is_next: bool, number: int, seq: int) -> None:
        if not is_next:
            raise LogError(f"{self._path}, {self._place(number)}: event {seq} is missing. Record it again.")

    def _place(self, number: int) -> str:
        if self.keyframe_step is None:
            return f"line {number}"
        return f"{number - 1} lines after the keyframe of iteration {self.keyframe_step}"

    def _keyframe(self, before: int) -> tuple[int, int]:
        """Where the last keyframe before an iteration stands: its byte, and the seq of its first event."""
        found = (0, 0)
        if (end := _end(self._path)) is None:
            return found
        self.has_index, self.num_dropped, self.truncated = True, end.dropped, False
        for step, offset, seq in end.index:
            if step < before and offset is not None:
                self.keyframe_step, found = step, (offset, seq)
        return found

    def _lines(self, offset: int) -> Generator[bytes, None, None]:
        """Lines with their ends, from a byte on. Only one that was cut off has no end."""
        with self._path.open("rb") as file:
            if self._path.suffix != ".gz":
                file.seek(offset)
                yield from file
                return
            rest = b""
            for chunk in _decompressed(file, self._path):
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    yield line + b"\n"
            if rest:
                yield rest


def _end(path: Path) -> End | None:
    """What the last line says; None if the log was cut off."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _CHUNK))
        last_line = file.read().rstrip(b"\n").rpartition(b"\n")[2]
    try:
        return _TRAILER.decode(last_line).end
    except msgspec.DecodeError:
        return None


def _decompressed(file: IO[bytes], path: Path) -> Iterator[bytes]:
    """The text of a gzip file, as far as it goes. (The gzip module gives nothing of the last part that was cut.)"""
    decompressor = zlib.decompressobj(wbits=31)
    while chunk := file.read(_CHUNK):
        try:
            yield decompressor.decompress(chunk)
        except zlib.error as error:
            raise LogError(f"{path}: not a gzip file: {error}. {_RECORD}") from None


def _header(line: bytes, path: Path) -> Header:
    if not line:
        raise LogError(f"{path}: not a minivllm log: there is nothing in it. {_RECORD}")
    try:
        schema = _ANY_HEADER.decode(line).schema
        if schema == SCHEMA:
            return msgspec.json.decode(line, type=Header)
    except msgspec.DecodeError:
        raise LogError(f"{path}: not a minivllm log: its first line is no header. {_RECORD}") from None
    if not schema.startswith("minivllm.log/"):
        raise LogError(f"{path}: not a minivllm log, but {schema!r}. {_RECORD}")
    raise LogError(f"{path}: written as {schema!r}; this version reads {SCHEMA!r}. Record it again with this one.")
