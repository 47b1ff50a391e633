"""Owns a run without a model: the real scheduler and KV manager, made-up or recorded tokens."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from minivllm.core.admission import why_never
from minivllm.core.messages import EngineCoreOutputs
from minivllm.engine.core import EngineCore
from minivllm.executor.sim import SimExecutor, TokenRule, fake_token_rule
from minivllm.scenarios.driver import RunResult, run
from minivllm.scenarios.interrupt import interrupt_between_steps
from minivllm.scenarios.workload import Workload
from minivllm.trace.events import EventLog, Header
from minivllm.trace.recorder import Recorder
from minivllm.trace.snapshot import snapshot

# Gets every step's outputs; returns the requests that a frontend would take back then.
OnOutputs = Callable[[EngineCoreOutputs], list[str]]


def simulate(workload: Workload, log: EventLog, token_rule: TokenRule | None = None) -> RunResult:
    """Run a workload; everything that is decided goes into the log.

    Args:
        workload: What to run.
        log: Gets the events.
        token_rule: Picks the tokens; None for the workload's own made-up ones.
    """
    return _run(_core(workload, token_rule), workload, log)


def _core(workload: Workload, token_rule: TokenRule | None) -> EngineCore:
    return EngineCore(workload.vllm_config, SimExecutor(token_rule or fake_token_rule(workload.vocab_size)))


def _run(core: EngineCore, workload: Workload, log: EventLog, on_outputs: OnOutputs | None = None) -> RunResult:
    recorder = Recorder(log, frozenset({"engine_core"}))
    recorder.blocks.watch(core.scheduler.kv_cache_manager)

    def at_step_end() -> dict[str, Any]:
        end_if_interrupted()
        return recorder.blocks.step_changes()

    def states(known: dict[str, Any]) -> dict[str, dict[str, Any]]:
        return {"engine_core": snapshot(core, known=known)}

    with interrupt_between_steps() as end_if_interrupted, recorder.installation() as installation:
        options: dict[str, Any] = {"max_steps": workload.max_steps, "at_step_end": at_step_end, "states": states}
        if on_outputs is not None:
            options["on_outputs"] = on_outputs
        result = run(core, workload.arrivals, log, **options)
    assert not installation.failures, f"a probe failed: {installation.failures}"
    return result


def simulate_to_log(
    workload: Workload,
    path: Path | None = None,
    token_rule: TokenRule | None = None,
    on_outputs: OnOutputs | None = None,
) -> tuple[EventLog, RunResult]:
    """Run a workload with a log of its own, written to a file if there is a path.

    Args:
        workload: What to run.
        path: The file; None keeps the log in memory.
        token_rule: Picks the tokens; None for the workload's own made-up ones.
        on_outputs: Stands for a frontend: which requests it takes back after an output; None for none.
    """
    core = _core(workload, token_rule)  # before the log is opened: settings that fail leave an older log as it was
    config = msgspec.to_builtins(workload.vllm_config)
    header = Header(config=config, model="simulated", scenario=workload.name)
    log = EventLog(header, path, logical=True)
    try:
        return log, _run(core, workload, log, on_outputs)
    finally:
        log.close()


def never_finished(workload: Workload, result: RunResult) -> dict[str, str | None]:
    """The requests that a run left unfinished; with the reason if one could not have finished at all."""
    kv_cache_manager = _core(workload, None).scheduler.kv_cache_manager
    config = workload.vllm_config.scheduler_config
    return {
        request_id: why_never(request, config, kv_cache_manager)
        for request_id, request in result.requests.items()
        if request_id not in result.finals
    }
