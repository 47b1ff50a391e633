"""The invariants of the worker: the plan translated without a slip, and every row with its own request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from minivllm.analysis.invariants.books import follow
from minivllm.analysis.invariants.registry import invariant
from minivllm.analysis.iteration import Iteration


@invariant(
    "INV-17",
    "The batch is one flat stream of exactly the planned tokens, request after request.",
    reason="There is no second dimension and no padding between requests: only query_start_loc says who is where.",
    map="plan",
    bug="nano-vllm #144: a full hit gave a request zero query tokens",
    needs=("prepare_inputs",),
)
def flat(it: Iteration) -> Iterator[str]:
    plan, batch = it.the("schedule"), it.the("prepare_inputs")
    planned = dict(plan["scheduled"])
    if sorted(batch["order"]) != sorted(planned):
        yield f"the batch holds {batch['order']}, planned are {list(planned)}"
        return
    bounds = batch["query_start_loc"]
    lengths = [end - start for start, end in pairwise(bounds)]
    if bounds[:1] != [0] or lengths != [planned[request] for request in batch["order"]]:
        yield f"query_start_loc is {bounds}, the plan gives {[planned[request] for request in batch['order']]}"
    total = sum(planned.values())
    for name in ("positions", "slot_mapping", "input_ids"):
        if len(batch[name]) != total:
            yield f"{len(batch[name])} {name} for {total} tokens"
    if batch["num_tokens"] != total or batch["num_tokens_padded"] < total:
        yield f"the batch counts {batch['num_tokens']} tokens, {batch['num_tokens_padded']} padded; {total} are planned"
    for name in ("places", "seq_lens"):
        if len(batch[name]) != len(batch["order"]):
            yield f"{len(batch[name])} {name} for {len(batch['order'])} requests"


@invariant(
    "INV-18",
    "Positions go on where the request stood, and its length is what is computed afterwards.",
    reason="The position turns the key in the rotary embedding and finds the page: one off, and it is another token.",
    map="plan",
    bug="vLLM #57562: counters of chunked prompts ran apart under asynchronous scheduling",
    needs=("prepare_inputs",),
)
def positions(it: Iteration) -> Iterator[str]:
    plan, batch = it.the("schedule"), it.the("prepare_inputs")
    for row, request, start, end in _spans(batch):
        before = plan["num_computed_before"][request] - it.run.rejected_in_flight(request, it.step)
        expected = list(range(before, before + end - start))
        if batch["positions"][start:end] != expected:
            yield f"{request} has positions {batch['positions'][start:end][:4]}…, it stood at {before}"
        if batch["seq_lens"][row] != before + end - start:
            yield f"{request} has seq_len {batch['seq_lens'][row]}, it will have computed {before + end - start}"


@invariant(
    "INV-19",
    "A token's slot is its page times the block size plus its offset, in a page of its own request, and unique.",
    reason="slot = block_table[position // block_size] * block_size + position % block_size. Two equal slots lose one.",
    map="plan",
    bug="vLLM #51017: slots collided across blocks",
    needs=("prepare_inputs",),
)
def slots(it: Iteration) -> Iterator[str]:
    batch, books, size = it.the("prepare_inputs"), follow(it), it.run.block_size
    if books.at_schedule is None:
        return
    tables = books.at_schedule[0]
    for _, request, start, end in _spans(batch):
        table = tables.get(request, [])
        where = zip(batch["positions"][start:end], batch["slot_mapping"][start:end], strict=True)
        for position, slot in where:
            block = table[position // size] if position // size < len(table) else None
            if block is None or slot != block * size + position % size:
                yield f"token {position} of {request} goes to slot {slot}, its page is {block}"
                break
    twice = [slot for slot, count in Counter(batch["slot_mapping"]).items() if count > 1]
    if twice:
        yield f"slot {twice[0]} is written by two tokens"


@invariant(
    "INV-20",
    "Logits are taken at the last token of each request, and at each of its drafts.",
    reason="Only these rows go through the output layer; a row too early samples from the middle of a prompt.",
    map="plan",
    bug="vLLM #29216: offsets of logprobs were wrong with drafts and unfinished chunks in one batch",
    needs=("prepare_inputs",),
)
def logits_rows(it: Iteration) -> Iterator[str]:
    plan, batch = it.the("schedule"), it.the("prepare_inputs")
    expected: list[int] = []
    for _, request, _, end in _spans(batch):
        expected.extend(range(end - 1 - len(plan["spec_tokens"].get(request, ())), end))
    if batch["logits_indices"] != expected:
        yield f"logits are taken at {batch['logits_indices'][:8]}, the requests end at {expected[:8]}"


@invariant(
    "INV-21",
    "Every request has one row and every row one request; nobody's row is taken by another.",
    reason="A row is a place, not an identity: requests move, and all their columns must come along.",
    map="state",
    bug="vLLM #48419: a swap of two rows through views left both with the same mask",
    needs=("rows", "prepare_inputs"),
)
def rows(it: Iteration) -> Iterator[str]:
    before = {request: entry.row for request, entry in it.before.worker.items()}
    now = dict(before)
    for event in it.all("rows"):
        data = event.data
        for request, row in data["freed"].items():
            if now.pop(request, None) != row:
                yield f"{request} gave up row {row}, it had {before.get(request)}"
        for request, source, target in data["moved"]:
            if now.get(request) != source:
                yield f"{request} moved from row {source} to {target}, it was in {now.get(request)}"
            now[request] = target
        for request, row in data["taken"].items():
            if request in now:
                yield f"{request} took row {row} and had {now[request]}"
            now[request] = row
    for row, count in Counter(now.values()).items():
        if count > 1:
            yield f"row {row} is that of {sorted(r for r, place in now.items() if place == row)}"
    limit = it.run.scheduler_config["max_num_seqs"]
    yield from (f"{request} is in row {row} of {limit}" for request, row in now.items() if not 0 <= row < limit)
    batch = it.data("prepare_inputs")
    if batch is None:
        return
    for request, place in zip(batch["order"], batch["places"], strict=True):
        if now.get(request) != place:
            yield f"{request} is prepared from row {place}, it is in {now.get(request)}"
    if it.run.config.get("batch") == "rows" and batch["places"] != list(range(len(batch["order"]))):
        yield f"rows {batch['places']} have gaps"


@invariant(
    "INV-22",
    "The worker's mirror says what the scheduler says: computed tokens and block tables.",
    reason="The mirror is derived, never sent back. Where it differs, the model reads other pages than were planned.",
    map="state",
    bug="vLLM #43894: data of one request showed up in another one's row",
    needs=("worker.state", "prepare_inputs"),
)
def mirror(it: Iteration) -> Iterator[str]:
    plan, books = it.data("schedule"), follow(it)
    batch, told = it.data("prepare_inputs"), it.data("worker.state")
    if plan is None or books.at_schedule is None:
        return
    tables = books.at_schedule[0]
    for request, block_ids in (batch or {}).get("block_table", {}).items():
        if block_ids != tables.get(request):
            yield f"the worker's table of {request} has {len(block_ids)} blocks that are not the scheduler's"
    gained = set(plan["block_ids"]) & {request for request, _ in plan["scheduled"]}
    if batch and (missing := gained - batch["block_table"].keys()):
        yield f"the worker did not take the new blocks of {sorted(missing)}"
    if told is None:
        return
    if told["rows"].keys() != dict(plan["scheduled"]).keys():
        yield f"the worker knows {sorted(told['rows'])}, planned are {sorted(dict(plan['scheduled']))}"
    places = dict(zip(batch["order"], batch["places"], strict=True)) if batch else {}
    for request, (row, computed, num_blocks) in told["rows"].items():
        before = plan["num_computed_before"][request] - it.run.rejected_in_flight(request, it.step)
        if computed != before:
            yield f"{request} has {computed} computed tokens in the worker, {before} in the scheduler"
        if num_blocks != len(tables.get(request, ())):
            yield f"{request} has {num_blocks} blocks in the worker, {len(tables.get(request, ()))} in the scheduler"
        if places and places.get(request) != row:
            yield f"{request} is in row {row} and prepared from {places.get(request)}"


@invariant(
    "INV-23",
    "The tokens that are fed are the request's own, at those positions.",
    reason="This is where a mix-up of two requests becomes visible: in the ids that go into the model.",
    map="plan",
    bug="vLLM #14645: data of one request got into the row of another one",
    needs=("prepare_inputs",),
)
def input_ids(it: Iteration) -> Iterator[str]:
    plan, batch = it.the("schedule"), it.the("prepare_inputs")
    for _, request, start, end in _spans(batch):
        tokens = it.run.tokens_of(request)
        if tokens is None:
            continue
        drafts = plan["spec_tokens"].get(request, [])
        known = end - len(drafts)
        if drafts and batch["input_ids"][known:end] != drafts:
            yield f"{request} verifies {batch['input_ids'][known:end]}, its drafts are {drafts}"
        for position, token in zip(batch["positions"][start:known], batch["input_ids"][start:known], strict=True):
            # One beyond the end was sampled, and then dropped: its request had ended in the meantime. -1 stands for a
            # token that was on its way from the device, which read its own.
            if token != -1 and position < len(tokens) and tokens[position] != token:
                yield f"{request} is fed token {token} at position {position}, its own is {tokens[position]}"
                break


def _spans(batch: dict[str, Any]) -> Iterator[tuple[int, str, int, int]]:
    """Place in the batch, request, first query token, end."""
    bounds = batch["query_start_loc"]
    for row, request in enumerate(batch["order"]):
        yield row, request, bounds[row], bounds[row + 1]
