"""Owns `minivllm trace`: run prompts or a scenario on a real model, and show what was planned and what came out."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from minivllm.entrypoints.cli.common import (
    AsciiOption,
    IterationOption,
    JsonOption,
    ModelOption,
    RequestOption,
    ScenarioOption,
    WidthOption,
    check_outputs,
    check_text,
    examples,
    name_option,
    note,
)
from minivllm.entrypoints.cli.errors import BAD_INPUT, user_errors
from minivllm.sampling_params import SamplingParams
from minivllm.scenarios.registry import Scenario, get_scenario, prompts_scenario

if TYPE_CHECKING:
    from minivllm.entrypoints.cli.plan_view import PlanView
    from minivllm.scenarios.run import TracedRun

_DEFAULT_PROMPT = "Once upon a time"
_DEFAULT_MAX_TOKENS = 16


def register(app: typer.Typer) -> None:
    """Add the command."""
    epilog = examples('minivllm trace "Once upon a time"', "minivllm trace -s mixed-batch --iteration 13")
    app.command(epilog=epilog)(user_errors(trace))


def trace(
    prompts: Annotated[list[str] | None, typer.Argument(help="Prompts to run together.", show_default=False)] = None,
    scenario: ScenarioOption = None,
    model: ModelOption = None,
    iteration: IterationOption = None,
    request: RequestOption = None,
    max_tokens: Annotated[
        int | None,
        typer.Option(min=1, help=f"Output limit of each prompt; default: {_DEFAULT_MAX_TOKENS}.", show_default=False),
    ] = None,
    temperature: Annotated[float | None, typer.Option(min=0.0, help="0 is greedy, the default here.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the draws.")] = None,
    batch: Annotated[Literal["slots", "rows"] | None, typer.Option(help="How the worker keeps its batch.")] = None,
    async_scheduling: Annotated[
        bool, typer.Option("--async-scheduling", help="Plan a step while the one before it runs.")
    ] = False,
    max_num_batched_tokens: Annotated[int | None, typer.Option(min=1, help="Token budget of a step.")] = None,
    max_num_seqs: Annotated[int | None, typer.Option(min=1, help="Most requests that run at once.")] = None,
    block_size: Annotated[int | None, typer.Option(min=1, help="Tokens of a KV block.")] = None,
    check: Annotated[bool, typer.Option("--check", help="Check the scheduler's invariants after every step.")] = False,
    out: Annotated[Path | None, typer.Option("--out", help="Where to write the log.")] = None,
    plans: Annotated[
        Path | None, typer.Option("--plans", help="Also write the plans in vLLM's comparison format.")
    ] = None,
    as_json: JsonOption = False,
    width: WidthOption = None,
    ascii_only: AsciiOption = False,
) -> None:
    """Run prompts or a scenario in the real engine, and draw it iteration by iteration.

    Without arguments a built-in prompt runs on the built-in model. The log of the run is kept for later questions.
    """
    from minivllm.entrypoints.cli.plan_view import PlanView

    chosen = _scenario(prompts, scenario, _given(max_tokens=max_tokens, temperature=temperature, seed=seed))
    engine = _given(
        model=model,
        batch=batch,
        async_scheduling=async_scheduling or None,
        max_num_batched_tokens=max_num_batched_tokens,
        max_num_seqs=max_num_seqs,
        block_size=block_size,
    )
    if engine.keys() - {"model"}:
        # What its author says of it, and where to look, is true of its own settings only.
        chosen = replace(chosen, look_at=None, note="")
    if iteration is None and chosen.look_at is not None and request is None and not as_json:
        iteration = str(chosen.look_at)
    view = PlanView(iteration, request, as_json, width, ascii_only)
    _check_request(request, chosen)
    check_outputs({"--out": out, "--plans": plans})
    _show(chosen, _run(chosen, engine, check, out, plans), view)


def _given(**settings: Any) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if value is not None}


def _scenario(prompts: list[str] | None, name: str | None, sampling: dict[str, Any]) -> Scenario:
    """What to run: a named scenario as it stands, or prompts with what was asked of their sampling."""
    if name is None:
        try:
            SamplingParams(**sampling)
        except ValueError as error:
            raise ValueError(name_option(str(error), sampling)) from None
        for number, prompt in enumerate(prompts or []):
            check_text(prompt, f"R{number}: the prompt")
        max_tokens = sampling.pop("max_tokens", _DEFAULT_MAX_TOKENS)
        return prompts_scenario(prompts or [_DEFAULT_PROMPT], max_tokens, sampling)
    if prompts:
        raise typer.BadParameter("give prompts or a scenario, not both")
    if sampling:
        option = "--" + next(iter(sampling)).replace("_", "-")
        raise typer.BadParameter(f"a scenario has its own sampling: leave out {option}")
    return get_scenario(name)


def _check_request(request: str | None, scenario: Scenario) -> None:
    known = [entry.id for entry in scenario.requests]
    if request is not None and request not in known:
        raise ValueError(f"this run has no request {request!r}; it has {', '.join(known)}")


def _run(scenario: Scenario, engine: dict[str, Any], check: bool, out: Path | None, plans: Path | None) -> TracedRun:
    from minivllm.scenarios.run import run_scenario
    from minivllm.trace.plan_lines import write_plan_lines
    from minivllm.trace.store import new_log_path

    run = run_scenario(scenario, engine, log_path=out or new_log_path(scenario.name), check=check)
    if plans is not None:
        is_async = run.log.header.config["scheduler_config"]["async_scheduling"]
        write_plan_lines(plans, run.log.events, is_async=is_async)
    return run


def _show(scenario: Scenario, run: TracedRun, view: PlanView) -> None:
    from minivllm.maps.plan import plan_map

    plan = plan_map(run.log)
    chosen = view.choose(plan)
    path, violations = str(run.log.path), run.violations
    view.show("trace", plan, chosen, run.log.header, log=path, violations=violations, remark=scenario.note)
    if run.result.truncated:
        note(f"stopped after {run.result.steps} steps: not every request finished")
    note(f"log: {path}")
    if len(chosen) < len(plan["iterations"]):
        note(f"next: minivllm map plan --log {path} --iteration all")
    elif scenario.name == "prompts":
        note("next: minivllm trace -s mixed-batch")
    else:
        note(f"next: minivllm simulate -s {scenario.name}")
    for violation in violations:
        note(f"violated in iteration {violation['iteration']}: {violation['message']}")
    if violations:
        raise typer.Exit(BAD_INPUT)
