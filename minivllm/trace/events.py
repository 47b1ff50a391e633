"""Owns the event log: its schema, and how it is written. Knows nothing of engines.

A log is JSON lines. The first line is the header, every other one an event; they are in the order in which things
happened. A log that was cut off anywhere can be read up to the cut. A path that ends in .gz is compressed.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import IO, Any

import msgspec

SCHEMA = "minivllm.log/1"

# Events beyond this are counted and dropped: a log must stay small enough to open.
MAX_EVENTS = 1_000_000


class Header(msgspec.Struct, kw_only=True):
    """What a log is of.

    Attributes:
        schema: Version of the format.
        config: The engine's settings, by name.
        model: Which model ran ("simulated" if none).
        scenario: Name of the scenario, if it was one.
        versions: Versions of minivllm, Python and torch (if it ran).
        device: Where it ran.
    """

    schema: str = SCHEMA
    config: dict[str, Any] = {}
    model: str = ""
    scenario: str | None = None
    versions: dict[str, str] = {}
    device: str = ""


class Event(msgspec.Struct, omit_defaults=True):
    """One thing that happened.

    Attributes:
        seq: Its place in the log, from 0.
        step: Iteration of the engine, from 0; -1 before the first.
        process: "frontend", "engine_core" or "worker".
        kind: What: "request.arrived", "request.refused", "requests.aborted", "drafts.given", "step.idle",
            "schedule", "prepare_inputs", "update", "output.text", "step.end", "run.truncated".
        request: Whom it concerns, if one.
        data: Its facts: numbers, ids and lists of them.
        src: Our symbol that did it, "module:qualname".
        ref: vLLM's symbol that does the same, "path::Class.method".
        wall_ns: Monotonic clock at its end.
        dur_ns: How long it took.
    """

    seq: int
    step: int
    process: str
    kind: str
    request: str | None = None
    data: dict[str, Any] = {}
    src: str | None = None
    ref: str | None = None
    wall_ns: int | None = None
    dur_ns: int | None = None


class EventLog:
    """Collects events; writes them to a file as they come, if there is one.

    Args:
        header: First line of the log.
        path: File to write, or None to keep events in memory only.
        logical: Leave out clocks and versions, so that the same run gives the same bytes anywhere.
    """

    def __init__(self, header: Header, path: Path | None = None, *, logical: bool = False) -> None:
        if logical:
            header.versions = {}
        self._logical = logical
        self.header = header
        self.events: list[Event] = []
        self.num_dropped = 0
        self.step = -1
        self._file: IO[bytes] | None = None
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = _open(path)
            self._write(header)

    def add(
        self,
        process: str,
        kind: str,
        *,
        request: str | None = None,
        data: dict[str, Any] | None = None,
        src: str | None = None,
        ref: str | None = None,
        wall_ns: int | None = None,
        dur_ns: int | None = None,
    ) -> None:
        """Append an event of the current step."""
        if len(self.events) >= MAX_EVENTS:
            self.num_dropped += 1
            return
        if self._logical:
            wall_ns = dur_ns = None
        event = Event(len(self.events), self.step, process, kind, request, data or {}, src, ref, wall_ns, dur_ns)
        self.events.append(event)
        self._write(event)

    def close(self) -> None:
        """Say how much was dropped, and finish the file. Idempotent."""
        if self._file is None:
            return
        file, self._file = self._file, None
        with file:
            if self.num_dropped:
                file.write(json.dumps({"dropped": self.num_dropped}).encode() + b"\n")

    def _write(self, item: Header | Event) -> None:
        if self._file is not None:
            self._file.write(msgspec.json.encode(item) + b"\n")


def _open(path: Path) -> IO[bytes]:
    if path.suffix == ".gz":
        # No time stamp and no name inside, so that the same run gives the same file.
        return gzip.GzipFile("", "wb", fileobj=path.open("wb"), mtime=0)  # type: ignore[return-value]
    return path.open("wb")
