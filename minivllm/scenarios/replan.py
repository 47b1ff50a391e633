"""Owns planning a recorded run again, perhaps with other settings: the real scheduler, the recorded tokens, no model.

What came from outside stays as it was: prompts, priorities, limits, drafts, and the step before which each request
arrived or its caller gave up. What the model said stays, too: a request's n-th token is its n-th recorded one. A stop
string is found by text, which is not here; its request is taken back when it has as many tokens as it had then.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

import msgspec

from minivllm.analysis.whatif_knobs import with_settings
from minivllm.config import VllmConfig
from minivllm.core.messages import EngineCoreOutputs
from minivllm.executor.sim import TokenRule
from minivllm.scenarios.driver import DEFAULT_MAX_STEPS, Arrival, RunResult
from minivllm.scenarios.replay import workload_from_log
from minivllm.scenarios.simulate import simulate_to_log
from minivllm.scenarios.workload import Workload
from minivllm.trace.reader import Log, LogError

# Tokens that were never recorded begin here, beyond any vocabulary: none of them stops a request, nobody else says it.
_UNKNOWN = 1 << 30


@dataclass(frozen=True, slots=True)
class Replanned:
    """A run that was planned again.

    Attributes:
        log: Its events.
        result: How it ended.
        num_made_up: Tokens beyond the record, by request: nobody knows what the model would have said.
    """

    log: Log
    result: RunResult
    num_made_up: dict[str, int]


def replan(log: Log, settings: Mapping[str, Any], path: Path | None = None) -> Replanned:
    """Plan a recorded run again.

    Args:
        log: A whole log; of one that was cut off, as many iterations as it has.
        settings: Settings to change, by name (see `analysis.whatif_knobs`).
        path: Where to write the new log; None keeps it in memory.

    Raises:
        KnobError: The settings contradict each other.
        LogError: The log does not hold what it takes.
    """
    workload = _workload(log)
    workload = replace(workload, vllm_config=with_settings(workload.vllm_config, settings))
    made_up: dict[str, int] = {}
    events, result = simulate_to_log(workload, path, _token_rule(log, made_up), _stop_at(_text_stops(log)))
    return Replanned(Log(events.header, events.events, events.num_dropped, path=path), result, made_up)


def config_of(log: Log) -> VllmConfig:
    """The settings of a recorded run. Raises LogError."""
    return _workload(log).vllm_config


def _workload(log: Log) -> Workload:
    name = log.path or "the log"
    if log.num_dropped or log.start is not None:
        raise LogError(f"{name} does not hold the whole run, so it cannot be planned again; record a shorter one")
    try:
        semantics = log.header.config["scheduler_config"]["semantics"]
        workload, _ = workload_from_log(log, semantics)
    except (msgspec.ValidationError, KeyError, TypeError) as error:
        raise LogError(f"{name}: its settings or arrivals cannot be read: {error}") from None
    if workload.vllm_config.cache_config.num_gpu_blocks is None:
        raise LogError(f"{name} does not say how many KV blocks there were (num_gpu_blocks)")
    if not workload.arrivals:
        raise LogError(f"{name} holds no arrival of a request (request.arrived), so there is nothing to plan")
    workload = replace(workload, arrivals=_in_order(workload.arrivals, log))
    return replace(workload, max_steps=_max_steps(workload, log))


def _max_steps(workload: Workload, log: Log) -> int:
    """As many iterations as a log that was cut off has; else so many that only a run that stands still needs more."""
    steps = sum(event.kind == "step.end" for event in log.events)
    if log.truncated or any(event.kind == "run.truncated" for event in log.events):
        return max(steps, 1)
    tokens = sum(len(arrival.request.prompt_token_ids) for arrival in workload.arrivals)
    tokens += sum(len(ids) for e in log.events if e.kind == "update" for ids in e.data["emitted"].values())
    return max(DEFAULT_MAX_STEPS, steps + 2 * tokens)


def _in_order(arrivals: list[Arrival], log: Log) -> list[Arrival]:
    """Arrivals in an order that also is that of the requests given up in one step: their blocks are freed in it."""
    by_id = {
        arrival.request.request_id: replace(arrival, abort_step=None) if arrival.abort_phase == "frontend" else arrival
        for arrival in arrivals
    }
    chains: list[list[str]] = [event.data["asked"] for event in log.events if event.kind == "requests.aborted"]
    chains += [[i for i, _ in same] for _, same in itertools.groupby(by_id.items(), lambda item: item[1].step)]
    order: TopologicalSorter[str] = TopologicalSorter({request_id: () for request_id in by_id})
    for chain in chains:
        for before, after in itertools.pairwise(request_id for request_id in chain if request_id in by_id):
            order.add(after, before)
    try:
        return [by_id[request_id] for request_id in order.static_order()]
    except CycleError:  # they gave up in another order than they came
        return list(by_id.values())


def _token_rule(log: Log, made_up: dict[str, int]) -> TokenRule:
    """What each request said at each position; and what it sampled after its end, for plans that came too late."""
    said: dict[str, list[int]] = {}
    too_late: dict[str, list[int]] = {}
    for event in log.events:
        if event.kind == "update":
            for request_id, sampled in event.data["sampled"].items():
                emitted = event.data["emitted"].get(request_id, [])
                said.setdefault(request_id, []).extend(emitted)
                too_late.setdefault(request_id, []).extend(sampled[len(emitted) :])
        elif event.kind == "run.truncated":
            for request_id, sampled in event.data["sampled"].items():
                too_late.setdefault(request_id, []).extend(sampled)
    recorded = {i: said.get(i, []) + too_late.get(i, []) for i in said.keys() | too_late.keys()}

    def rule(request_id: str, num_prompt_tokens: int, tokens: Sequence[int]) -> int:
        position = len(tokens) - num_prompt_tokens
        known = recorded.get(request_id, [])
        if position < len(known):
            return known[position]
        made_up[request_id] = max(made_up.get(request_id, 0), position + 1 - len(known))
        return _UNKNOWN + position

    return rule


def _text_stops(log: Log) -> dict[str, int]:
    """How many tokens each request had when its text met a stop string."""
    counts: dict[str, int] = {}
    stops: dict[str, int] = {}
    for event in log.events:
        if event.kind == "update":
            for request_id, tokens in event.data["emitted"].items():
                counts[request_id] = counts.get(request_id, 0) + len(tokens)
        elif event.kind == "requests.aborted" and event.data["phase"] == "frontend":
            stops.update({request_id: counts.get(request_id, 0) for request_id in event.data["asked"]})
    return stops


def _stop_at(stops: dict[str, int]) -> Callable[[EngineCoreOutputs], list[str]]:
    """Takes a request back when it has as many tokens as its text needed."""
    counts: dict[str, int] = {}

    def on_outputs(outputs: EngineCoreOutputs) -> list[str]:
        asked = []
        for output in outputs.outputs:
            request_id = output.request_id
            before = counts.get(request_id, 0)
            counts[request_id] = before + len(output.new_token_ids)
            stop = stops.get(request_id)
            if stop is not None and before < stop <= counts[request_id] and output.finish_reason is None:
                asked.append(request_id)
        return asked

    return on_outputs
