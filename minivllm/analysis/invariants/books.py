"""Owns following the blocks through one iteration, event by event, in books of its own.

Replay believes what an event says; these books compare it with what must be, and note each difference under the
invariant that it breaks.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from minivllm.analysis.iteration import Iteration
from minivllm.trace.events import Event

BLOCK_EVENTS = ("kv.allocated", "kv.shared", "kv.stored", "kv.evicted", "kv.freed", "kv.reset")


@dataclass(slots=True)
class BlockBooks:
    """Who holds which block, as the events of one iteration have it.

    Attributes:
        free: The free queue, next to be reused first.
        ref_cnt: Users of each block.
        hashes: Of the blocks that can be hit.
        tables: Block tables by request.
        returned: Blocks that became free in it.
        at_schedule: Copies of the tables and the free count when the plan was complete.
        faults: What did not fit: (invariant, message).
    """

    free: list[int]
    ref_cnt: Counter[int]
    hashes: dict[int, str]
    tables: dict[str, list[int]]
    returned: list[int] = field(default_factory=list)
    at_schedule: tuple[dict[str, list[int]], int, Counter[int]] | None = None
    faults: list[tuple[str, str]] = field(default_factory=list)

    def note(self, rule: str, message: str) -> None:
        self.faults.append((rule, message))


def follow(it: Iteration) -> BlockBooks:
    """Go through an iteration's block events. Cached on the iteration's events, for several rules ask."""
    key = id(it)
    if _last and _last[0] == key and _last[1] is it:
        return _last[2]
    pool = it.before.pool
    books = BlockBooks(
        list(pool.free_queue),
        Counter(pool.ref_cnt),
        dict(pool.hashes),
        {i: list(entry.block_ids) for i, entry in it.before.requests.items() if entry.block_ids},
    )
    for event in it.events:
        if event.kind == "schedule":
            books.at_schedule = ({i: list(t) for i, t in books.tables.items()}, len(books.free), Counter(books.ref_cnt))
        if (handler := _HANDLERS.get(event.kind)) is not None:
            handler(books, event, event.data, it)
    _last[:] = [key, it, books]
    return books


_last: list[Any] = []


def _allocated(books: BlockBooks, event: Event, data: dict[str, Any], it: Iteration) -> None:
    who = event.request or "?"
    blocks = data["blocks"]
    front = books.free[: len(blocks)]
    if blocks != front:
        books.note("INV-05", f"{who} got {_ids(blocks)}, the front of the free queue was {_ids(front)}")
    for block in blocks:
        if block in books.hashes:
            books.note("INV-06", f"{_id(block)} was given to {who} and can still be hit under its old hash")
        if books.ref_cnt[block]:
            books.note("INV-01", f"{_id(block)} was given to {who} while {books.ref_cnt[block]} hold it")
        if block in books.free:
            books.free.remove(block)
        books.ref_cnt[block] = 1
    books.tables.setdefault(who, []).extend(blocks)


def _shared(books: BlockBooks, event: Event, data: dict[str, Any], it: Iteration) -> None:
    who = event.request or "?"
    for block, told in zip(data["blocks"], data["ref_cnt"], strict=True):
        if block not in books.hashes:
            books.note("INV-06", f"{who} hit {_id(block)}, which is not published")
        books.ref_cnt[block] += 1
        if told != books.ref_cnt[block]:
            books.note("INV-02", f"{_id(block)} says ref_cnt {told}, {books.ref_cnt[block]} requests hold it")
        if block in books.free:
            books.free.remove(block)
    if books.tables.get(who):
        books.note("INV-10", f"{who} hit a prefix while it held blocks")
    books.tables.setdefault(who, []).extend(data["blocks"])


def _stored(books: BlockBooks, event: Event, data: dict[str, Any], it: Iteration) -> None:
    who = event.request or "?"
    size = it.run.block_size
    table, first = books.tables.get(who, []), data["first_token"] // size
    blocks, hashes = data["blocks"], data["hashes"]
    if data["first_token"] % size or data["block_size"] != size:
        books.note("INV-07", f"{who} published from token {data['first_token']} on, inside a block")
    if table[first : first + len(blocks)] != blocks:
        books.note("INV-07", f"{who} published {_ids(blocks)} as its blocks {first} and on, where it has others")
    before = books.hashes.get(table[first - 1]) if first else None
    if data["parent"] != before:
        books.note("INV-07", f"{who} published {_ids(blocks)} behind hash {data['parent']}, its chain has {before}")
    entry = it.before.requests.get(who)
    known = len(it.run.prompts.get(who, ())) + len(it.run.outputs.get(who, ()))
    end = data["first_token"] + len(blocks) * size
    if who in it.run.prompts and end > known:
        books.note("INV-07", f"{who} published {end} tokens and never had more than {known}")
    if entry is not None and entry.is_finished:
        books.note("INV-12", f"{who} has ended and publishes blocks")
    for block, block_hash in zip(blocks, hashes, strict=True):
        if block in books.hashes:
            books.note("INV-06", f"{_id(block)} of {who} was published twice")
        books.hashes[block] = block_hash


def _evicted(books: BlockBooks, event: Event, data: dict[str, Any], it: Iteration) -> None:
    block = event.block if event.block is not None else -1
    known = books.hashes.pop(block, None)
    if known != data["hash"]:
        books.note("INV-06", f"{_id(block)} lost hash {data['hash']}, and had {known}")
    if data.get("why") == "reused" and block not in books.free[:1] and block not in books.free:
        books.note("INV-01", f"{_id(block)} was evicted to be reused while it was not free")


def _freed(books: BlockBooks, event: Event, data: dict[str, Any], it: Iteration) -> None:
    who = event.request or "?"
    blocks = data["blocks"]
    table = books.tables.pop(who, [])
    if blocks != table[::-1]:
        books.note("INV-01", f"{who} gave back {_ids(blocks)}, it held {_ids(table)}; the tail goes first")
    back: list[int] = []
    front: list[int] = []
    caching = it.run.config["cache_config"]["enable_prefix_caching"]
    for block in blocks:
        books.ref_cnt[block] -= 1
        if books.ref_cnt[block] < 0:
            books.note("INV-02", f"{_id(block)} was freed by {who} once more than it was taken")
            books.ref_cnt[block] = 0
        elif books.ref_cnt[block] == 0:
            (front if caching and block not in books.hashes else back).append(block)
    if data["returned"] != back or data["returned_front"] != front:
        told = f"{_ids(data['returned_front'])} to the front and {_ids(data['returned'])} to the end"
        books.note("INV-05", f"{who} returned {told}; {_ids(front)} and {_ids(back)} became free")
    books.free = front + books.free + back
    books.returned += front + back


def _reset(books: BlockBooks, event: Event, data: dict[str, Any], it: Iteration) -> None:
    if books.tables:
        books.note("INV-06", f"the prefix cache was reset while {', '.join(books.tables)} hold blocks")
    books.hashes.clear()


_HANDLERS = {
    "kv.allocated": _allocated,
    "kv.shared": _shared,
    "kv.stored": _stored,
    "kv.evicted": _evicted,
    "kv.freed": _freed,
    "kv.reset": _reset,
}


def _id(block: int) -> str:
    return f"#{block}"


def _ids(blocks: list[int]) -> str:
    shown = " ".join(map(_id, blocks[:6])) or "nothing"
    return shown + (f" and {len(blocks) - 6} more" if len(blocks) > 6 else "")
