"""Owns a core in its own process that records itself, and, for a scenario, holds every request until its step.

A pinned core takes all requests first. Then it runs the scenario's driver in its busy loop, and after each output waits
for the frontend's answer: what would depend on who is faster does not, and the run repeats exactly.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from minivllm.config import VllmConfig
from minivllm.core.integrity import check_integrity
from minivllm.core.messages import EngineCoreOutputs, EngineCoreRequest
from minivllm.core.request import Request
from minivllm.engine.core_proc import EngineCoreProc
from minivllm.engine.wire import AbortRequests, TraceSettings, UtilityCall, UtilityOutput
from minivllm.executor.base import Executor
from minivllm.scenarios.driver import Arrival, Driver, arrival_facts
from minivllm.trace.events import EventLog, Header
from minivllm.trace.probes.calls import LOOPS
from minivllm.trace.recorder import Recorder
from minivllm.trace.snapshot import request_entry, snapshot
from minivllm.trace.wrap import Around, Call, Probe

RUN_PINNED = "run_pinned"

MakeCore = Callable[[VllmConfig, Executor, str], EngineCoreProc]


class PinnedArrival(msgspec.Struct, frozen=True):
    """An `Arrival` without its request, which comes as a message of its own."""

    request_id: str
    step: int
    abort_step: int | None
    abort_phase: str
    prompt: str | None
    parent: tuple[str, int] | None
    drafts: dict[int, list[int]]


class PinnedResult(msgspec.Struct, frozen=True):
    """A `RunResult` and the violations, for the way back."""

    steps: int
    outputs: dict[str, list[int]]
    num_preemptions: dict[str, int]
    finals: dict[str, tuple[str, int | str | None]]
    refused: dict[str, str]
    truncated: bool
    free_blocks: int
    violations: list[dict[str, Any]]


@contextmanager
def recorded_core(settings: TraceSettings, device: str) -> Iterator[MakeCore]:
    """Record this process in the block. Gives what makes its core: install first, threads start with the core.

    Args:
        settings: What to record.
        device: As the settings of the engine name it.
    """
    # What registers symbols is imported before they are looked up.
    worker_module = importlib.import_module("minivllm.worker.worker")
    importlib.import_module("minivllm.executor.uniproc")
    device = worker_module._device(device).type
    log = EventLog(Header(level=settings.level, device=device), Path(settings.path))  # type: ignore[arg-type]
    recorder = Recorder(log, frozenset({"engine_core", "worker"}), device=device, logits=settings.logits)
    steps = None if settings.pinned else StepProbes(recorder)

    def make_core(vllm_config: VllmConfig, executor: Executor, folder: str) -> EngineCoreProc:
        core: EngineCoreProc
        if steps is None:
            core = PinnedCoreProc(vllm_config, executor, folder, recorder, check=settings.check)
        else:
            core = EngineCoreProc(vllm_config, executor, folder)
        recorder.blocks.watch(core.scheduler.kv_cache_manager)
        names = ["MainThread", "process_input_sockets", "process_output_sockets"]
        recorder.process_started(list(zip(names, LOOPS, strict=True)))
        return core

    with recorder.installation([] if steps is None else [steps]):
        try:
            yield make_core
        finally:
            log.close()


class StepProbes:
    """Counts the steps of a core that is driven by whoever sends requests, and ends each with a `step.end`.

    Args:
        recorder: Of this process.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        # Each request and the step before which it came; an ended one as the entry that a keyframe has of it.
        self._requests: dict[str, tuple[int, Any]] = {}

    def probes(self) -> dict[str, Probe]:
        probe = Around(self._begin, self._end)
        core = "minivllm.engine.core:EngineCore"
        return {
            f"{core}.step_sync": probe,
            f"{core}.step_with_batch_queue": probe,
            f"{core}.preprocess_add_request": self._arrived,
        }

    def _arrived(self, call: Call) -> None:
        request, log = call.args[1], self._recorder.log
        self._requests[request.request_id] = (max(log.step, 0), call.result)
        log.add("frontend", "request.arrived", request=request.request_id, data=arrival_facts(request))

    def _known(self, scheduler: Any) -> dict[str, Any]:
        """Every request that the scheduler has, or had: it forgets those that have ended."""
        known = {}
        for request_id, (step, request) in list(self._requests.items()):
            if isinstance(request, Request):
                if not request.is_finished:
                    if request_id in scheduler.requests:
                        known[request_id] = {"arrived": step}
                    continue
                # Its tokens are not needed any more.
                self._requests[request_id] = (step, request := request_entry(request))
            known[request_id] = {**request, "arrived": step}
        return known

    def _begin(self, args: tuple[Any, ...]) -> None:
        log = self._recorder.log
        log.step += 1
        if log.wants_keyframe():
            log.add_keyframe({"engine_core": core_state(args[0], self._known(args[0].scheduler))})

    def _end(self, call: Call) -> None:
        self._recorder.end_step(call.args[0].scheduler)


