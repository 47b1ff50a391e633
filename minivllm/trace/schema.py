"""Owns what the data of each kind of event is: one type a kind, from which the published JSON Schema is made.

No engine here: whoever reads a log in another program reads it by this.
"""

from __future__ import annotations

from typing import Any

import msgspec

from minivllm.trace.events import SCHEMA, End, Event, Header

Ids = list[str]
Tokens = list[int]
Blocks = list[int]


class Facts(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The data of an event."""


class RequestArrived(Facts):
    """A request came. `parent` and `index`: it is one of several completions of that request. `cache_salt` and `lora`
    (name and path of an adapter) keep its cached blocks apart from those of others with the same tokens."""

    prompt_token_ids: Tokens
    priority: int
    arrival_time: float
    sampling_params: dict[str, Any]
    prompt: str | None = None
    parent: str | None = None
    index: int | None = None
    cache_salt: str | None = None
    lora: tuple[str, str] | None = None


class RequestQueued(Facts):
    """The scheduler took it. `position` counts those before it in the queue."""

    num_prompt_tokens: int
    position: int
    num_waiting: int


class RequestRefused(Facts):
    """It could never run: the message says why, and what to do."""

    message: str


class RequestsAborted(Facts):
    """Callers gave up. `phase`: before the step, in the middle of it (`mid`), or by the `frontend` after it."""

    phase: str
    asked: Ids
    ended: Ids


class RunTruncated(Facts):
    """The run reached its step limit. `sampled`: by the last plan, whose output was not committed."""

    max_steps: int
    sampled: dict[str, Tokens]


class Nothing(Facts):
    """No data."""


class Decision(Facts):
    """One rule that held somebody back, and the numbers that it compared."""

    request: str | None
    reason: str
    numbers: dict[str, int]


class Schedule(Facts):
    """The plan of a step. Lists of pairs and dicts are in the plan's order.

    `prefix_cache`: request, tokens looked up, tokens found; with any, `cache_stats` has all such counts since the
    start, those of requests that come back from a preemption apart (`preempted_`). `preemptions`: victim, computed
    tokens lost, who needed the blocks. `block_ids`: blocks that each request gained (with those found in the cache, at
    its admission).
    """

    scheduled: list[tuple[str, int]]
    total_scheduled: int
    new: Ids
    resumed: Ids
    running: Ids
    preempted: Ids
    finished_since_last: Ids
    block_ids: dict[str, Blocks]
    num_computed_before: dict[str, int]
    num_computed_after: dict[str, int]
    num_tokens: dict[str, int]
    prefix_cache: list[tuple[str, int, int]]
    num_common_prefix_blocks: int
    free_blocks_scheduled: int
    waiting_scheduled: Ids
    running_scheduled: Ids
    spec_tokens: dict[str, Tokens]
    budget: int
    max_num_seqs: int
    block_size: int
    not_scheduled: list[Decision]
    cut: list[Decision]
    preemptions: list[tuple[str, int, str]]
    stop: Decision | None
    cache_stats: dict[str, int] | None = None


class Update(Facts):
    """What the plan of step `update_of` brought, and what was kept of it. `finished`: finish and stop reason."""

    update_of: int
    sampled: dict[str, Tokens]
    emitted: dict[str, Tokens]
    finished: dict[str, tuple[str, int | str | None]]


class StepEnd(Facts):
    """How a step left the queues and the pool. `free_head`: the next blocks to be reused; `freed`, `evicted`: blocks
    that became free or lost their hash in this step."""

    waiting: Ids
    running_after: Ids
    skipped_waiting: Ids
    free_blocks: int
    free_head: Blocks
    cached_hashes: int
    num_preemptions: dict[str, int]
    owned_blocks: int
    cached_free_blocks: int
    freed: Blocks
    evicted: Blocks


class Missing(Facts):
    """The block behind the last hit, by its index in the prompt, and why it was none.

    `why`: never_computed, evicted, differs (a cached block goes on differently: from `token` on, published by `other`),
    not_full, last_token (is always computed), caching_off, not_asked.
    """

    index: int
    why: str
    token: int | None = None
    other: str | None = None


class KvLookup(Facts):
    """A prefix was looked up: tokens that could be found, tokens that were, and their blocks."""

    asked: int
    hit: int
    blocks: Blocks
    first_missing: Missing


class KvShared(Facts):
    """Blocks of a hit gained an owner; `ref_cnt` is what each has now."""

    blocks: Blocks
    ref_cnt: list[int]


class KvAllocated(Facts):
    """Blocks were taken from the front of the free queue, in order."""

    blocks: Blocks


class KvEvicted(Facts):
    """A block lost its hash. `why`: reused, taken_back (its planned step will not run), reset (of the whole cache)."""

    hash: str
    why: str


class KvStored(Facts):
    """Full blocks were published under their hashes (16 digits each); `parent` is the hash before them."""

    blocks: Blocks
    hashes: list[str]
    parent: str | None
    first_token: int
    block_size: int


class KvFreed(Facts):
    """A request gave its blocks back, in this order. Those without another owner became free: `returned` went to the
    end of the free queue, `returned_front` (without a hash, so nobody can hit them) to its front."""

    blocks: Blocks
    returned: Blocks
    returned_front: Blocks


class Rows(Facts):
    """Who took, changed or left a row (a slot) of the batch. `moved`: request, from, to."""

    taken: dict[str, int]
    moved: list[tuple[str, int, int]]
    freed: dict[str, int]


class PrepareInputs(Facts):
    """The batch as arrays. `block_table`: of the requests whose table is new or has grown. `graph_reason`: why the step
    ran in that mode, from a runner that has graphs. `prefix_tokens`: to so many leading tokens the decodes attended
    together."""

    order: Ids
    places: list[int]
    query_start_loc: list[int]
    seq_lens: list[int]
    positions: list[int]
    input_ids: Tokens
    slot_mapping: list[int]
    block_table: dict[str, Blocks]
    logits_indices: list[int]
    num_tokens: int
    num_tokens_padded: int
    graph_mode: str
    attention_backend: str
    graph_reason: str | None = None
    prefix_tokens: int = 0


class WorkerState(Facts):
    """The worker's own counters of scheduled requests: row, tokens computed before this step, blocks."""

    rows: dict[str, tuple[int, int, int]]


class Logits(Facts):
    """The likeliest tokens before sampling, how undecided the row is (bits), and a check sum of all of it."""

    top: list[tuple[int, float]]
    entropy: float
    checksum: str


class OutputText(Facts):
    """What became text: `delta` was sent now, `sent` characters so far, `held` is kept back. `sent_tokens`: how many
    token ids its caller has, if those are not all that it has got."""

    delta: str
    held: str
    sent: int
    tokens: list[tuple[int, str]]
    finish_reason: str | None
    stop_reason: int | str | None
    sent_tokens: int | None = None


class Keyframe(Facts):
    """The whole state as this process knows it, before its step."""

    state: dict[str, Any]


class Span(Facts):
    """A phase of a step. `device_ns`: what the device took for the work that was submitted in it."""

    name: str
    device_ns: int | None = None


class DeviceTime(Facts):
    """What the device took for a phase of iteration `iteration`, told when it was known: nothing waits for it.

    `cause` is the span in which the work was submitted; a reader finds `device_ns` there, too. `start_ns`: from the
    moment when the device came to this step. Phases: forward, logits (what follows in `execute_model`, with sampling
    where the device does it), sample; or replay, where all of them are one graph.
    """

    name: str
    iteration: int
    start_ns: int
    device_ns: int


class Kernels(Facts):
    """What PyTorch's profiler saw of one step: kernel or operation, calls, its own CPU time and device time.

    `of`: the forward pass, or the replay of a graph. Only some steps are profiled, for the profiler itself takes time:
    a profiled step is slower than others, and beside a GPU it waits for the device.
    """

    of: str
    kernels: list[tuple[str, int, int, int]]


class CallFacts(Facts):
    """A call of a function on the map, in which other one (`parent`), and what it raised, if it did."""

    id: int
    parent: int | None
    depth: int
    plane: str
    error: str | None = None


class Message(Facts):
    """What crossed a boundary (1 frontend and core, 2 core and worker, 3 worker and device), and when.

    `channel`: call, zmq or device. A call is weighed as the message that it would be. `encode_ns` and `decode_ns` only
    where it was one.
    """

    boundary: int
    channel: str
    sender: str = msgspec.field(name="from")
    receiver: str = msgspec.field(name="to")
    type: str
    bytes: int
    requests: Ids
    send_ns: int
    recv_ns: int
    encode_ns: int | None = None
    decode_ns: int | None = None


class Thread(Facts):
    """A thread and the loop that it runs, as our symbol."""

    name: str
    loop: str


class ProcessStarted(Facts):
    """Which process plays a role, and what runs in it for as long as it lives."""

    role: str
    pid: int
    threads: list[Thread]


class ProcessEnded(Facts):
    """Nothing more comes of it."""

    role: str
    pid: int


class ProbeFailed(Facts):
    """A probe made a mistake, and was switched off: what it would have told is missing from here on."""

    symbol: str
    message: str


KINDS: dict[str, Any] = {
    "request.arrived": RequestArrived,
    "request.queued": RequestQueued,
    "request.refused": RequestRefused,
    "requests.aborted": RequestsAborted,
    "drafts.given": dict[str, Tokens],
    "schedule": Schedule,
    "update": Update,
    "step.idle": Nothing,
    "step.end": StepEnd,
    "run.truncated": RunTruncated,
    "kv.lookup": KvLookup,
    "kv.shared": KvShared,
    "kv.allocated": KvAllocated,
    "kv.evicted": KvEvicted,
    "kv.stored": KvStored,
    "kv.freed": KvFreed,
    "kv.reset": Nothing,
    "rows": Rows,
    "prepare_inputs": PrepareInputs,
    "worker.state": WorkerState,
    "logits": Logits,
    "output.text": OutputText,
    "keyframe": Keyframe,
    "span": Span,
    "device.time": DeviceTime,
    "kernels": Kernels,
    "call": CallFacts,
    "message": Message,
    "process.started": ProcessStarted,
    "process.ended": ProcessEnded,
    "probe.failed": ProbeFailed,
}
# Only in a log with clocks.
CLOCKED_KINDS = frozenset({"span", "device.time", "kernels", "call", "message", "process.started", "process.ended"})


def check_event(event: Event) -> None:
    """Check an event's data against the type of its kind.

    Raises:
        KeyError: There is no such kind.
        msgspec.ValidationError: Its data is not what such an event has.
    """
    msgspec.convert(event.data, KINDS[event.kind], strict=True)


def json_schema() -> dict[str, Any]:
    """The JSON Schema of a line of a log: header, event, or end."""
    types = [Header, Event, End, *KINDS.values()]
    schemas, components = msgspec.json.schema_components(types, ref_template="#/$defs/{name}")
    header, event, end, *data = schemas
    events = [
        {"allOf": [event, {"properties": {"kind": {"const": kind}, "data": schema}, "required": ["kind"]}]}
        for kind, schema in zip(KINDS, data, strict=True)
    ]
    header = {"allOf": [header, {"properties": {"schema": {"const": SCHEMA}}, "required": ["schema"]}]}
    trailer = {"type": "object", "properties": {"end": end}, "required": ["end"]}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "One line of a minivllm event log, version 2",
        "oneOf": [header, *events, trailer],
        "$defs": components,
    }
