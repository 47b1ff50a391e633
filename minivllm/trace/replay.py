"""Owns rebuilding the engine's state from its log, event by event: how a run is looked at after it has ended.

Nothing is decided here again. Who runs, which block goes to whom, what a hash is: all that stands in the events, and
this only keeps the books. A test holds them to a snapshot of the live engine after every step.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from minivllm.trace.events import Event, Header

if TYPE_CHECKING:
    from minivllm.trace.reader import Log

_FINISHED_STATUS = {
    "stop": "FINISHED_STOPPED",
    "length": "FINISHED_LENGTH_CAPPED",
    "abort": "FINISHED_ABORTED",
    "error": "FINISHED_ERROR",
    "repetition": "FINISHED_REPETITION",
}
NULL_BLOCK = 0


class RequestEntry(msgspec.Struct):
    """A request in the scheduler's books; one that has ended keeps its last numbers.

    Attributes:
        status: vLLM's name of it.
        num_prompt_tokens: Of them known at arrival.
        num_tokens: Tokens known: prompt and output.
        num_computed_tokens: Tokens whose KV is computed, or planned to be.
        num_scheduled: Tokens in the plan of the current step.
        num_preemptions: How often it lost its blocks.
        num_in_flight_tokens: Tokens in plans whose output is not committed.
        num_stale_output_tokens: Those of them that were planned before it lost its blocks.
        block_ids: Its block table.
        arrived: Step before which it arrived.
        finish_reason, stop_reason: How it ended; None while it has not.
    """

    status: str = "WAITING"
    num_prompt_tokens: int = 0
    num_tokens: int = 0
    num_computed_tokens: int = 0
    num_scheduled: int = 0
    num_preemptions: int = 0
    num_in_flight_tokens: int = 0
    num_stale_output_tokens: int = 0
    block_ids: list[int] = []
    arrived: int = 0
    finish_reason: str | None = None
    stop_reason: int | str | None = None

    @property
    def is_finished(self) -> bool:
        return self.status.startswith("FINISHED") or self.status == "REFUSED"


class WorkerEntry(msgspec.Struct):
    """A request's row in the worker: a mirror. `num_computed_tokens` is the count before its last step."""

    row: int = 0
    num_computed_tokens: int = 0
    block_ids: list[int] = []


class FrontendEntry(msgspec.Struct):
    """A request's text: characters that its caller has been sent, text held back, tokens that have come, how it ended.

    Of a stop string only the frontend knows: for the scheduler its request was aborted.
    """

    sent: int = 0
    held: str = ""
    num_tokens: int = 0
    finish_reason: str | None = None


class PlanInFlight(msgspec.Struct):
    """A plan whose output is not committed yet: tokens, and drafts among them, by request."""

    scheduled: dict[str, int] = {}
    num_drafts: dict[str, int] = {}


class Pool(msgspec.Struct):
    """The block pool.

    Attributes:
        num_blocks: Blocks in all, the null block included.
        ref_cnt: Users of each block that has any.
        hashes: Of the blocks that can be hit.
        free_queue: Free blocks as keys, next to be reused first. (A dict that can be changed at both ends.)
    """

    num_blocks: int = 0
    ref_cnt: dict[int, int] = {}
    hashes: dict[int, str] = {}
    free_queue: OrderedDict[int, None] = msgspec.field(default_factory=OrderedDict)


