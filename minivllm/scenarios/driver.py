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
from minivllm.trace.snapshot import request_entry

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
        parent: The request whose completion it is, if that one wants several, and its number among them.
        drafts: Draft tokens that it is given before a step, by iteration: what a proposer would have guessed.
    """

    step: int
    request: EngineCoreRequest
    abort_step: int | None = None
    abort_phase: Literal["before", "mid", "frontend"] = "before"
    prompt: str | None = None
    parent: tuple[str, int] | None = None
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


# The whole state by process; gets what is known of every request so far.
States = Callable[[dict[str, Any]], dict[str, dict[str, Any]]]


class Driver:
    """A run in progress.

    Args:
        core: A fresh engine core.
        arrivals: Who comes when; those of one step come in list order.
        log: Gets the events that only the driver knows; `log.step` is kept up to date.
        max_steps: Give up after so many iterations.
        at_step_end: Called after every step; its facts join the step's last event.
        on_outputs: Called with every step's outputs; returns ids that the frontend wants aborted (a stop string).
        add_request: Hands a request over, where that is not simply a call of the core.
        states: Gives the whole state, for keyframes; None for a log without them.
        after_step: Called when a step is over, and told in the log.

    Attributes:
        result: How it goes.
    """

    def __init__(
        self,
        core: EngineCore,
        arrivals: list[Arrival],
        log: EventLog,
        *,
        max_steps: int = DEFAULT_MAX_STEPS,
        at_step_end: Callable[[], dict[str, Any]] = dict,
        on_outputs: Callable[[EngineCoreOutputs], list[str]] = lambda outputs: [],
        add_request: Callable[[EngineCoreRequest], None] | None = None,
        states: States | None = None,
        after_step: Callable[[], None] = lambda: None,
    ) -> None:
        self._after_step = after_step
        self.result = RunResult(0, {}, {}, {}, False, 0)
        self._core = core
        self._log = log
        self._max_steps = max_steps
        self._at_step_end = at_step_end
        self._on_outputs = on_outputs
        self._add_request = core.add_request if add_request is None else add_request
        self._states = states
        self._arrived: dict[str, tuple[int, int]] = {}  # step, and tokens of the prompt
        self._due: dict[int, list[Arrival]] = defaultdict(list)
        self._drafts: dict[int, dict[str, list[int]]] = defaultdict(dict)
        phases = ("before", "mid", "frontend")
        self._aborts: dict[str, dict[int, list[str]]] = {phase: defaultdict(list) for phase in phases}
        for arrival in arrivals:
            self._due[arrival.step].append(arrival)
            for step, tokens in arrival.drafts.items():
                self._drafts[step][arrival.request.request_id] = tokens
            if arrival.abort_step is not None:
                self._aborts[arrival.abort_phase][arrival.abort_step].append(arrival.request.request_id)
        self._last_event = max([0, *self._due, *(step for steps in self._aborts.values() for step in steps)])

    def step(self) -> bool:
        """Go on by one iteration. Returns whether the run is over."""
        core, log, result = self._core, self._log, self.result
        step = log.step = result.steps
        if self._states is not None and log.wants_keyframe():
            log.add_keyframe(self._states(self._known()))
        for arrival in self._due.get(step, ()):
            self._arrive(arrival)
        if step in self._drafts:
            core.scheduler.update_draft_token_ids(self._drafts[step])
            log.add("engine_core", "drafts.given", data=self._drafts[step])
        if asked := self._aborts["before"].get(step):
            self._note_aborts("before", asked, core.abort_requests(asked))
        mid = self._aborts["mid"].get(step, [])
        core.aborts_queue.extend([request_id] for request_id in mid)
        unfinished = set(core.scheduler.requests) if mid else set()
        if not core.scheduler.has_requests():
            log.add("engine_core", "step.idle")
        outputs = core.step()
        core._process_aborts_queue()  # those of a step whose output is still to come
        if mid:
            ended = [i for i in mid if i in unfinished and i not in core.scheduler.requests]
            self._note_aborts("mid", mid, ended)
        if outputs is not None:
            for output in outputs.outputs:
                if output.finish_reason is not None:
                    result.finals[output.request_id] = (str(output.finish_reason), output.stop_reason)
        asked = self._on_outputs(outputs) if outputs is not None else []
        if asked := [*asked, *self._aborts["frontend"].get(step, [])]:
            self._note_aborts("frontend", asked, core.abort_requests(asked))
        log.add("engine_core", "step.end", data=queue_state(core.scheduler) | self._at_step_end())
        self._after_step()
        result.steps += 1
        result.free_blocks = core.scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
        if not core.has_work() and result.steps > self._last_event:
            return True
        if result.steps >= self._max_steps:
            result.truncated = True
            sampled = _sampled_in_flight(core)
            log.add("engine_core", "run.truncated", data={"max_steps": self._max_steps, "sampled": sampled})
        return result.truncated

    def _arrive(self, arrival: Arrival) -> None:
        request, log = arrival.request, self._log
        data = arrival_facts(request)
        if arrival.prompt is not None:
            data["prompt"] = arrival.prompt
        if arrival.parent is not None:
            data["parent"], data["index"] = arrival.parent
        log.add("frontend", "request.arrived", request=request.request_id, data=data)
        self._arrived[request.request_id] = (arrival.step, len(request.prompt_token_ids))
        try:
            self._add_request(request)
        except RequestRefusedError as refusal:
            self.result.refused[request.request_id] = str(refusal)
            log.add("engine_core", "request.refused", request=request.request_id, data={"message": str(refusal)})
        else:
            self.result.requests[request.request_id] = self._core.scheduler.requests[request.request_id]

    def _note_aborts(self, phase: str, asked: list[str], ended: list[str]) -> None:
        for request_id in ended:
            self.result.finals[request_id] = ("abort", None)
        self._log.add("frontend", "requests.aborted", data={"phase": phase, "asked": asked, "ended": ended})

    def _known(self) -> dict[str, Any]:
        """Every request so far, in order of arrival: the core forgets those that have ended, or were refused."""
        known = {}
        for request_id, (step, num_tokens) in self._arrived.items():
            request = self.result.requests.get(request_id)
            if request is None:
                entry = {"status": "REFUSED", "num_prompt_tokens": num_tokens, "num_tokens": num_tokens}
            else:
                entry = request_entry(request)
            known[request_id] = {**entry, "arrived": step}
        return known


def arrival_facts(request: EngineCoreRequest) -> dict[str, Any]:
    """What the log says of a request that comes."""
    facts = {
        "prompt_token_ids": request.prompt_token_ids,
        "priority": request.priority,
        "arrival_time": request.arrival_time,
        "sampling_params": msgspec.to_builtins(request.sampling_params, str_keys=True),
    }
    if request.cache_salt is not None:
        facts["cache_salt"] = request.cache_salt
    if request.lora_request is not None:
        facts["lora"] = [request.lora_request.name, request.lora_request.path]
    return facts


def run(core: EngineCore, arrivals: list[Arrival], log: EventLog, **options: Any) -> RunResult:
    """Run until everyone is done. Arguments: see `Driver`."""
    driver = Driver(core, arrivals, log, **options)
    while not driver.step():
        pass
    return driver.result


def _sampled_in_flight(core: EngineCore) -> dict[str, list[int]]:
    """What the last step's plan sampled, if it was cut off before its output was committed (async scheduling)."""
    outputs = [future.result() for _, future in core.batch_queue]
    return {i: list(output.sampled_token_ids[k]) for output in outputs for i, k in output.req_id_to_index.items()}
