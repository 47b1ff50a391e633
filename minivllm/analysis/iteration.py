"""Owns cutting a log into iterations for whoever questions it: what happened in each, and the state around it.

The state is rebuilt by replay. A log that contradicts itself is what this is for, so nothing here may fail on one: an
event that does not fit is noted and passed over.
"""

from __future__ import annotations

import contextlib
import copy
from collections import OrderedDict
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from minivllm.trace.events import Event
from minivllm.trace.reader import Log
from minivllm.trace.replay import Pool, State

# Of SamplingParams: a log leaves out what was not set.
DEFAULT_MAX_TOKENS = 16
# Iterations behind a plan by which its output has come.
_MAX_IN_FLIGHT = 4
# What a self-contradicting log makes of a lookup.
BROKEN = (KeyError, IndexError, ValueError, TypeError, AttributeError, AssertionError)


@dataclass(slots=True)
class RunFacts:
    """What is known of a run as a whole.

    Attributes:
        config: The header's settings.
        prompts: Token ids of each prompt whose arrival the log holds.
        params: Its sampling parameters, as they were asked for.
        arrival: Its priority and arrival time.
        keys: What keeps its cached blocks apart from those of others with the same tokens: adapter and salt.
        outputs: All tokens that each request was given, in order.
        output_of: Iterations in which an output was committed, each with how many were before it.
        plans: The data of each `schedule` event, by iteration.
        committed: Of each plan's output: the iteration in which it was committed, and how many tokens were sampled.
        lookups: Prefix look-ups of each request: (iteration, data).
        logits: By iteration and request: the likeliest tokens, with their logits, if the log has them.
        is_whole: The log begins at the beginning, and nothing of it was dropped or cut off.
        has_worker: Batches were prepared: it is no simulation.
        hash_contents, told_finished, texts, ended_texts, unstoppable, cache_stats: What the checks have seen, as far
            as they have come: what each hash stands for (parent hash, own tokens, keys), whom the worker was told to
            forget, text sent, texts ended, tokens of a text and those of its characters in which no stop string counts,
            the counts of the prefix cache.
    """

    config: dict[str, Any]
    prompts: dict[str, list[int]] = field(default_factory=dict)
    params: dict[str, dict[str, Any]] = field(default_factory=dict)
    arrival: dict[str, tuple[int, float]] = field(default_factory=dict)
    keys: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    outputs: dict[str, list[int]] = field(default_factory=dict)
    output_of: dict[int, int] = field(default_factory=dict)
    plans: dict[int, dict[str, Any]] = field(default_factory=dict)
    committed: dict[int, tuple[int, dict[str, int]]] = field(default_factory=dict)
    lookups: dict[str, list[tuple[int, dict[str, Any]]]] = field(default_factory=dict)
    logits: dict[int, dict[str, list[Any]]] = field(default_factory=dict)
    is_whole: bool = True
    has_worker: bool = False
    hash_contents: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    told_finished: set[str] = field(default_factory=set)
    texts: dict[str, str] = field(default_factory=dict)
    ended_texts: set[str] = field(default_factory=set)
    unstoppable: dict[str, tuple[int, int]] = field(default_factory=dict)
    cache_stats: dict[str, int] | None = None

    @property
    def scheduler_config(self) -> dict[str, Any]:
        config: dict[str, Any] = self.config.get("scheduler_config", {})
        return config

    @property
    def block_size(self) -> int:
        size: int = self.config["cache_config"]["block_size"]
        return size

    def lookup_before(self, request: str, step: int) -> dict[str, Any] | None:
        """The newest look-up of a request up to an iteration. One that gives the same again is not logged again."""
        return next((data for at, data in reversed(self.lookups.get(request, [])) if at <= step), None)

    def oldest_plan(self, step: int) -> int | None:
        """Of which iteration the output that is committed in `step` must be: outputs come in the order of the plans."""
        steps = list(self.plans)
        place = self.output_of.get(step, len(steps))
        return steps[place] if place < len(steps) else None

    def rejected_in_flight(self, request: str, step: int) -> int:
        """Drafts of plans whose output was still to come when `step` was planned, and which turned out to be wrong.

        The scheduler counts them as computed until it hears of them; the worker knows better by then.
        """
        rejected = 0
        for planned in range(max(step - _MAX_IN_FLIGHT, 0), step):
            drafts = len(self.plans.get(planned, {}).get("spec_tokens", {}).get(request, ()))
            at, counts = self.committed.get(planned, (-1, {}))
            if drafts and at >= step:
                rejected += 1 + drafts - counts.get(request, 0)
        return rejected

    def tokens_of(self, request: str) -> list[int] | None:
        """Prompt and output of a request, as they stood at the end of the log; None if its arrival is not in it."""
        prompt = self.prompts.get(request)
        return None if prompt is None else prompt + self.outputs.get(request, [])