def core_state(core: Any, known: dict[str, Any]) -> dict[str, Any]:
    """What the core and its worker know; the frontend's part is not here."""
    worker = getattr(core.model_executor, "worker", None)
    state = snapshot(core, None if worker is None else worker.runner, known=known)
    del state["frontend"]
    return state


class PinnedCoreProc(EngineCoreProc):
    """An engine core whose busy loop runs a scenario.

    Args:
        vllm_config, executor, folder: See `EngineCoreProc`.
        recorder: Of this process.
        check: Check the scheduler's invariants after every step.
    """

    def __init__(
        self, vllm_config: VllmConfig, executor: Executor, folder: str, recorder: Recorder, *, check: bool
    ) -> None:
        super().__init__(vllm_config, executor, folder)
        self._recorder = recorder
        self._check = check
        self._held: dict[str, Request] = {}
        self._driver: Driver | None = None
        self._call_id = 0
        self._violations: list[dict[str, Any]] = []

    def _process_input_queue(self) -> None:
        """Hold requests until the scenario is told. During a run its answers are taken where they are waited for."""
        while self._driver is None:
            message = self.input_queue.get()
            if isinstance(message, Request):
                self._held[message.request_id] = message
            elif isinstance(message, UtilityCall) and message.method == RUN_PINNED:
                self._begin(message)
            else:
                self._handle_client_request(message)

    def _process_engine_step(self) -> None:
        assert self._driver is not None, "the queue was waited for until there is a run"
        if not self._driver.step():
            return
        result = self._driver.result
        self._recorder.process_ended()
        self._recorder.log.close()
        answer = PinnedResult(
            result.steps,
            {i: list(request.output_token_ids) for i, request in result.requests.items()},
            {i: request.num_preemptions for i, request in result.requests.items()},
            result.finals,
            result.refused,
            result.truncated,
            result.free_blocks,
            self._violations,
        )
        self._driver = None
        self.output_queue.put(EngineCoreOutputs([]))  # nothing more comes
        self.output_queue.put(UtilityOutput(self._call_id, msgspec.to_builtins(answer)))

    def _begin(self, call: UtilityCall) -> None:
        arrivals = msgspec.convert(call.args[0], list[PinnedArrival])
        self._call_id = call.call_id
        self._driver = Driver(
            self,
            [self._arrival(pinned) for pinned in arrivals],
            self._recorder.log,
            at_step_end=self._at_step_end,
            on_outputs=self._on_outputs,
            add_request=lambda request: self.scheduler.add_request(self._held[request.request_id]),
            states=lambda known: {"engine_core": core_state(self, known)},
        )

    def _arrival(self, pinned: PinnedArrival) -> Arrival:
        held = self._held[pinned.request_id]
        request = EngineCoreRequest(
            held.request_id, held.prompt_token_ids, held.sampling_params, held.arrival_time, held.priority
        )
        return Arrival(
            pinned.step,
            request,
            pinned.abort_step,
            pinned.abort_phase,  # type: ignore[arg-type]
            pinned.prompt,
            pinned.parent,
            pinned.drafts,
        )

    def _at_step_end(self) -> dict[str, Any]:
        if self._check:
            try:
                check_integrity(self.scheduler)
            except AssertionError as error:
                self._violations.append({"iteration": self._recorder.log.step, "message": str(error)})
        return self._recorder.blocks.step_changes()

    def _on_outputs(self, outputs: EngineCoreOutputs) -> list[str]:
        """Send a step's outputs, and wait until the frontend has said whom it gives up."""
        if not outputs.outputs:
            return []
        self.output_queue.put(outputs)
        message = self.input_queue.get()
        if isinstance(message, Exception):
            raise message
        assert isinstance(message, AbortRequests), "an output is answered before anything else is sent"
        self.aborts_queue.popleft()  # its twin: the driver ends these requests itself
        return message.request_ids