class State:
    """The state of the whole engine, as far as a log has told it.

    Args:
        header: Of the log: it says how many blocks there are.
        start: What `as_dict` gave at the point where the events to come begin; None for a fresh engine.

    Attributes:
        step: Step of the last event.
        requests: Every request that is known, in order of arrival.
        waiting, skipped_waiting, running: The scheduler's queues.
        in_flight: Plans whose output is to come, oldest first.
        pool: The block pool.
        worker, frontend: What those two know of requests.
    """

    def __init__(self, header: Header, start: dict[str, Any] | None = None) -> None:
        cache_config = header.config.get("cache_config", {})
        self.step = -1
        self._scheduled: list[str] = []  # in the plan of the current step
        self.requests: dict[str, RequestEntry] = {}
        self.waiting: list[str] = []
        self.skipped_waiting: list[str] = []
        self.running: list[str] = []
        self.in_flight: list[PlanInFlight] = []
        num_blocks = cache_config.get("num_gpu_blocks") or 0
        self.pool = Pool(num_blocks, free_queue=OrderedDict.fromkeys(range(NULL_BLOCK + 1, num_blocks)))
        self.worker: dict[str, WorkerEntry] = {}
        self.frontend: dict[str, FrontendEntry] = {}
        if start is not None:
            self.load(start)

    def load(self, state: dict[str, Any]) -> None:
        """Take over a snapshot, or the parts of it that there are."""
        parts = {
            "requests": dict[str, RequestEntry],
            "waiting": list[str],
            "skipped_waiting": list[str],
            "running": list[str],
            "in_flight": list[PlanInFlight],
            "worker": dict[str, WorkerEntry],
            "frontend": dict[str, FrontendEntry],
        }
        for name, kind in parts.items():
            if name in state:
                setattr(self, name, msgspec.convert(state[name], kind))
        self._scheduled = [i for i, entry in self.requests.items() if entry.num_scheduled]
        if "pool" in state:
            pool = state["pool"]
            self.pool = Pool(
                pool["num_blocks"],
                {int(block): count for block, count in pool["ref_cnt"].items()},
                {int(block): block_hash for block, block_hash in pool["hashes"].items()},
                OrderedDict.fromkeys(pool["free_queue"]),
            )

    def as_dict(self) -> dict[str, Any]:
        """A copy in plain lists and dicts, in the form of `snapshot.snapshot`."""
        builtins = msgspec.to_builtins
        return {
            "requests": {i: builtins(entry) for i, entry in self.requests.items()},
            "waiting": list(self.waiting),
            "skipped_waiting": list(self.skipped_waiting),
            "running": list(self.running),
            "in_flight": builtins(self.in_flight),
            "pool": {
                "num_blocks": self.pool.num_blocks,
                "ref_cnt": dict(self.pool.ref_cnt),
                "hashes": dict(self.pool.hashes),
                "free_queue": list(self.pool.free_queue),
            },
            "worker": builtins(self.worker),
            "frontend": builtins(self.frontend),
        }

    def apply(self, event: Event) -> None:
        """Go on by one event. Kinds that change nothing are passed over, and so are keyframes: they only repeat."""
        if event.step != self.step:
            self.step = event.step
            for request_id in self._scheduled:
                self.requests[request_id].num_scheduled = 0
            self._scheduled = []
        if (handler := _HANDLERS.get(event.kind)) is not None:
            handler(self, event, event.data)

    # ---- the life of a request ------------------------------------------------------------------------------------

    def _arrived(self, event: Event, data: dict[str, Any]) -> None:
        count = len(data["prompt_token_ids"])
        self.requests[_named(event)] = RequestEntry(num_prompt_tokens=count, num_tokens=count, arrived=event.step)

    def _queued(self, event: Event, data: dict[str, Any]) -> None:
        self.waiting.append(_named(event))

    def _refused(self, event: Event, data: dict[str, Any]) -> None:
        self._entry(_named(event)).status = "REFUSED"

    def _aborted(self, event: Event, data: dict[str, Any]) -> None:
        for request_id in data["ended"]:
            self._end(request_id, "abort", None)

    def _end(self, request_id: str, finish_reason: str, stop_reason: int | str | None) -> None:
        entry = self._entry(request_id)
        entry.status = _FINISHED_STATUS[finish_reason]
        entry.finish_reason, entry.stop_reason = finish_reason, stop_reason
        for queue in (self.running, self.waiting, self.skipped_waiting):
            if request_id in queue:
                queue.remove(request_id)

    # ---- the plan, and what came of it ----------------------------------------------------------------------------

    def _schedule(self, event: Event, data: dict[str, Any]) -> None:
        for victim in data["preempted"]:
            entry = self._entry(victim)
            entry.status = "PREEMPTED"
            entry.num_computed_tokens = 0
            entry.num_preemptions += 1
            entry.num_stale_output_tokens = entry.num_in_flight_tokens
        for request_id, num_tokens in data["scheduled"]:
            entry = self._entry(request_id)
            entry.status = "RUNNING"
            entry.num_scheduled = num_tokens
            entry.num_tokens = data["num_tokens"][request_id]
            entry.num_computed_tokens = data["num_computed_after"][request_id]
            entry.num_in_flight_tokens += num_tokens
        self._scheduled = [request_id for request_id, _ in data["scheduled"]]
        drafts = {i: len(tokens) for i, tokens in data["spec_tokens"].items()}
        self.in_flight.append(PlanInFlight(dict(data["scheduled"]), drafts))
        self.waiting, self.running = list(data["waiting_scheduled"]), list(data["running_scheduled"])

    def _update(self, event: Event, data: dict[str, Any]) -> None:
        """The oldest plan in flight has brought its output."""
        plan = self.in_flight.pop(0) if self.in_flight else PlanInFlight()
        for request_id, num_scheduled in plan.scheduled.items():
            entry = self._entry(request_id)
            if entry.is_finished:
                continue
            entry.num_in_flight_tokens -= num_scheduled
            is_stale = entry.num_stale_output_tokens > 0
            if is_stale:
                entry.num_stale_output_tokens -= num_scheduled
            if request_id not in data["emitted"]:
                continue
            num_drafts = plan.num_drafts.get(request_id, 0)
            if num_drafts and not is_stale:
                # Each draft was counted as computed when it was planned; those that were wrong are taken back.
                entry.num_computed_tokens -= num_drafts + 1 - len(data["sampled"][request_id])
            entry.num_tokens += len(data["emitted"][request_id])
        for request_id, (finish_reason, stop_reason) in data["finished"].items():
            self._end(request_id, finish_reason, stop_reason)

    def _step_end(self, event: Event, data: dict[str, Any]) -> None:
        self.waiting, self.running = list(data["waiting"]), list(data["running_after"])
        self.skipped_waiting = list(data["skipped_waiting"])

    # ---- blocks ---------------------------------------------------------------------------------------------------

    def _shared(self, event: Event, data: dict[str, Any]) -> None:
        for block in data["blocks"]:
            self.pool.free_queue.pop(block, None)
            self.pool.ref_cnt[block] = self.pool.ref_cnt.get(block, 0) + 1
        self._gain(event, data["blocks"])

    def _allocated(self, event: Event, data: dict[str, Any]) -> None:
        for block in data["blocks"]:
            del self.pool.free_queue[block]
            self.pool.ref_cnt[block] = 1
        self._gain(event, data["blocks"])

    def _gain(self, event: Event, blocks: list[int]) -> None:
        entry = self._entry(_named(event))
        entry.block_ids = [*entry.block_ids, *blocks]

    def _stored(self, event: Event, data: dict[str, Any]) -> None:
        self.pool.hashes.update(zip(data["blocks"], data["hashes"], strict=True))

    def _evicted(self, event: Event, data: dict[str, Any]) -> None:
        if event.block is not None:
            self.pool.hashes.pop(event.block, None)

    def _freed(self, event: Event, data: dict[str, Any]) -> None:
        pool = self.pool
        for block in data["blocks"]:
            pool.ref_cnt[block] -= 1
            if not pool.ref_cnt[block]:
                del pool.ref_cnt[block]
        pool.free_queue.update(dict.fromkeys(data["returned"]))
        for block in reversed(data["returned_front"]):
            pool.free_queue[block] = None
            pool.free_queue.move_to_end(block, last=False)
        self._entry(_named(event)).block_ids = []

    def _reset(self, event: Event, data: dict[str, Any]) -> None:
        self.pool.hashes.clear()

    # ---- worker and frontend --------------------------------------------------------------------------------------

    def _rows(self, event: Event, data: dict[str, Any]) -> None:
        for request_id in data["freed"]:
            self.worker.pop(request_id, None)
        for request_id, row in data["taken"].items():
            self.worker[request_id] = WorkerEntry(row)
        for request_id, _, row in data["moved"]:
            self.worker[request_id].row = row

    def _worker_state(self, event: Event, data: dict[str, Any]) -> None:
        for request_id, (row, num_computed_tokens, _) in data["rows"].items():
            entry = self.worker.setdefault(request_id, WorkerEntry())
            entry.row, entry.num_computed_tokens = row, num_computed_tokens

    def _prepare_inputs(self, event: Event, data: dict[str, Any]) -> None:
        for request_id, block_ids in data["block_table"].items():
            self.worker.setdefault(request_id, WorkerEntry()).block_ids = block_ids

    def _text(self, event: Event, data: dict[str, Any]) -> None:
        entry = self.frontend.setdefault(_named(event), FrontendEntry())
        entry.sent, entry.held = data["sent"], data["held"]
        entry.num_tokens += len(data["tokens"])
        entry.finish_reason = data["finish_reason"]

    def _entry(self, request_id: str) -> RequestEntry:
        """Of any request that an event names: the log may have lost how it arrived."""
        return self.requests.setdefault(request_id, RequestEntry())


def _named(event: Event) -> str:
    assert event.request is not None, f"an event of kind {event.kind!r} names its request"
    return event.request


_HANDLERS: dict[str, Callable[[State, Event, dict[str, Any]], None]] = {
    "request.arrived": State._arrived,
    "request.queued": State._queued,
    "request.refused": State._refused,
    "requests.aborted": State._aborted,
    "schedule": State._schedule,
    "update": State._update,
    "step.end": State._step_end,
    "kv.shared": State._shared,
    "kv.allocated": State._allocated,
    "kv.stored": State._stored,
    "kv.evicted": State._evicted,
    "kv.freed": State._freed,
    "kv.reset": State._reset,
    "rows": State._rows,
    "worker.state": State._worker_state,
    "prepare_inputs": State._prepare_inputs,
    "output.text": State._text,
}


def states(log: Log) -> Iterator[tuple[int, State]]:
    """The state at the end of every step of a log (or of its window), in order.

    It is one object that goes on from step to step: take `as_dict` to keep what it was. A step that was cut off is
    yielded as far as it goes.
    """
    state = State(log.header, log.start)
    for step, events in log.by_step().items():
        for event in events:
            state.apply(event)
        yield step, state
