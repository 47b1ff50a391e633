"""Owns spoiling logs in ways that a broken engine would: each mutation is one slip, with a name.

A mutation changes one place of one event (or takes an event away, doubles it, or moves it), so that a check which
catches it must have understood the relation that was broken.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from minivllm.trace.events import Event
from minivllm.trace.reader import Log

Spoil = Callable[[random.Random, Event, list[Event]], bool]


@dataclass(frozen=True)
class Mutation:
    """One slip: its name, the kinds of events that it can be made in, and how it is made."""

    name: str
    kinds: tuple[str, ...]
    spoil: Spoil


MUTATIONS: list[Mutation] = []


def mutation(name: str, *kinds: str) -> Callable[[Spoil], Spoil]:
    def register(spoil: Spoil) -> Spoil:
        MUTATIONS.append(Mutation(name, kinds, spoil))
        return spoil

    return register


def mutate(log: Log, rng: random.Random) -> tuple[Log, str] | None:
    """A copy of a log with one slip, and what it is; None if the slip that was drawn has no place in this log."""
    chosen = rng.choice(MUTATIONS)
    # Events after the last complete step are not looked at by anybody.
    end = max((i for i, event in enumerate(log.events) if event.kind == "step.end"), default=-1)
    places = [i for i, event in enumerate(log.events[: end + 1]) if event.kind in chosen.kinds]
    if not places:
        return None
    events = [copy.copy(event) for event in log.events]
    for place in rng.sample(places, min(len(places), 8)):
        event = events[place] = copy.deepcopy(log.events[place])
        if chosen.spoil(rng, event, events):
            where = f"{chosen.name} in iteration {event.step}, event {event.seq} ({event.kind} {event.request or ''})"
            return Log(log.header, _renumbered(events), log.num_dropped), where
        events[place] = copy.copy(log.events[place])
    return None


def _renumbered(events: list[Event]) -> list[Event]:
    """Without gaps, as if the log had been written like this. Causes point to the same events as before."""
    places: dict[int, int] = {}
    for seq, event in enumerate(events):
        places.setdefault(event.seq, seq)
    for seq, event in enumerate(events):
        event.seq = seq
        if event.cause is not None:
            event.cause = places.get(event.cause, event.cause)
    return events


def _nudge(rng: random.Random, holder: Any, key: Any) -> bool:
    holder[key] += rng.choice([-1, 1])
    return True


def _nudge_any(rng: random.Random, holder: Any) -> bool:
    keys = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
    return bool(keys) and _nudge(rng, holder, rng.choice(keys))


# ---- events taken away, doubled, moved -------------------------------------------------------------------------------

_ANY = (
    *("request.queued", "schedule", "update", "step.end"),
    *("kv.allocated", "kv.shared", "kv.stored", "kv.freed"),
    *("rows", "prepare_inputs", "worker.state"),
)


@mutation("an event is lost", *_ANY)
def _lost(rng: random.Random, event: Event, events: list[Event]) -> bool:
    if event.kind in ("rows", "step.end", "request.queued"):  # step.end: the step counts as cut off
        return event.kind == "rows" and events.remove(event) is None
    events.remove(event)
    return True


@mutation("an event comes twice", *_ANY)
def _twice(rng: random.Random, event: Event, events: list[Event]) -> bool:
    events.insert(events.index(event) + 1, copy.deepcopy(event))
    return True


@mutation("a batch is prepared before its plan", "prepare_inputs")
def _too_early(rng: random.Random, event: Event, events: list[Event]) -> bool:
    place = events.index(event)
    start = next(i for i, other in enumerate(events) if other.step == event.step and other.kind == "schedule")
    events.insert(start, events.pop(place))
    return start != place


@mutation("a block table is not freed (leak)", "kv.freed")
def _leak(rng: random.Random, event: Event, events: list[Event]) -> bool:
    events.remove(event)
    return True


@mutation("one block of a table is not freed", "kv.freed")
def _leak_one(rng: random.Random, event: Event, events: list[Event]) -> bool:
    if not event.data["blocks"]:
        return False
    block = rng.choice(event.data["blocks"])
    for name in ("blocks", "returned", "returned_front"):
        event.data[name] = [b for b in event.data[name] if b != block]
    return True


@mutation("a table is freed head first", "kv.freed")
def _head_first(rng: random.Random, event: Event, events: list[Event]) -> bool:
    for name in ("blocks", "returned", "returned_front"):
        event.data[name] = event.data[name][::-1]
    return len(event.data["blocks"]) > 1


@mutation("a freed block goes to the other end of the queue", "kv.freed")
def _other_end(rng: random.Random, event: Event, events: list[Event]) -> bool:
    data = event.data
    data["returned"], data["returned_front"] = data["returned_front"], data["returned"]
    return data["returned"] != data["returned_front"]


@mutation("a block of somebody else is given", "kv.allocated")
def _others_block(rng: random.Random, event: Event, events: list[Event]) -> bool:
    event.data["blocks"][rng.randrange(len(event.data["blocks"]))] += rng.choice([-1, 1, 2])
    return True


@mutation("a block is given without being taken from the queue's front", "kv.allocated")
def _not_the_front(rng: random.Random, event: Event, events: list[Event]) -> bool:
    event.data["blocks"] = event.data["blocks"][::-1]
    return len(event.data["blocks"]) > 1


@mutation("a shared block counts wrong", "kv.shared")
def _wrong_ref(rng: random.Random, event: Event, events: list[Event]) -> bool:
    return _nudge_any(rng, event.data["ref_cnt"])


@mutation("a hit takes another block", "kv.shared")
def _wrong_hit(rng: random.Random, event: Event, events: list[Event]) -> bool:
    return _nudge_any(rng, event.data["blocks"])


@mutation("a block is published under another hash", "kv.stored")
def _wrong_hash(rng: random.Random, event: Event, events: list[Event]) -> bool:
    others = [h for e in events if e.kind == "kv.stored" and e is not event for h in e.data["hashes"]]
    place = rng.randrange(len(event.data["hashes"]))
    fresh = f"{rng.getrandbits(64):016x}"
    new = rng.choice([*others, fresh]) if others else fresh
    if new == event.data["hashes"][place]:
        return False
    event.data["hashes"][place] = new
    return True


@mutation("a chain continues another parent", "kv.stored")
def _wrong_parent(rng: random.Random, event: Event, events: list[Event]) -> bool:
    event.data["parent"] = f"{rng.getrandbits(64):016x}"
    return True


@mutation("a block is published that is not full", "kv.stored")
def _not_full(rng: random.Random, event: Event, events: list[Event]) -> bool:
    event.data["first_token"] += rng.choice([1, event.data["block_size"]])
    return True


@mutation("a hash is not taken away", "kv.evicted")
def _stale_hash(rng: random.Random, event: Event, events: list[Event]) -> bool:
    events.remove(event)
    return True


@mutation("a look-up counts a wrong hit", "kv.lookup")
def _wrong_lookup(rng: random.Random, event: Event, events: list[Event]) -> bool:
    return _nudge(rng, event.data, rng.choice(["hit", "asked"]))


# ---- the plan --------------------------------------------------------------------------------------------------------


@mutation("a counter of the plan is off by one", "schedule")
def _plan_counter(rng: random.Random, event: Event, events: list[Event]) -> bool:
    names = ["total_scheduled", "free_blocks_scheduled", "budget", "max_num_seqs", "num_common_prefix_blocks"]
    return _nudge(rng, event.data, rng.choice(names))


@mutation("a request's counter in the plan is off by one", "schedule")
def _request_counter(rng: random.Random, event: Event, events: list[Event]) -> bool:
    return _nudge_any(rng, event.data[rng.choice(["num_computed_before", "num_computed_after", "num_tokens"])])


@mutation("a request gets a token more or less", "schedule")
def _scheduled_count(rng: random.Random, event: Event, events: list[Event]) -> bool:
    scheduled = event.data["scheduled"]
    return bool(scheduled) and _nudge(rng, rng.choice(scheduled), 1)


@mutation("a request is missing from the plan", "schedule")
def _unplanned(rng: random.Random, event: Event, events: list[Event]) -> bool:
    scheduled = event.data["scheduled"]
    return bool(scheduled) and scheduled.pop(rng.randrange(len(scheduled))) is not None


@mutation("two requests change places in the plan", "schedule")
def _swapped_counts(rng: random.Random, event: Event, events: list[Event]) -> bool:
    scheduled = event.data["scheduled"]
    if len(scheduled) < 2:
        return False
    a, b = rng.sample(scheduled, 2)
    a[1], b[1] = b[1], a[1]
    return a[1] != b[1]


@mutation("a queue loses a request", "schedule", "step.end")
def _lost_in_queue(rng: random.Random, event: Event, events: list[Event]) -> bool:
    names = [n for n in event.data if n in _QUEUES and event.data[n]]
    return bool(names) and (q := event.data[rng.choice(names)]).pop(rng.randrange(len(q))) is not None


@mutation("a request is in two queues", "step.end")
def _in_two_queues(rng: random.Random, event: Event, events: list[Event]) -> bool:
    listed = [r for n in _QUEUES for r in event.data.get(n, ())]
    if not listed:
        return False
    event.data[rng.choice(["waiting", "running_after"])].append(rng.choice(listed))
    return True


_QUEUES = ("waiting", "running_after", "waiting_scheduled", "running_scheduled")


@mutation("a request runs as another kind", "schedule")
def _other_kind(rng: random.Random, event: Event, events: list[Event]) -> bool:
    kinds = [k for k in ("new", "resumed", "running") if event.data[k]]
    if not kinds:
        return False
    source = rng.choice(kinds)
    target = rng.choice([k for k in ("new", "resumed", "running") if k != source])
    event.data[target].append(event.data[source].pop())
    return True


@mutation("the wrong request is preempted", "schedule")
def _wrong_victim(rng: random.Random, event: Event, events: list[Event]) -> bool:
    others = [r for r in event.data["running_scheduled"] if r not in event.data["preempted"]]
    if not event.data["preemptions"] or not others:
        return False
    event.data["preemptions"][0][0] = event.data["preempted"][0] = rng.choice(others)
    return True


@mutation("a preemption counts what was lost wrong", "schedule")
def _wrong_loss(rng: random.Random, event: Event, events: list[Event]) -> bool:
    return bool(event.data["preemptions"]) and _nudge(rng, event.data["preemptions"][0], 1)


@mutation("a reason is missing", "schedule")
def _no_reason(rng: random.Random, event: Event, events: list[Event]) -> bool:
    if event.data["not_scheduled"] and rng.random() < 0.5:
        gone = event.data["not_scheduled"].pop()
        return gone["request"] in event.data["waiting_scheduled"] and event.data["stop"]["request"] is None
    waits = [r for r in event.data["waiting_scheduled"] if r not in {e["request"] for e in event.data["not_scheduled"]}]
    event.data["stop"] = None
    return bool(waits)


@mutation("a reason's arithmetic is wrong", "schedule")
def _wrong_arithmetic(rng: random.Random, event: Event, events: list[Event]) -> bool:
    reasons = [e for e in (*event.data["cut"], event.data["stop"]) if e]
    chosen = [e for e in reasons if e["reason"] in ("token_budget", "max_num_seqs", "no_free_blocks")]
    if not chosen:
        return False
    entry = rng.choice(chosen)
    if entry["reason"] == "no_free_blocks":
        entry["numbers"]["free"] += entry["numbers"]["asked"] + sum(entry["numbers"].values())
    elif entry["reason"] == "max_num_seqs":
        entry["numbers"]["running"] += rng.choice([-1, 1])
    else:
        name = rng.choice([n for n in ("left", "granted", "asked") if n in entry["numbers"]])
        entry["numbers"][name] = 0 if name == "asked" else entry["numbers"][name] + 1
    return True


@mutation("the worker is not told who finished", "schedule")
def _not_told(rng: random.Random, event: Event, events: list[Event]) -> bool:
    return bool(event.data["finished_since_last"]) and event.data["finished_since_last"].pop() is not None


@mutation("the plan gives a block too many or too few", "schedule")
def _plan_blocks(rng: random.Random, event: Event, events: list[Event]) -> bool:
    gained = event.data["block_ids"]
    if not gained:
        return False
    blocks = gained[rng.choice(list(gained))]
    return (blocks.pop() if rng.random() < 0.5 else blocks.append(blocks[0])) or True


@mutation("a look-up is counted wrong", "schedule")
def _wrong_count(rng: random.Random, event: Event, events: list[Event]) -> bool:
    entries = event.data["prefix_cache"]
    return bool(entries) and _nudge(rng, rng.choice(entries), rng.choice([1, 2]))


@mutation("a look-up is not counted, or twice", "schedule")
def _not_counted(rng: random.Random, event: Event, events: list[Event]) -> bool:
    entries = event.data["prefix_cache"]
    if not entries:
        return False
    if rng.random() < 0.5:
        entries.append(copy.copy(rng.choice(entries)))
    else:
        entries.pop(rng.randrange(len(entries)))
    return True


@mutation("a sum of the prefix cache is off", "schedule")
def _wrong_sum(rng: random.Random, event: Event, events: list[Event]) -> bool:
    return bool(event.data.get("cache_stats")) and _nudge_any(rng, event.data["cache_stats"])


# ---- the worker ------------------------------------------------------------------------------------------------------


@mutation("an array of the batch is off by one", "prepare_inputs")
def _batch_array(rng: random.Random, event: Event, events: list[Event]) -> bool:
    names = ["query_start_loc", "seq_lens", "positions", "slot_mapping", "logits_indices", "places"]
    return _nudge_any(rng, event.data[rng.choice(names)])


@mutation("two rows are swapped", "prepare_inputs")
def _swapped_rows(rng: random.Random, event: Event, events: list[Event]) -> bool:
    name = rng.choice(["order", "places"])
    values = event.data[name]
    if len(values) < 2:
        return False
    i, j = rng.sample(range(len(values)), 2)
    values[i], values[j] = values[j], values[i]
    return True


@mutation("a slot is of the block before", "prepare_inputs")
def _stale_slot(rng: random.Random, event: Event, events: list[Event]) -> bool:
    slots = event.data["slot_mapping"]
    size = next(e.data["block_size"] for e in events if e.kind == "schedule")
    slots[rng.randrange(len(slots))] -= size
    return True


@mutation("two slots are equal", "prepare_inputs")
def _equal_slots(rng: random.Random, event: Event, events: list[Event]) -> bool:
    slots = event.data["slot_mapping"]
    if len(slots) < 2:
        return False
    i, j = rng.sample(range(len(slots)), 2)
    slots[i] = slots[j]
    return True


@mutation("another token is fed", "prepare_inputs")
def _other_token(rng: random.Random, event: Event, events: list[Event]) -> bool:
    tokens = event.data["input_ids"]
    place = rng.randrange(len(tokens))
    tokens[place] = tokens[place - 1] if len(tokens) > 1 and tokens[place] != tokens[place - 1] else tokens[place] + 1
    return True


@mutation("a block table row is another's", "prepare_inputs")
def _other_table(rng: random.Random, event: Event, events: list[Event]) -> bool:
    table = event.data["block_table"]
    if not table:
        return False
    return _nudge_any(rng, table[rng.choice(list(table))])


@mutation("the mirror is off", "worker.state")
def _mirror(rng: random.Random, event: Event, events: list[Event]) -> bool:
    rows = event.data["rows"]
    return bool(rows) and _nudge_any(rng, rows[rng.choice(list(rows))])


@mutation("a row is taken twice", "rows")
def _row_twice(rng: random.Random, event: Event, events: list[Event]) -> bool:
    taken = event.data["taken"]
    return bool(taken) and _nudge_any(rng, taken)


@mutation("a row moves without its request", "rows")
def _lost_move(rng: random.Random, event: Event, events: list[Event]) -> bool:
    return bool(event.data["moved"]) and event.data["moved"].pop() is not None


@mutation("two rows of logits change places", "logits")
def _swapped_logits(rng: random.Random, event: Event, events: list[Event]) -> bool:
    others = [e for e in events if e.kind == "logits" and e.step == event.step and e.request != event.request]
    if not others or others[0].data["top"][0][0] == event.data["top"][0][0]:
        return False
    place = events.index(others[0])
    events[place] = copy.copy(others[0])
    events[place].data, event.data = event.data, others[0].data
    return True


@mutation("a request gets a token that is not the likeliest", "logits")
def _unlikely(rng: random.Random, event: Event, events: list[Event]) -> bool:
    top = event.data["top"]
    if top[0][1] - top[1][1] < 0.001:
        return False
    top[0], top[1] = [top[1][0], top[0][1]], [top[0][0], top[1][1]]
    return True


# ---- outputs ---------------------------------------------------------------------------------------------------------


@mutation("a token is lost", "update")
def _lost_token(rng: random.Random, event: Event, events: list[Event]) -> bool:
    told = [r for r, tokens in event.data["emitted"].items() if tokens]
    return bool(told) and event.data["emitted"][rng.choice(told)].pop() is not None


@mutation("a token is told twice", "update")
def _double_token(rng: random.Random, event: Event, events: list[Event]) -> bool:
    told = [tokens for tokens in event.data["emitted"].values() if tokens]
    return bool(told) and (tokens := rng.choice(told)).append(tokens[-1]) is None


@mutation("two requests get each other's tokens", "update")
def _crossed_tokens(rng: random.Random, event: Event, events: list[Event]) -> bool:
    told = [r for r, tokens in event.data["emitted"].items() if tokens]
    if len(told) < 2:
        return False
    a, b = rng.sample(told, 2)
    for name in ("sampled", "emitted"):
        holder = event.data[name]
        holder[a], holder[b] = holder[b], holder[a]
    return event.data["sampled"][a] != event.data["sampled"][b]


@mutation("an unfinished prompt samples", "update")
def _too_soon(rng: random.Random, event: Event, events: list[Event]) -> bool:
    silent = [r for r, tokens in event.data["sampled"].items() if not tokens]
    if not silent:
        return False
    event.data["sampled"][rng.choice(silent)] = [1]
    return True


@mutation("an end is lost", "update")
def _lost_end(rng: random.Random, event: Event, events: list[Event]) -> bool:
    return bool(event.data["finished"]) and event.data["finished"].popitem() is not None


@mutation("an end has another reason", "update")
def _other_end_reason(rng: random.Random, event: Event, events: list[Event]) -> bool:
    if not event.data["finished"]:
        return False
    reason = event.data["finished"][rng.choice(list(event.data["finished"]))]
    reason[0] = {"stop": "length", "length": "stop"}.get(reason[0], "stop")
    return True


@mutation("a request ends too early", "update")
def _early_end(rng: random.Random, event: Event, events: list[Event]) -> bool:
    going = [r for r in event.data["emitted"] if r not in event.data["finished"]]
    if not going:
        return False
    event.data["finished"][rng.choice(going)] = ["length", None]
    return True


@mutation("an output is of another plan", "update")
def _other_plan(rng: random.Random, event: Event, events: list[Event]) -> bool:
    return _nudge(rng, event.data, "update_of")


@mutation("a counter at the end of a step is off by one", "step.end")
def _end_counter(rng: random.Random, event: Event, events: list[Event]) -> bool:
    return _nudge(rng, event.data, rng.choice(["free_blocks", "owned_blocks", "cached_free_blocks", "cached_hashes"]))


@mutation("a list of blocks at the end of a step is wrong", "step.end")
def _end_blocks(rng: random.Random, event: Event, events: list[Event]) -> bool:
    names = [name for name in ("freed", "evicted", "free_head") if event.data[name]]
    return bool(names) and event.data[rng.choice(names)].pop(0) is not None


# ---- text ------------------------------------------------------------------------------------------------------------


@mutation("a character is lost", "output.text")
def _lost_character(rng: random.Random, event: Event, events: list[Event]) -> bool:
    event.data["delta"], before = event.data["delta"][:-1], event.data["delta"]
    return bool(before)


@mutation("text that is held back is lost", "output.text")
def _lost_held(rng: random.Random, event: Event, events: list[Event]) -> bool:
    goes_on = any(e.request == event.request and e.kind == "output.text" and e.seq > event.seq for e in events)
    if "\ufffd" in event.data["held"] or not event.data["held"] or not goes_on:
        return False
    event.data["held"] = "?" + event.data["held"][1:]
    return True


@mutation("a text is of another token", "output.text")
def _text_of_another(rng: random.Random, event: Event, events: list[Event]) -> bool:
    return bool(event.data["tokens"]) and _nudge(rng, event.data["tokens"][0], 0)


@mutation("text comes after the end", "output.text")
def _text_after(rng: random.Random, event: Event, events: list[Event]) -> bool:
    if event.data["finish_reason"] is None:
        return False
    late = copy.deepcopy(event)
    late.data |= {"delta": "", "tokens": []}
    events.insert(events.index(event) + 1, late)
    return True


@mutation("a caller is not told of the end", "output.text")
def _caller_not_told(rng: random.Random, event: Event, events: list[Event]) -> bool:
    was = event.data["finish_reason"]
    event.data["finish_reason"] = None
    return was is not None


@mutation("an aborted request gets a token", "requests.aborted")
def _after_abort(rng: random.Random, event: Event, events: list[Event]) -> bool:
    updates = [e for e in events if e.kind == "update" and e.step >= event.step and e.seq > event.seq]
    if not updates or not event.data["ended"]:
        return False
    place = events.index(updates[0])
    events[place] = copy.deepcopy(updates[0])
    events[place].data["emitted"][event.data["ended"][0]] = [7]
    return True
