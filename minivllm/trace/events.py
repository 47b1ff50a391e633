"""Owns the event log: its schema, and how it is written. Knows nothing of engines.

A log is JSON lines: the header, then the events in the order in which things happened, then one line that says that
this is the end. A log that was cut off anywhere can be read up to the cut. A path that ends in .gz is compressed.
`docs/log.md` describes every kind of event.
"""

from __future__ import annotations

import gzip
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO, Any, Literal

import msgspec

from minivllm.trace.device_times import join_device_times

SCHEMA = "minivllm.log/2"

# Events beyond this are counted and dropped: a log must stay small enough to open. The end of a step is never
# dropped, so that a reader still sees how long the run was.
MAX_EVENTS = 1_000_000
_NEVER_DROPPED = frozenset({"step.end"})

# Steps from one keyframe to the next, at least. A keyframe of a large pool is large, so the events between two must
# weigh this many times as much as the last one did.
KEYFRAME_STEPS = 64
_KEYFRAME_WEIGHT = 4

# Events that wait to be written, at most; and where they are written while a device computes.
_MOST_WAITING, _MOST_WAITING_BESIDE_DEVICE = 32, 4096
# How many are written at a time: well below a millisecond's work, after which the device is looked at again.
_AT_A_TIME = 16
# What a step has to say goes to the system at once.
_FILE_BUFFER = 2**20

Level = Literal["step", "function", "kernel"]


class Header(msgspec.Struct, kw_only=True):
    """What a log is of.

    Attributes:
        schema: Version of the format.
        config: The engine's settings, by name.
        model: Which model ran ("simulated" if none).
        scenario: Name of the scenario, if it was one.
        seed: Seed of the draws of requests that bring none.
        level: How much is recorded: "step", "function" (every call of a symbol on the map) or "kernel".
        clock: "logical" if times are left out, so that the same run gives the same bytes; else "wall".
        versions: Versions of minivllm, Python and torch (if it ran); none in a logical log.
        device: Where it ran.
        started_at: When, as an ISO time; None in a logical log.
        model_shape: The model's sizes, its precision, what its weights take, and which tensor of its files fills which
            rows of which parameter (`minivllm.scenarios.model_shape`); empty if no model ran.
        kv_cache: How large the KV cache is, and why: bytes_per_block, num_blocks, num_tokens, memory_bytes, reason.
    """

    schema: str = SCHEMA
    config: dict[str, Any] = {}
    model: str = ""
    scenario: str | None = None
    seed: int = 0
    level: Level = "step"
    clock: Literal["logical", "wall"] = "wall"
    versions: dict[str, str] = {}
    device: str = ""
    started_at: str | None = None
    model_shape: dict[str, Any] = {}
    kv_cache: dict[str, Any] = {}


class Event(msgspec.Struct, omit_defaults=True, gc=False):
    """One thing that happened.

    Attributes:
        seq: Its place in the log, from 0, without a gap.
        step: Iteration of the engine, from 0; -1 before the first.
        process: Whose work it is: "frontend", "engine_core", "worker" or "device".
        kind: What; see `minivllm.trace.schema`.
        request: Whom it concerns, if one.
        block: Which block of the KV pool, if one.
        row: Which row or slot of the batch, if one.
        cause: The event that made this one happen, by `seq`, where it is known.
        data: Its facts: numbers, ids and lists of them.
        src: Our symbol that did it, "module:qualname".
        ref: vLLM's symbol that does the same, "path::Class.method".
        wall_ns: Monotonic clock at its end. All processes of a machine share it.
        dur_ns: How long it took.
        thread: Thread or loop that did it; None for the main one of its process.
    """

    seq: int
    step: int
    process: str
    kind: str
    request: str | None = None
    block: int | None = None
    row: int | None = None
    cause: int | None = None
    data: dict[str, Any] = {}
    src: str | None = None
    ref: str | None = None
    wall_ns: int | None = None
    dur_ns: int | None = None
    thread: str | None = None


