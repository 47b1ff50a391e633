"""Owns putting the device's times, which a log tells when they are known, to the spans that they belong to."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from minivllm.trace.events import Event


def join_device_times(events: list[Event], start: int = 0) -> None:
    """Give each span its `device_ns`.

    Args:
        events: A log's, in order, or a part of them.
        start: Look for times from here on; their spans may stand before.
    """
    times = [event for event in events[start:] if event.kind == "device.time"]
    if not times:
        return
    spans = {event.seq: event for event in events if event.kind == "span"}
    for event in times:
        span = spans.get(event.cause) if event.cause is not None else None
        if span is not None:
            span.data["device_ns"] = event.data["device_ns"]
