"""Owns the KV cache's events in vLLM's form: what LMCache, llm-d and Dynamo subscribe to.

One batch for each iteration that published or lost blocks: `EventBatch(ts, events)` of `BlockStored`, `BlockRemoved`
and `AllBlocksCleared`, with the fields of vllm/distributed/kv_events.py of vLLM 0.27.1. Hashes are whole numbers of 64
bits, as vLLM sends them by default; here they are the first 64 bits of our hash, there the last of vLLM's, and neither
can be computed from the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

import msgspec

from minivllm.trace.events import Event
from minivllm.trace.reader import Log

# Where the blocks are. vLLM calls the cache of its own device so, whatever the device is.
_MEDIUM = "GPU"

Fields = dict[str, Any]


class Batch(msgspec.Struct, array_like=True, omit_defaults=True):
    """vLLM's EventBatch: on the wire an array, [ts, events]."""

    ts: float
    events: list[Fields]


def kv_event_batches(log: Log) -> list[Batch]:
    """The batches of a whole log, in order.

    Returns:
        `ts` is the time of day in seconds; for a log without clocks the number of the iteration.

    Raises:
        ValueError: The log is a window: the tokens of blocks may stand before it.
    """
    if log.window is not None:
        raise ValueError("KV events are told from the beginning of a run: give a whole log")
    tokens: dict[str, list[int]] = {}
    batches: list[Batch] = []
    last_step = None
    for event in log.events:
        _note_tokens(event, tokens)
        for told in _events(event, tokens):
            if event.step != last_step:
                last_step = event.step
                batches.append(Batch(_seconds(event, log), []))
            batches[-1].events.append(told)
    return batches


def as_json_lines(batches: list[Batch]) -> Iterator[str]:
    """One batch a line, as an object with the names of its fields."""
    for batch in batches:
        yield msgspec.json.encode({"ts": batch.ts, "events": batch.events}).decode()


def as_msgpack(batches: list[Batch]) -> bytes:
    """One array of all batches; each is what vLLM would publish in one message."""
    return msgspec.msgpack.encode(batches)


def _note_tokens(event: Event, tokens: dict[str, list[int]]) -> None:
    """Keep every request's tokens so far: an event of the pool names blocks, not what is in them."""
    if event.kind == "request.arrived" and event.request is not None:
        tokens[event.request] = list(event.data["prompt_token_ids"])
    elif event.kind == "update":
        for request, emitted in event.data["emitted"].items():
            tokens.setdefault(request, []).extend(emitted)


def _events(event: Event, tokens: dict[str, list[int]]) -> Iterator[Fields]:
    data = event.data
    if event.kind == "kv.stored":
        first, size = data["first_token"], data["block_size"]
        held = tokens.get(event.request or "", [])
        yield {
            "type": "BlockStored",
            "block_hashes": [_number(text) for text in data["hashes"]],
            "parent_block_hash": None if data["parent"] is None else _number(data["parent"]),
            "token_ids": held[first : first + size * len(data["hashes"])],
            "block_size": size,
            "lora_id": None,
            "medium": _MEDIUM,
            "lora_name": None,
            "group_idx": 0,
        }
    elif event.kind == "kv.evicted" and data["why"] != "reset":  # of a reset one event tells
        yield {"type": "BlockRemoved", "block_hashes": [_number(data["hash"])], "medium": _MEDIUM, "group_idx": 0}
    elif event.kind == "kv.reset":
        yield {"type": "AllBlocksCleared"}


def _number(hash16: str) -> int:
    return int(hash16, 16)


def _seconds(event: Event, log: Log) -> float:
    if log.header.started_at is None or event.wall_ns is None:
        return float(event.step)
    first = next(e.wall_ns for e in log.events if e.wall_ns is not None)
    return datetime.fromisoformat(log.header.started_at).timestamp() + (event.wall_ns - first) / 1e9
