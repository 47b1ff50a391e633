"""Owns when requests arrive and leave: it pins both to steps of the engine core, so that a run repeats exactly.

One step: arrivals, aborts "before", the engine's step, in the middle of it the aborts "mid" (after the model has run,
before its output is committed). The same driver serves the simulator and real runs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from minivllm.core.admission import RequestRefusedError
from minivllm.core.messages import EngineCoreOutputs, EngineCoreRequest
from minivllm.core.request import Request
from minivllm.engine.core import EngineCore
from minivllm.trace.events import EventLog
from minivllm.trace.probes import queue_state

DEFAULT_MAX_STEPS = 5000


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request and the steps at which it comes and, perhaps, is taken back.

    Attributes:
        step: Iteration before which it arrives.
        request: The request.
        abort_step: Iteration in which its caller gives up; None for never.
        abort_phase: "before" the step is planned; "mid": after the model ran, before its output is committed; or
            "frontend": after that, when its text has met a stop string.
        prompt: The prompt as text, for the log.
        drafts: Draft tokens that it is given before a step, by iteration: what a proposer would have guessed.
    """

    step: int
    request: EngineCoreRequest
    abort_step: int | None = None
    abort_phase: Literal["before", "mid", "frontend"] = "before"
    prompt: str | None = None
    drafts: dict[int, list[int]] = field(default_factory=dict)


@dataclass(slots=True)
class RunResult:
    """How a run ended.

    Attributes:
        steps: Iterations, idle ones included.
        requests: Every request that was accepted, in order of arrival.
        finals: Finish and stop reason of those that ended.
        refused: Why the others were not accepted.
        truncated: The run was stopped at its step limit.
        free_blocks: Blocks in the free queue at the end.
    """

    steps: int
    requests: dict[str, Request]
    finals: dict[str, tuple[str, int | str | None]]
    refused: dict[str, str]
    truncated: bool
    free_blocks: int


def run(
    core: EngineCore,
    arrivals: list[Arrival],
    log: EventLog,
    *,
    max_steps: int = DEFAULT_MAX_STEPS,
    at_step_end: Callable[[], dict[str, Any]] = dict,
    on_outputs: Callable[[EngineCoreOutputs], list[str]] | None = None,
) -> RunResult:
    """Run until everyone is done.

    Args:
        core: A fresh engine core.
        arrivals: Who comes when; those of one step come in list order.
        log: Gets the events that only the driver knows; `log.step` is kept up to date.
        max_steps: Give up after so many iterations.
        at_step_end: Called after every step; its facts join the step's last event.
        on_outputs: Called with every step's outputs; returns ids that the frontend wants aborted (a stop string).
    """
    result = RunResult(0, {}, {}, {}, False, 0)
    due: dict[int, list[Arrival]] = defaultdict(list)
    drafts: dict[int, dict[str, list[int]]] = defaultdict(dict)
    aborts: dict[str, dict[int, list[str]]] = {phase: defaultdict(list) for phase in ("before", "mid", "frontend")}
    for arrival in arrivals:
        due[arrival.step].append(arrival)
        for step, tokens in arrival.drafts.items():
            drafts[step][arrival.request.request_id] = tokens
        if arrival.abort_step is not None:
            aborts[arrival.abort_phase][arrival.abort_step].append(arrival.request.request_id)
    last_event = max([0, *due, *(step for steps in aborts.values() for step in steps)])

    while True:
        step = log.step = result.steps
        for arrival in due.get(step, ()):
            _add(core, arrival, log, result)
        if step in drafts:
            core.scheduler.update_draft_token_ids(drafts[step])
            log.add("engine_core", "drafts.given", data=drafts[step])
        if asked := aborts["before"].get(step):
            _note_aborts("before", asked, core.abort_requests(asked), log, result)
        mid = aborts["mid"].get(step, [])
        core.aborts_queue.extend([request_id] for request_id in mid)
        unfinished = set(core.scheduler.requests)
        if not core.scheduler.has_requests():
            log.add("engine_core", "step.idle")
        outputs = core.step()
        core._process_aborts_queue()  # those of a step whose output is still to come
        if mid:
            ended = [i for i in mid if i in unfinished and i not in core.scheduler.requests]
            _note_aborts("mid", mid, ended, log, result)
        if outputs is not None:
            for output in outputs.outputs:
                if output.finish_reason is not None:
                    result.finals[output.request_id] = (str(output.finish_reason), output.stop_reason)
        asked = on_outputs(outputs) if on_outputs is not None and outputs is not None else []
        if asked := [*asked, *aborts["frontend"].get(step, [])]:
            _note_aborts("frontend", asked, core.abort_requests(asked), log, result)
        log.add("engine_core", "step.end", data=queue_state(core.scheduler) | at_step_end())
        result.steps += 1
        result.free_blocks = core.scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
        if not core.has_work() and result.steps > last_event:
            return result
        if result.steps >= max_steps:
            result.truncated = True
            log.add("engine_core", "run.truncated", data={"max_steps": max_steps, "sampled": _sampled_in_flight(core)})
            return result


def _sampled_in_flight(core: EngineCore) -> dict[str, list[int]]:
    """What the last step's plan sampled, if it was cut off before its output was committed (async scheduling)."""
    outputs = [future.result() for _, future in core.batch_queue]
    return {i: list(output.sampled_token_ids[k]) for output in outputs for i, k in output.req_id_to_index.items()}


def _add(core: EngineCore, arrival: Arrival, log: EventLog, result: RunResult) -> None:
    request = arrival.request
    data: dict[str, Any] = {
        "prompt_token_ids": request.prompt_token_ids,
        "priority": request.priority,
        "arrival_time": request.arrival_time,
        "sampling_params": msgspec.to_builtins(request.sampling_params),
    }
    if arrival.prompt is not None:
        data["prompt"] = arrival.prompt
    log.add("frontend", "request.arrived", request=request.request_id, data=data)
    try:
        core.add_request(request)
    except RequestRefusedError as refusal:
        result.refused[request.request_id] = str(refusal)
        log.add("engine_core", "request.refused", request=request.request_id, data={"message": str(refusal)})
    else:
        result.requests[request.request_id] = core.scheduler.requests[request.request_id]


def _note_aborts(phase: str, asked: list[str], ended: list[str], log: EventLog, result: RunResult) -> None:
    for request_id in ended:
        result.finals[request_id] = ("abort", None)
    log.add("frontend", "requests.aborted", data={"phase": phase, "asked": asked, "ended": ended})
