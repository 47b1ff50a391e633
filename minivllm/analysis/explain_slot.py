"""Owns where the key and value of one token lie: slot = block * block size + offset, with this run's block table."""

from __future__ import annotations

from dataclasses import dataclass

from minivllm.analysis.answer import CannotKnowError, counted
from minivllm.analysis.explain_answer import Ask, Explanation, plans
from minivllm.maps.wording import Words
from minivllm.trace.events import Event
from minivllm.trace.reader import Log

_OURS = "minivllm.worker.block_table:BlockTable.compute_slot_mapping"
_VLLM = "vllm/v1/worker/block_table.py::BlockTable.compute_slot_mapping"
_FORMULA = "slot = block_table[pos // block_size] * block_size + pos % block_size"


@dataclass(frozen=True, slots=True)
class _Part:
    """Positions `first` to `end` that a request computed in one step; `admitted`: its first step since it waited."""

    step: int
    first: int
    end: int
    admitted: bool


def slot(log: Log, ask: Ask) -> Explanation:
    """Where one position of a request is kept, since when, and why nobody else is there.

    Raises:
        CannotKnowError: The log does not hold the plan or the block table.
        ValueError: The request has no such position.
    """
    words = ask.words()
    request = ask.request or _somebody(log)
    parts = _parts(log, request)
    until = ask.iteration if ask.iteration is not None else max(part.step for part in parts)
    pos = ask.pos if ask.pos is not None else _last_position(parts, until)
    written = [part for part in parts if part.first <= pos < part.end]
    cached = [part for part in parts if part.admitted and pos < part.first and part.step <= until]
    before = [part for part in written if part.step <= until]
    if not before and not cached:
        return _not_yet(log, request, pos, until, parts, words)
    part = max([*before, *cached], key=lambda part: part.step)
    size = next(e.data["block_size"] for e in plans(log) if e.step == part.step)
    table = _block_table(log, request, part.step)
    index, offset = divmod(pos, size)
    if index >= len(table):
        raise CannotKnowError(
            f"the log cannot say: the block table of {request} in iteration {part.step} (prepare_inputs, kv.allocated) "
            f"has {counted(len(table), 'block')}, and position {pos} is in block {index} of it"
        )
    block = table[index]
    result = block * size + offset
    how = words("was_written", step=part.step)
    if part not in before:
        how = words("was_cached", request=request, step=part.step)
    where = {"request": request, "block": block}
    explanation = Explanation(
        "slot",
        words("slot", pos=pos, slot=result, offset=offset, **where, how=how),
        _FORMULA,
        f"slot = block_table[{pos} // {size}] * {size} + {pos} % {size} = {block} * {size} + {offset} = {result}",
        {"pos": pos, "block_size": size, "block_index": index, "block": block, "offset": offset, "written": part.step},
        result,
        _OURS,
        _VLLM,
        request=request,
        iteration=part.step,
        hint=f"map state --iteration {part.step}",
    )
    explanation.more = [
        words("positions_of_block", first=index * size, last=(index + 1) * size - 1, **where),
        words("one_owner"),
    ]
    _compare_with_worker(log, explanation, part, words)
    return explanation


def _somebody(log: Log) -> str:
    name: str = plans(log)[0].data["scheduled"][0][0]
    return name


def _parts(log: Log, request: str) -> list[_Part]:
    found = []
    for event in plans(log):
        plan = event.data
        admitted = request in plan["new"] or request in plan["resumed"]
        for who, count in plan["scheduled"]:
            if who == request:
                first = plan["num_computed_before"][request]
                found.append(_Part(event.step, first, first + count, admitted))
    if not found:
        raise ValueError(f"{request} was never scheduled in this run: none of its tokens has a slot")
    return found


def _last_position(parts: list[_Part], until: int) -> int:
    return max((part for part in parts if part.step <= until), key=lambda p: p.step, default=parts[0]).end - 1


def _not_yet(log: Log, request: str, pos: int, until: int, parts: list[_Part], words: Words) -> Explanation:
    """The answer about a position that is computed later, or never."""
    later = [part for part in parts if part.first <= pos < part.end]
    end = max(part.end for part in parts)
    if not later and pos > end:
        raise ValueError(f"{request} has no position {pos}: it computed 0 to {end - 1}; the nearest is {end - 1}")
    done = max((part.end for part in parts if part.step <= until), default=0)
    size = plans(log)[0].data["block_size"]
    text = words("never_a_slot", pos=pos, request=request)
    if later:
        steps = words.names([str(part.step) for part in later[:6]])
        when = words("computed_later" if len(later) == 1 else "computed_often", steps=steps)
        text = words("no_slot_yet", pos=pos, request=request, until=until, done=done, later=when)
    return Explanation(
        "slot",
        text,
        _FORMULA,
        f"block_table[{pos} // {size}] = block_table[{pos // size}]: not written",
        {"pos": pos, "block_size": size, "block_index": pos // size, "offset": pos % size, "computed": done}
        | ({"written": later[0].step} if later else {}),
        None,
        _OURS,
        _VLLM,
        request=request,
        iteration=until,
        hint=f"explain slot --request {request} --pos {pos if later else end - 1}",
    )


def _block_table(log: Log, request: str, step: int) -> list[int]:
    """The request's blocks in a step: the worker's row, else what the pool gave to it."""
    row: list[int] | None = log.start["worker"].get(request, {}).get("block_ids") if log.start else None
    owned: list[int] = list(log.start["requests"].get(request, {}).get("block_ids", [])) if log.start else []
    at_plan: list[int] = []
    for event in log.events:
        if event.step > step:
            break
        if event.kind == "prepare_inputs":
            row = event.data["block_table"].get(request, row)
        elif event.kind in ("kv.shared", "kv.allocated") and event.request == request:
            owned = owned + event.data["blocks"]
        elif event.kind == "kv.freed" and event.request == request:
            owned = []
        elif event.kind == "schedule":
            at_plan = owned
    return row if row is not None else at_plan


def _batch(log: Log, step: int) -> Event | None:
    return next((e for e in log.events if e.kind == "prepare_inputs" and e.step == step), None)


def _compare_with_worker(log: Log, explanation: Explanation, part: _Part, words: Words) -> None:
    """Add what the worker's own slot_mapping of that step says."""
    event = _batch(log, part.step)
    if event is None:
        explanation.more.append(words("no_batch"))
        return
    slots, place = event.data["slot_mapping"], explanation.values["pos"] - part.first
    taken = [s for s in slots if s >= 0]
    explanation.values |= {"slots_written": len(taken), "different_slots": len(set(taken))}
    key = "to_slots" if len(taken) > 1 else "to_one_slot"
    explanation.more.append(words(key, step=part.step, count=len(taken), slots=len(set(taken))))
    if place < 0 or explanation.request not in event.data["order"]:
        return
    start = event.data["query_start_loc"][event.data["order"].index(explanation.request)]
    logged = slots[start + place]
    explanation.values["logged"] = logged
    if logged != explanation.result:
        explanation.more.append(words("contradiction", logged=logged))