# Gives an event's data when it is written. Any thread may ask it, and again if it was interrupted; it adds no events.
MakeData = Callable[[], dict[str, Any]]


class End(msgspec.Struct):
    """What the last line says.

    Attributes:
        events: Events in the log.
        dropped: Events that were left out because there were too many.
        index: Where keyframes stand: [step, byte of its first line (None if compressed), seq].
    """

    events: int
    dropped: int = 0
    index: list[tuple[int, int | None, int]] = []


class Trailer(msgspec.Struct):
    """The last line of a log that was finished."""

    end: End


_DECODER = msgspec.json.Decoder(Event)


class EventLog:
    """Collects events; writes them to a file step by step, if there is one.

    Events are kept as the bytes that are written: objects by the million would slow down the whole process, for
    Python's garbage collector looks at all of them again and again.

    Args:
        header: First line of the log.
        path: File to write, or None to keep events in memory only.
        logical: Leave out clocks, versions and the date, so that the same run gives the same bytes anywhere.

    Attributes:
        step: Iteration that later events belong to.
        last: The latest event of each kind, by `seq`.
        num_events: Events so far.
        num_dropped: Events that were left out.
    """

    def __init__(self, header: Header, path: Path | None = None, *, logical: bool = False) -> None:
        if logical:
            header.clock, header.versions, header.started_at = "logical", {}, None
        self.logical = header.clock == "logical"
        self.header = header
        self.num_events = 0
        self.num_dropped = 0
        self.step = -1
        self.last: dict[str, int] = {}
        self._pending: list[Event] = []  # data may still be a function
        self._is_beside_device, self._most_waiting = False, _MOST_WAITING
        self._chunks: list[bytes] = []
        self._decoded: list[Event] = []
        self._num_decoded_chunks = 0
        self._lock = threading.Lock()  # a core has three threads
        self._encoder = msgspec.json.Encoder()
        self._file: IO[bytes] | None = None
        self._is_compressed = path is not None and path.suffix == ".gz"
        self._index: list[tuple[int, int | None, int]] = []
        self._num_bytes = 0
        self._keyframe = (0, 0)  # where the last one ended, and how large it was
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = _open(path)
            self._file.write(self._encoder.encode(header) + b"\n")
            if not self._is_compressed:
                self._file.flush()  # a process that dies in its first step has left a log, too

    @property
    def events(self) -> list[Event]:
        """What has happened so far, as a reader of the file sees it."""
        with self._lock:
            self._flush()
            known = len(self._decoded)
            for chunk in self._chunks[self._num_decoded_chunks :]:
                self._decoded += _DECODER.decode_lines(chunk)
            join_device_times(self._decoded, known)
            self._num_decoded_chunks = len(self._chunks)
            return self._decoded

    def add(
        self,
        process: str,
        kind: str,
        *,
        request: str | None = None,
        block: int | None = None,
        row: int | None = None,
        cause: int | None = None,
        data: dict[str, Any] | MakeData | None = None,
        src: str | None = None,
        ref: str | None = None,
        wall_ns: int | None = None,
        dur_ns: int | None = None,
        thread: str | None = None,
    ) -> int:
        """Append an event of the current step.

        Its data must not change afterwards: it is written a little later. Data that takes long to put together can be
        a function, which is called then.

        A log with clocks is written at the end of every step, so that what a killed process did can be read; beside a
        device, while the next step computes.

        Returns:
            Its `seq`; -1 if it was dropped.
        """
        event = Event(
            -1,
            -1,
            process,
            kind,
            request,
            block,
            row,
            cause,
            data or {},  # type: ignore[arg-type]
            src,
            ref,
            time.monotonic_ns() if wall_ns is None else wall_ns,
            dur_ns,
            thread,
        )
        with self._lock:
            return self._append(event)

    def add_all(self, events: Iterable[Event]) -> None:
        """Append events that lack their place and their step, but have all the rest. See `add`."""
        with self._lock:
            for event in events:
                self._append(event)

    def _append(self, event: Event) -> int:
        seq, kind, pending = self.num_events, event.kind, self._pending
        if seq >= MAX_EVENTS and kind not in _NEVER_DROPPED:
            self.num_dropped += 1
            return -1
        event.seq, event.step = seq, self.step
        if self.logical:
            event.wall_ns = event.dur_ns = None
        self.num_events = seq + 1
        self.last[kind] = seq
        pending.append(event)
        if len(pending) >= self._most_waiting or (kind == "step.end" and self._is_written_now(event.data)):
            self._flush()
        return seq

    def _is_written_now(self, step_end: dict[str, Any]) -> bool:
        if self._is_beside_device:
            return not step_end["running_after"]  # else there is a next step, during which it will be written
        return not self.logical

    def write_beside_device(self) -> None:
        """From now on somebody calls `flush` in every step: when the CPU waits for a device anyhow."""
        self._is_beside_device, self._most_waiting = True, _MOST_WAITING_BESIDE_DEVICE

    def flush(self, is_over: Callable[[], bool] = lambda: False) -> None:
        """Write what waits.

        Args:
            is_over: Asked again and again: what is not written when it says yes goes on waiting.
        """
        while self._pending and not is_over():
            with self._lock:  # for a moment only: other threads may have something to add
                self._encode()
        with self._lock:
            self._hand_over()

    def wants_keyframe(self) -> bool:
        """Whether the step that begins now is to have one."""
        if self.step <= 0 or self.step % KEYFRAME_STEPS:
            return False
        self.flush()  # its weight is that of all that was told
        end, size = self._keyframe
        return self._num_bytes - end >= _KEYFRAME_WEIGHT * size

    def add_keyframe(self, states: dict[str, dict[str, Any]]) -> None:
        """Append the whole state, as the first events of a step, and note where it stands.

        Args:
            states: What each process knows, by its name.
        """
        with self._lock:
            self._flush()
            start = self._num_bytes
            offset = None if self._file is None or self._is_compressed else self._file.tell()
            self._index.append((self.step, offset, self.num_events))
        for process, state in states.items():
            self.add(process, "keyframe", data={"state": state})
        with self._lock:
            self._flush()
            self._keyframe = (self._num_bytes, self._num_bytes - start)

    def _flush(self) -> None:
        while self._pending:
            self._encode()
        self._hand_over()

    def _encode(self) -> None:
        """Write the first of what waits. Who is interrupted while data is made loses nothing, and begins again."""
        events = self._pending[:_AT_A_TIME]
        for event in events:
            if callable(event.data):
                _make_data(event)
        chunk = self._encoder.encode_lines(events)
        if self._file is not None:
            self._file.write(chunk)
        del self._pending[: len(events)]
        self._num_bytes += len(chunk)
        self._chunks.append(chunk)

    def _hand_over(self) -> None:
        """Give the system what was written: a process that is killed loses no more."""
        if self._file is not None and not self._is_compressed and not self.logical:
            self._file.flush()

    def close(self, *, is_cut: bool = False) -> None:
        """Finish the file. Idempotent.

        Args:
            is_cut: Leave the last line out, because a process of the run has died: a reader is to see that.
        """
        with self._lock:
            self._flush()
            file, self._file = self._file, None
        if file is None:
            return
        with file:
            if is_cut:
                return
            file.write(self._encoder.encode(Trailer(End(self.num_events, self.num_dropped, self._index))) + b"\n")


def _make_data(event: Event) -> None:
    try:
        event.data = event.data()  # type: ignore[operator]
    except Exception as error:  # the engine goes on, and the log has no gap
        data = {"symbol": event.src, "message": f"{type(error).__name__}: {error}"}
        event.kind, event.data = "probe.failed", data


def _open(path: Path) -> IO[bytes]:
    if path.suffix == ".gz":
        # No time stamp and no name inside, so that the same run gives the same file.
        return gzip.GzipFile("", "wb", fileobj=path.open("wb"), mtime=0)  # type: ignore[return-value]
    return path.open("wb", buffering=_FILE_BUFFER)
