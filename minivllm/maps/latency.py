"""Owns what a caller feels, by the log's clocks: time in the queue, to the first token, and from token to token.

arrived ── queued ──────── scheduled ──────────── first token ── token ── token
           └─ queue time ──┘                                  └ ITL ┘  └ ITL ┘
└──────────────── TTFT ────────────────────────────────────────┘  TPOT: mean of the ITLs
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from minivllm.maps.stages import median, percentile
from minivllm.trace.events import Event
from minivllm.trace.reader import Log

_NS_A_MS = 1_000_000
_KEYS = ("ttft_ms", "tpot_ms", "itl_ms", "queue_ms")


@dataclass(slots=True)
class _Times:
    """Clock readings of one request: when it arrived, was queued and first scheduled; when each of its tokens came."""

    arrived: int | None = None
    queued: int | None = None
    scheduled: int | None = None
    tokens: list[int] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)


def latency(log: Log, request: str | None = None) -> dict[str, Any]:
    """What the requests of a log waited for.

    Args:
        log: One with clocks; without, every number is None.
        request: Only this one; None for all.

    Returns:
        The median over requests of `ttft_ms`, `tpot_ms` and `queue_ms`, the median over all gaps of `itl_ms`; the same
        numbers at the 99th percentile under `p99`; and each request's own under `requests`.
    """
    rows = [_row(i, times) for i, times in _times(log).items() if request in (None, i)]
    numbers: dict[str, list[float]] = {key: [row[key] for row in rows if row[key] is not None] for key in _KEYS}
    numbers["itl_ms"] = [gap for row in rows for gap in row["itls_ms"]]
    return {
        **{key: median(numbers[key]) for key in _KEYS},
        "p99": {key: percentile(numbers[key], 99) for key in _KEYS},
        "requests": rows,
    }


def _times(log: Log) -> dict[str, _Times]:
    requests: dict[str, _Times] = {}
    seen_by_frontend = any(event.kind == "output.text" for event in log.events)
    for event in log.events:
        if event.kind == "request.arrived" and event.request is not None:
            requests[event.request] = _Times(arrived=event.wall_ns)
        elif event.kind == "request.queued" and event.request in requests:
            requests[event.request].queued = event.wall_ns
        elif event.kind == "schedule":
            for request_id, _ in event.data["scheduled"]:
                times = requests.get(request_id)
                if times is not None and times.scheduled is None:
                    times.scheduled = event.wall_ns
        elif event.wall_ns is not None:
            for request_id, count in _new_tokens(event, seen_by_frontend).items():
                if count and request_id in requests:
                    requests[request_id].outputs.append(event.wall_ns)
                    requests[request_id].tokens += [event.wall_ns] * count
    return requests


def _new_tokens(event: Event, seen_by_frontend: bool) -> dict[str, int]:
    """Tokens that an event brings, by request: as the caller gets them, or as the core makes them if nobody does."""
    if event.kind == "output.text" and event.request is not None:
        return {event.request: len(event.data["tokens"])}
    if event.kind == "update" and not seen_by_frontend:
        return {request_id: len(tokens) for request_id, tokens in event.data["emitted"].items()}
    return {}


def _row(request_id: str, times: _Times) -> dict[str, Any]:
    first, last = (times.tokens[0], times.tokens[-1]) if times.tokens else (None, None)
    begun = times.arrived if times.arrived is not None else times.queued
    num_after_first = len(times.tokens) - 1
    return {
        "request": request_id,
        "queue_ms": _ms(times.queued if times.queued is not None else times.arrived, times.scheduled),
        "ttft_ms": _ms(begun, first),
        "tpot_ms": _ms(first, last, num_after_first) if num_after_first > 0 else None,
        "itl_ms": median(itls := [_ms(a, b) or 0.0 for a, b in zip(times.outputs, times.outputs[1:], strict=False)]),
        "itls_ms": itls,
        "e2e_ms": _ms(begun, last),
        "num_output_tokens": len(times.tokens),
    }


def _ms(start: int | None, end: int | None, parts: int = 1) -> float | None:
    return None if start is None or end is None else (end - start) / parts / _NS_A_MS
