"""Owns a log as plain JSON lines: the header, every event, and an index of the keyframes at the end."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from minivllm.trace.events import End, Trailer
from minivllm.trace.reader import Log


def log_lines(log: Log) -> Iterator[bytes]:
    """The lines of a whole log, with their ends. One that was cut off gets no last line, so that it stays cut off.

    Raises:
        ValueError: The log is a window: a log begins at its beginning.
    """
    if log.window is not None:
        raise ValueError("a log is written from its beginning: give a whole one")
    encoder = msgspec.json.Encoder()
    header = encoder.encode(log.header) + b"\n"
    yield header
    offset = len(header)
    index: list[tuple[int, int | None, int]] = []
    for event in log.events:
        line = encoder.encode(event) + b"\n"
        if event.kind == "keyframe" and (not index or index[-1][0] != event.step):
            index.append((event.step, offset, event.seq))
        offset += len(line)
        yield line
    if not log.truncated:
        yield encoder.encode(Trailer(End(len(log.events), log.num_dropped, index))) + b"\n"
