"""The invariants of memory: every block in one place, counted right, and found under its own content only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from minivllm.analysis.invariants.books import BLOCK_EVENTS, follow
from minivllm.analysis.invariants.registry import invariant
from minivllm.analysis.iteration import Iteration
from minivllm.trace.events import Event

_NULL = 0
_SHOWN_FREE = 12  # how much of the free queue a step's last event tells


def _faults(it: Iteration, rule: str) -> Iterator[str]:
    return (message for broken, message in follow(it).faults if broken == rule)


@invariant(
    "INV-01",
    "Every block is in exactly one place: free (cached or not), held by requests, or the null block.",
    reason="A lost block is memory that never comes back; a block in two places is written by two requests.",
    map="state",
    bug="vLLM #46289: blocks leak or are freed twice when a request is aborted while its KV is being loaded",
    needs=(*BLOCK_EVENTS, "step.end"),
)
def one_place(it: Iteration) -> Iterator[str]:
    yield from _faults(it, "INV-01")
    books = follow(it)
    held = {block for block, count in books.ref_cnt.items() if count > 0}
    free = Counter(books.free)
    yield from (f"#{block} is in the free queue {count} times" for block, count in free.items() if count > 1)
    yield from (f"#{block} is held and lies in the free queue" for block in sorted(held & free.keys()))
    if _NULL in held or _NULL in free:
        yield "the null block #0 is in use"
    total = it.before.pool.num_blocks
    if total and len(held | free.keys()) + 1 != total:
        yield f"{len(held | free.keys())} blocks and the null block were found, {total} were made"
    end = it.data("step.end") or {}
    told = {
        "free_blocks": (end.get("free_blocks"), len(books.free)),
        "owned_blocks": (end.get("owned_blocks"), len(held)),
        "cached_free_blocks": (end.get("cached_free_blocks"), sum(b not in held for b in books.hashes)),
    }
    yield from (f"{name} is told as {a}, the events make {b}" for name, (a, b) in told.items() if a not in (None, b))
    became_free = sorted(set(books.returned) - held)
    if "freed" in end and end["freed"] != became_free:
        yield f"the step says that {end['freed']} became free, the events make {became_free}"


@invariant(
    "INV-02",
    "A block's reference count is the number of block tables that hold it.",
    reason="One too few frees a page that somebody still reads; one too many never frees it.",
    map="state",
    bug="vLLM #32255: blocks of an aborted request were freed while a transfer still wrote into them",
    needs=BLOCK_EVENTS,
)
def ref_counts(it: Iteration) -> Iterator[str]:
    yield from _faults(it, "INV-02")
    books = follow(it)
    users = Counter(block for table in books.tables.values() for block in table)
    for block in sorted(users.keys() | {b for b, n in books.ref_cnt.items() if n}):
        if users[block] != books.ref_cnt[block]:
            yield f"#{block} has ref_cnt {books.ref_cnt[block]} and is in {users[block]} block tables"
    pool = it.after.pool
    told = {block: count for block, count in pool.ref_cnt.items() if count}
    if told != {block: count for block, count in books.ref_cnt.items() if count}:
        yield "the reference counts of replay and of the events differ"


@invariant(
    "INV-05",
    "Blocks are taken from the front of the free queue; cached ones go back to its end, others to its front.",
    reason="The order decides which cached prefixes survive: least recently used goes first, a useless tail at once.",
    map="state",
    bug="mini-sglang #142: a page table kept pages that were free already: used after free",
    needs=(*BLOCK_EVENTS, "step.end"),
)
def free_order(it: Iteration) -> Iterator[str]:
    yield from _faults(it, "INV-05")
    books = follow(it)
    end = it.data("step.end") or {}
    head = books.free[:_SHOWN_FREE]
    if "free_head" in end and end["free_head"] != head:
        yield f"the free queue begins with {end['free_head'][:6]}, the events make {head[:6]}"
    plan = it.data("schedule")
    if plan and books.at_schedule and plan["free_blocks_scheduled"] != books.at_schedule[1]:
        yield f"{plan['free_blocks_scheduled']} blocks were free with the plan, the events make {books.at_schedule[1]}"


@invariant(
    "INV-06",
    "A block can be hit exactly while it is published: from its publication until its hash is taken away.",
    reason="A stale hash hands one request another one's keys and values.",
    map="state",
    bug="vLLM #44701: a LoRA name that equals a cache salt gave the same hash, and so the wrong KV",
    needs=(*BLOCK_EVENTS, "step.end"),
)
def published(it: Iteration) -> Iterator[str]:
    yield from _faults(it, "INV-06")
    books = follow(it)
    end = it.data("step.end") or {}
    num_hashes = len(set(books.hashes.values()))
    if "cached_hashes" in end and end["cached_hashes"] != num_hashes:
        yield f"{end['cached_hashes']} hashes can be found, the events make {num_hashes}"
    lost = sorted({event.block for event in it.all("kv.evicted") if event.block is not None})
    if "evicted" in end and end["evicted"] != lost:
        yield f"the step says that {end['evicted']} lost their hash, the events make {lost}"


@invariant(
    "INV-07",
    "Only full blocks are published, in the order of the request's chain, and equal hashes mean equal tokens.",
    reason="A hash stands for all tokens up to it, and for adapter and salt. If it does not, a hit is a lie.",
    map="state",
    bug="vLLM #36708: keys of images were ambiguous by position, and two prompts shared wrong blocks",
    needs=("kv.stored", "kv.shared"),
)
def chain(it: Iteration) -> Iterator[str]:
    yield from _faults(it, "INV-07")
    hashes: dict[int, str] = dict(it.before.pool.hashes)
    for event in it.all("kv.stored", "kv.shared", "kv.evicted"):
        if event.kind == "kv.stored":
            yield from _named_after_content(it, event, event.data["hashes"])
            hashes.update(zip(event.data["blocks"], event.data["hashes"], strict=True))
        elif event.kind == "kv.shared":
            yield from _named_after_content(it, event, [hashes.get(block) for block in event.data["blocks"]])
        else:
            hashes.pop(-1 if event.block is None else event.block, None)


def _named_after_content(it: Iteration, event: Event, hashes: list[Any]) -> Iterator[str]:
    """Blocks that a request publishes, or shares with whoever published them, stand for its own tokens and keys."""
    size, request = it.run.block_size, event.request or ""
    tokens = it.run.tokens_of(request)
    if tokens is None:
        return
    is_hit = event.kind == "kv.shared"
    parent = None if is_hit else event.data["parent"]
    first = 0 if is_hit else event.data["first_token"]
    for start, block_hash in enumerate(hashes):
        place = first + start * size
        content = (parent, tuple(tokens[place : place + size]), it.run.keys.get(request))
        known = it.run.hash_contents.get(block_hash, content if is_hit else None)
        if known is None:
            it.run.hash_contents[block_hash] = content
        elif known != content:
            did, what = "hit" if is_hit else "published", "tokens" if known[:2] != content[:2] else "adapter or salt"
            yield f"{request} {did} tokens {place} to {place + size - 1} under a hash of other {what}"
        parent = block_hash


@invariant(
    "INV-10",
    "A request that waits holds no blocks.",
    reason="Preemption gives everything back at once. What is kept by a waiting request is missing for the running.",
    map="state",
    bug="vLLM #18957: a hit length was kept across failed attempts to schedule",
    needs=("step.end",),
)
def waiting_without_blocks(it: Iteration) -> Iterator[str]:
    yield from _faults(it, "INV-10")
    books = follow(it)
    for request in (*it.after.waiting, *it.after.skipped_waiting):
        if books.tables.get(request):
            yield f"{request} waits and holds {len(books.tables[request])} blocks"


@invariant(
    "INV-11",
    "A scheduled request has a slot for every token that it will have computed, and the plan tells the blocks it got.",
    reason="Allocation comes before execution: a token without a slot would be written over somebody else's.",
    map="plan",
    bug="nano-vllm #211: after a preemption and a prefix hit, the token count and the blocks disagreed: index error",
    needs=("schedule",),
)
def slots_for_all(it: Iteration) -> Iterator[str]:
    plan, books = it.data("schedule"), follow(it)
    if plan is None or books.at_schedule is None:
        return
    tables, size = books.at_schedule[0], it.run.block_size
    admitted = {*plan["new"], *plan["resumed"]}
    for request, _ in plan["scheduled"]:
        table = tables.get(request, [])
        computed = plan["num_computed_after"][request]
        if computed > len(table) * size:
            yield f"{request} will have computed {computed} tokens in {len(table)} blocks of {size}"
        if len(set(table)) != len(table):
            yield f"{request} holds a block twice"
        gained = table if request in admitted else table[len(it.before.requests[request].block_ids) :]
        if plan["block_ids"].get(request, []) != gained:
            yield f"the plan gives {request} {len(plan['block_ids'].get(request, []))} blocks, it got {len(gained)}"
    extra = plan["block_ids"].keys() - {request for request, _ in plan["scheduled"]}
    yield from (f"the plan gives blocks to {request}, which is not in it" for request in sorted(extra))
    common = _common_prefix(plan, tables, books.at_schedule[2], it)
    if plan["num_common_prefix_blocks"] != common:
        yield f"the plan names {plan['num_common_prefix_blocks']} common prefix blocks, all share {common}"


def _common_prefix(plan: dict[str, Any], tables: dict[str, list[int]], ref_cnt: Counter[int], it: Iteration) -> int:
    """Leading blocks of the first running request that everyone who holds blocks shares."""
    if not plan["running_scheduled"] or not it.run.config["cache_config"]["enable_prefix_caching"]:
        return 0
    table = tables.get(plan["running_scheduled"][0], [])
    owners = sum(bool(t) for t in tables.values())
    count = 0
    while count < len(table) and ref_cnt[table[count]] == owners:
        count += 1
    return count
