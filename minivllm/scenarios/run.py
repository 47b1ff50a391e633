"""Owns running a scenario (or a few prompts) on a real model, with everything that happens in one log."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from minivllm import __version__
from minivllm.core.integrity import check_integrity
from minivllm.core.messages import EngineCoreOutputs
from minivllm.engine.arg_utils import EngineArgs
from minivllm.engine.llm_engine import LLMEngine
from minivllm.sampling_params import SamplingParams
from minivllm.scenarios.driver import Arrival, RunResult, run
from minivllm.scenarios.interrupt import interrupt_between_steps
from minivllm.scenarios.registry import STORIES, Piece, Scenario, ScenarioRequest
from minivllm.tokenizer import Tokenizer
from minivllm.trace.events import EventLog, Header
from minivllm.trace.install import Installation, merge
from minivllm.trace.probes import BlockProbes, FrontendProbes, PlanProbes, WorkerProbes
from minivllm.trace.reader import Log


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
) -> TracedRun:
    """Run a scenario from its first arrival to its last token.

    Args:
        scenario: What to run.
        overrides: Engine arguments that replace the scenario's.
        log_path: File for the log; None keeps it in memory.
        check: Check the scheduler's invariants after every step.
        logical: Leave clocks and the machine out of the log.

    Raises:
        ModelError, ValueError: See LLMEngine.from_engine_args and InputProcessor.process_inputs.
    """
    # The start of the hash chain is fixed: a run repeats exactly, block names included.
    settings = {"prefix_caching_hash_seed": b"trace", **scenario.engine, **overrides}
    engine = LLMEngine.from_engine_args(EngineArgs.from_kwargs(**settings))
    arrivals = [_arrival(engine, index, request) for index, request in enumerate(scenario.requests)]
    log = EventLog(_header(engine, scenario), log_path, logical=logical)
    scheduler = engine.engine_core.scheduler
    blocks = BlockProbes(log, scheduler.kv_cache_manager)
    violations: list[dict[str, Any]] = []

    def at_step_end() -> dict[str, Any]:
        end_if_interrupted()
        if check:
            try:
                check_integrity(scheduler)
            except AssertionError as error:
                violations.append({"iteration": log.step, "message": str(error)})
        return blocks.step_changes()

    def on_outputs(outputs: EngineCoreOutputs) -> list[str]:
        return engine.output_processor.process_outputs(outputs.outputs).reqs_to_abort

    groups = (PlanProbes(log), blocks, WorkerProbes(log), FrontendProbes(log, engine.tokenizer))
    probes = merge(group.probes() for group in groups)
    try:
        with interrupt_between_steps() as end_if_interrupted, Installation(probes) as installation:
            result = run(engine.engine_core, arrivals, log, at_step_end=at_step_end, on_outputs=on_outputs)
    finally:
        log.close()
    for symbol, failure in installation.failures.items():
        violations.append({"iteration": -1, "message": f"the probe on {symbol} failed: {failure}"})
    return TracedRun(Log(log.header, log.events, log.num_dropped, path=log_path), result, violations)


def _arrival(engine: LLMEngine, index: int, request: ScenarioRequest) -> Arrival:
    params = SamplingParams(max_tokens=request.max_tokens, **{"temperature": 0.0, **request.sampling})
    if params.n > 1:
        raise ValueError(
            f"{request.id}: n must be 1 in a scenario, got {params.n}: name each request that is to arrive"
        )
    prompt_text = request.prompt if isinstance(request.prompt, str) else None
    prompt: Any = request.prompt
    if prompt_text is None:
        prompt = {"prompt_token_ids": [i for piece in request.prompt for i in _tokens_of(engine.tokenizer, piece)]}
    try:
        core_request = engine.input_processor.process_inputs(
            request.id, prompt, params, arrival_time=float(index), priority=request.priority
        )
    except ValueError as error:
        raise ValueError(f"{request.id}: {error}") from None
    engine.output_processor.add_request(core_request, prompt_text)
    drafts = {step: _tokens_of(engine.tokenizer, piece) for step, piece in request.drafts.items()}
    return Arrival(
        request.arrival_step, core_request, request.abort_step, request.abort_phase, prompt=prompt_text, drafts=drafts
    )


def _tokens_of(tokenizer: Tokenizer | None, piece: Any) -> list[int]:
    assert isinstance(piece, Piece), "a prompt is text or pieces"
    if tokenizer is None:
        raise ValueError("this scenario cuts its prompts from a text, and the model has no tokenizer")
    tokens = tokenizer.encode(STORIES.read_text(encoding="utf-8"))
    if piece.start + piece.count > len(tokens):
        raise ValueError(f"the story text has only {len(tokens)} tokens with this model's tokenizer")
    return tokens[piece.start : piece.start + piece.count]


def _header(engine: LLMEngine, scenario: Scenario) -> Header:
    import torch

    return Header(
        config=msgspec.to_builtins(engine.vllm_config),
        model=engine.vllm_config.model_config.model,
        scenario=None if scenario.name == "prompts" else scenario.name,
        versions={"minivllm": __version__, "python": platform.python_version(), "torch": str(torch.__version__)},
        seed=engine.vllm_config.model_config.seed,
        started_at=datetime.now(UTC).isoformat(timespec="seconds"),
        device="cuda" if torch.cuda.is_available() and engine.vllm_config.model_config.device != "cpu" else "cpu",
    )
