"""Owns what of a log must be the same in every mode: the plans and what came of them, without clocks and processes."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from minivllm.trace.events import Event

_KINDS = frozenset(
    {
        "request.queued",
        "request.refused",
        "drafts.given",
        "run.truncated",
        "step.idle",
        "schedule",
        "update",
        "step.end",
        "kv.lookup",
        "kv.shared",
        "kv.allocated",
        "kv.evicted",
        "kv.stored",
        "kv.freed",
        "kv.reset",
        "rows",
        "prepare_inputs",
        "worker.state",
        "keyframe",
    }
)
_ENCODER = msgspec.json.Encoder()


def projection(events: Iterable[Event], processes: Iterable[str] = ("engine_core", "worker")) -> bytes:
    """The logical part of a log as JSON lines: a core in this process and one in its own give the same bytes.

    Args:
        events: A log's events.
        processes: Whose events count.
    """
    kept: dict[int, int] = {}
    wanted = frozenset(processes)
    lines = []
    for event in events:
        if event.process not in wanted or event.kind not in _KINDS:
            continue
        kept[event.seq] = len(kept)
        lines.append(
            msgspec.structs.replace(
                event,
                seq=kept[event.seq],
                cause=None if event.cause is None else kept.get(event.cause),
                wall_ns=None,
                dur_ns=None,
                thread=None,
            )
        )
    return _ENCODER.encode_lines(lines)