@dataclass(slots=True)
class Iteration:
    """One step of the engine.

    Attributes:
        step: Its number.
        events: Its events, in order.
        before: The state at its start.
        at_schedule: The state right before its plan was logged; None if it made none.
        at_update: The state right before an output was committed in it; None if none was.
        after: The state at its end.
        run: The whole run.
        contradictions: Events that do not fit the state: (event, why).
    """

    step: int
    events: list[Event]
    before: State
    after: State
    run: RunFacts
    at_schedule: State | None = None
    at_update: State | None = None
    contradictions: list[tuple[Event, str]] = field(default_factory=list)

    def all(self, *kinds: str) -> list[Event]:
        """Its events of some kinds."""
        return [event for event in self.events if event.kind in kinds]

    def data(self, kind: str) -> dict[str, Any] | None:
        """The data of its event of a kind that comes once a step; None if it has none."""
        return next((event.data for event in self.events if event.kind == kind), None)

    def the(self, kind: str) -> dict[str, Any]:
        """The same of an event that must be there. Raises KeyError."""
        data = self.data(kind)
        if data is None:
            raise KeyError(f"no {kind} in this iteration")
        return data

    def state_at(self, kind: Literal["schedule", "update"]) -> State:
        """The state right before that event. Raises KeyError if there was none."""
        state = self.at_schedule if kind == "schedule" else self.at_update
        if state is None:
            raise KeyError(f"no {kind} in this iteration")
        return state

    @property
    def is_complete(self) -> bool:
        """Whether the log holds it to its end."""
        return any(event.kind == "step.end" for event in self.events)


def run_facts(log: Log) -> RunFacts:
    """Collect what is known of the whole run."""
    run = RunFacts(log.header.config, is_whole=log.start is None and not log.num_dropped and not log.truncated)
    for event in log.events:
        note_facts(run, event)
    return run


def note_facts(run: RunFacts, event: Event) -> None:
    """Add what an event says of the run as a whole."""
    if event.kind == "request.arrived" and event.request is not None:
        run.prompts.setdefault(event.request, event.data["prompt_token_ids"])
        run.params.setdefault(event.request, event.data.get("sampling_params", {}))
        run.arrival.setdefault(event.request, (event.data["priority"], event.data["arrival_time"]))
        run.keys.setdefault(event.request, (tuple(event.data.get("lora") or ()), event.data.get("cache_salt")))
    elif event.kind == "kv.lookup" and event.request is not None:
        run.lookups.setdefault(event.request, []).append((event.step, event.data))
    elif event.kind == "logits" and event.request is not None:
        run.logits.setdefault(event.step, {}).setdefault(event.request, event.data["top"])
    elif event.kind == "schedule":
        run.plans.setdefault(event.step, event.data)
    elif event.kind == "prepare_inputs":
        run.has_worker = True
    elif event.kind == "update":
        run.output_of.setdefault(event.step, len(run.output_of))
        counts = {request: len(tokens) for request, tokens in event.data["sampled"].items()}
        run.committed.setdefault(event.data["update_of"], (event.step, counts))
        for request, tokens in event.data["emitted"].items():
            run.outputs.setdefault(request, []).extend(tokens)


def iterations(log: Log, only: Collection[int] | None = None) -> Iterator[Iteration]:
    """Every iteration of a log, in order.

    Args:
        log: The log.
        only: Leave all others out; replay goes over them without making copies.
    """
    run = run_facts(log)
    state = State(log.header, log.start)
    for step, events in sorted(log.by_step().items()):
        if only is not None and step not in only:
            for event in events:
                with contextlib.suppress(*BROKEN):
                    state.apply(event)
            continue
        yield next_iteration(step, events, state, run)


def next_iteration(step: int, events: list[Event], state: State, run: RunFacts) -> Iteration:
    """One iteration; `state` goes on to its end."""
    iteration = Iteration(step, events, copy_of(state), state, run)
    for event in events:
        if event.kind == "schedule" and iteration.at_schedule is None:
            iteration.at_schedule = copy_of(state)
        elif event.kind == "update" and iteration.at_update is None:
            iteration.at_update = copy_of(state)
        try:
            state.apply(event)
        except BROKEN as error:
            iteration.contradictions.append((event, f"{type(error).__name__}: {error}"))
    iteration.after = copy_of(state)
    return iteration


def copy_of(state: State) -> State:
    """A copy that stays as it is while the original goes on. (Block lists are replaced, never changed in place.)"""
    twin = copy.copy(state)
    twin.requests = {i: copy.copy(entry) for i, entry in state.requests.items()}
    twin.worker = {i: copy.copy(entry) for i, entry in state.worker.items()}
    twin.frontend = {i: copy.copy(entry) for i, entry in state.frontend.items()}
    twin.waiting, twin.skipped_waiting, twin.running = state.waiting[:], state.skipped_waiting[:], state.running[:]
    twin.in_flight = list(state.in_flight)
    pool = state.pool
    twin.pool = Pool(pool.num_blocks, dict(pool.ref_cnt), dict(pool.hashes), OrderedDict(pool.free_queue))
    return twin
