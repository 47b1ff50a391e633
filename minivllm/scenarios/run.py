"""Owns running a scenario (or a few prompts) on a real model, with everything that happens in one log."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from minivllm import __version__
from minivllm.analysis.invariants import LiveChecker
from minivllm.config import VllmConfig
from minivllm.core.integrity import check_integrity
from minivllm.core.messages import EngineCoreOutputs
from minivllm.engine.arg_utils import EngineArgs
from minivllm.engine.llm_engine import LLMEngine
from minivllm.scenarios.arrivals import arrivals_of
from minivllm.scenarios.definition import Scenario
from minivllm.scenarios.driver import DEFAULT_MAX_STEPS, RunResult, run
from minivllm.scenarios.interrupt import interrupt_between_steps
from minivllm.scenarios.model_shape import kv_cache_facts, model_shape
from minivllm.trace.events import EventLog, Header, Level
from minivllm.trace.reader import Log
from minivllm.trace.recorder import Recorder
from minivllm.trace.snapshot import snapshot
from minivllm.worker.kv_cache_sizing import KVCacheSizing

# Iteration, and what does not hold in it.
OnViolation = Callable[[int, str], None]


@dataclass(frozen=True, slots=True)
class TracedRun:
    """A run and its record.

    Attributes:
        log: Every event.
        result: How it ended.
        violations: Invariants that did not hold, by iteration; empty unless they were checked.
    """

    log: Log
    result: RunResult
    violations: list[dict[str, Any]]


def run_scenario(
    scenario: Scenario,
    overrides: dict[str, Any],
    *,
    log_path: Path | None = None,
    check: bool = False,
    logical: bool = False,
    level: Level = "step",
    mp: bool = False,
    logits: bool = False,
    max_steps: int = DEFAULT_MAX_STEPS,
    on_violation: OnViolation | None = None,
) -> TracedRun:
    """Run a scenario from its first arrival to its last token.

    Args:
        scenario: What to run.
        overrides: Engine arguments that replace the scenario's.
        log_path: File for the log; None keeps it in memory.
        check: Check the scheduler's invariants after every step, and all invariants on the log at the end.
        logical: Leave clocks and the machine out of the log.
        level: How much is recorded: "step"; "function" adds every call of a function on the map; "kernel" adds the
            device's time of each kernel of some steps.
        mp: Run the core in a process of its own, even if the scenario's settings do not ask for it.
        logits: Record the likeliest tokens before every sampled one.
        max_steps: Give up after so many iterations (not with a core in a process of its own).
        on_violation: Is told of each invariant that does not hold, with `check`: at the end of the iteration in which
            it happened, while the run goes on; of a core in a process of its own, when the run is over.

    Raises:
        ModelError, ValueError: See LLMEngine.from_engine_args and InputProcessor.process_inputs.
        EngineDeadError: The core's process ended early. The log says what happened until then.
    """
    # The start of the hash chain is fixed: a run repeats exactly, block names included.
    settings = {"prefix_caching_hash_seed": b"trace", **scenario.engine, **overrides}
    args = EngineArgs.from_kwargs(**{**settings, "multiprocess": False})
    if mp or settings.get("multiprocess"):
        from minivllm.scenarios.run_processes import run_in_processes

        log, result, violations = run_in_processes(scenario, args, log_path, check, logical, level, logits)
    else:
        log, result, violations = _run_here(
            scenario, args, log_path, check, logical, level, logits, max_steps, on_violation
        )
    for event in log.events:
        if event.kind == "probe.failed":
            message = f"the probe on {event.data['symbol']} failed: {event.data['message']}"
            violations.append({"iteration": event.step, "message": message})
    if check:
        from minivllm.analysis.invariants import check_log

        for verdict in check_log(log):
            violations += [
                {"iteration": step, "message": f"{verdict.invariant.id}: {message}"}
                for step, message in verdict.violations
            ]
        if on_violation is not None and (mp or settings.get("multiprocess")):
            for violation in violations:
                on_violation(violation["iteration"], violation["message"])
    return TracedRun(log, result, violations)


def _run_here(
    scenario: Scenario,
    args: EngineArgs,
    log_path: Path | None,
    check: bool,
    logical: bool,
    level: Level,
    logits: bool,
    max_steps: int,
    on_violation: OnViolation | None,
) -> tuple[Log, RunResult, list[dict[str, Any]]]:
    engine = LLMEngine.from_engine_args(args)
    arrivals = arrivals_of(scenario, engine.tokenizer, engine.input_processor, engine.output_processor)
    core = engine.engine_core
    worker = core.model_executor.worker  # type: ignore[attr-defined]
    header = make_header(engine.vllm_config, scenario, level, worker.device.type, worker.kv_cache_sizing)
    log = EventLog(header, log_path, logical=logical)
    recorder = Recorder(log, tokenizer=engine.tokenizer, device=worker.device.type, logits=logits)
    recorder.blocks.watch(core.scheduler.kv_cache_manager)
    violations: list[dict[str, Any]] = []
    checker = LiveChecker(log) if check and on_violation is not None else None

    def tell(messages: Iterable[str]) -> None:
        if on_violation is not None:
            for message in messages:
                on_violation(log.step, message)

    def after_step() -> None:
        if checker is not None:
            tell(f"{rule}: {message}" for rule, message in checker.check())

    def at_step_end() -> dict[str, Any]:
        end_if_interrupted()
        if check:
            try:
                check_integrity(core.scheduler)
            except AssertionError as error:
                violations.append({"iteration": log.step, "message": str(error)})
                tell([str(error)])
        return recorder.blocks.step_changes()

    def on_outputs(outputs: EngineCoreOutputs) -> list[str]:
        return engine.output_processor.process_outputs(outputs.outputs).reqs_to_abort

    def states(known: dict[str, Any]) -> dict[str, dict[str, Any]]:
        state = snapshot(core, worker.runner, engine.output_processor, known=known)
        return {"engine_core": state, "frontend": {"frontend": state.pop("frontend")}}

    try:
        with interrupt_between_steps() as end_if_interrupted, recorder.installation():
            recorder.process_started([("MainThread", "minivllm.scenarios.driver:Driver.step")])
            hooks: dict[str, Any] = {"at_step_end": at_step_end, "on_outputs": on_outputs, "states": states}
            result = run(core, arrivals, log, max_steps=max_steps, after_step=after_step, **hooks)
            recorder.process_ended()
    finally:
        log.close()
    return Log(log.header, log.events, log.num_dropped, path=log_path), result, violations


def make_header(
    vllm_config: VllmConfig, scenario: Scenario, level: Level, device: str, sizing: KVCacheSizing | str
) -> Header:
    """The first line of a scenario's log.

    Args:
        vllm_config: The settings; the number of blocks is known.
        scenario: What runs.
        level: How much is recorded.
        device: "cpu" or "cuda".
        sizing: The worker's report of its KV cache; of one in another process, where the number of blocks comes from.
    """
    import torch

    model_config = vllm_config.model_config
    return Header(
        config=msgspec.to_builtins(vllm_config),
        model=model_config.model,
        scenario=None if scenario.name == "prompts" else scenario.name,
        seed=model_config.seed,
        level=level,
        versions={"minivllm": __version__, "python": platform.python_version(), "torch": str(torch.__version__)},
        device=device,
        started_at=datetime.now(UTC).isoformat(timespec="seconds"),
        model_shape=model_shape(vllm_config, device),
        kv_cache=kv_cache_facts(vllm_config, device, sizing),
    )
