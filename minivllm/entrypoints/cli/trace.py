"""Owns `minivllm trace`: run prompts or a scenario on a real model, and show what was planned and what came out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from minivllm.entrypoints.cli.common import (
    AsciiOption,
    IterationOption,
    JsonOption,
    ScenarioOption,
    WidthOption,
    choose_iterations,
    note,
    print_json,
    stdout_console,
)
from minivllm.entrypoints.cli.errors import BAD_INPUT, user_errors
from minivllm.scenarios.registry import Scenario, get_scenario

_DEFAULT_PROMPT = "Once upon a time"


def register(app: typer.Typer) -> None:
    """Add the command."""
    epilog = 'Examples: `minivllm trace "Once upon a time"` · `minivllm trace -s mixed-batch --iteration 13`'
    app.command(epilog=epilog)(user_errors(trace))


def trace(
    prompts: Annotated[list[str] | None, typer.Argument(help="Prompts to run together.", show_default=False)] = None,
    scenario: ScenarioOption = None,
    model: Annotated[str | None, typer.Option("--model", "-m", help="Model name, folder or .gguf file.")] = None,
    iteration: IterationOption = None,
    request: Annotated[
        str | None, typer.Option("--request", "-r", help="Only iterations that concern this request.")
    ] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="Output limit of each prompt.")] = 16,
    temperature: Annotated[float, typer.Option(min=0.0, help="0 is greedy.")] = 0.0,
    seed: Annotated[int | None, typer.Option(help="Seed of the draws.")] = None,
    batch: Annotated[Literal["slots", "rows"] | None, typer.Option(help="How the worker keeps its batch.")] = None,
    async_scheduling: Annotated[
        bool, typer.Option("--async-scheduling", help="Plan a step while the one before it runs.")
    ] = False,
    max_num_batched_tokens: Annotated[int | None, typer.Option(min=1, help="Token budget of a step.")] = None,
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
    if prompts and scenario:
        raise typer.BadParameter("give prompts or a scenario, not both")
    overrides = _overrides(
        model=model,
        batch=batch,
        async_scheduling=async_scheduling or None,
        max_num_batched_tokens=max_num_batched_tokens,
        block_size=block_size,
    )
    from minivllm.scenarios.run import prompts_scenario

    if scenario:
        chosen = get_scenario(scenario)
    else:
        sampling = {"temperature": temperature, **({} if seed is None else {"seed": seed})}
        chosen = prompts_scenario(prompts or [_DEFAULT_PROMPT], max_tokens, sampling)
    _run(chosen, overrides, iteration, request, check, out, plans, as_json, width, ascii_only)


def _overrides(**settings: Any) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if value is not None}


def _run(
    scenario: Scenario,
    overrides: dict[str, Any],
    iteration: str | None,
    request: str | None,
    check: bool,
    out: Path | None,
    plans: Path | None,
    as_json: bool,
    width: int | None,
    ascii_only: bool,
) -> None:
    from minivllm.maps.plan import plan_map
    from minivllm.maps.render.plan import PlanRenderer
    from minivllm.scenarios.run import run_scenario
    from minivllm.trace.plan_lines import write_plan_lines
    from minivllm.trace.store import new_log_path

    path = out or new_log_path(scenario.name)
    run = run_scenario(scenario, overrides, log_path=path, check=check)
    if plans is not None:
        is_async = run.log.header.config["scheduler_config"]["async_scheduling"]
        write_plan_lines(plans, run.log.events, is_async=is_async)
    plan = plan_map(run.log)
    if iteration is None and scenario.look_at is not None and request is None and not as_json:
        iteration = str(scenario.look_at)
    shown = choose_iterations(iteration, [entry["iteration"] for entry in plan["iterations"]])
    iterations = [entry for entry in plan["iterations"] if entry["iteration"] in shown]
    if request is not None:
        iterations = _only(request, iterations, plan["requests"])

    if as_json:
        document = {"log": str(path), "iterations": iterations, "requests": plan["requests"]}
        print_json("trace", {**document, "violations": run.violations})
    else:
        renderer = PlanRenderer(plan, run.log.header, stdout_console(width), ascii_only=ascii_only)
        renderer.draw_header()
        for entry in iterations:
            renderer.draw(entry)
        renderer.draw_requests()
        if scenario.note:
            renderer.draw_note(scenario.note)
        _say_next(scenario, path, shown, [entry["iteration"] for entry in plan["iterations"]])
    for violation in run.violations:
        note(f"violated in iteration {violation['iteration']}: {violation['message']}")
    if run.violations:
        raise typer.Exit(BAD_INPUT)


def _only(request: str, iterations: list[dict[str, Any]], requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
    known = [entry["request"] for entry in requests]
    if request not in known:
        raise ValueError(f"this run has no request {request!r}; it has {', '.join(known)}")
    return [
        entry
        for entry in iterations
        if request in entry["arrived"]
        or request in entry["aborted"]
        or any(request == e["request"] for key in ("scheduled", "not_scheduled", "finished") for e in entry[key])
    ]


def _say_next(scenario: Scenario, path: Path, shown: list[int], all_numbers: list[int]) -> None:
    note(f"log: {path}")
    if len(shown) < len(all_numbers):
        note(f"next: minivllm map plan --log {path} --iteration all")
    elif scenario.name == "prompts":
        note("next: minivllm trace -s mixed-batch")
    else:
        note(f"next: minivllm simulate -s {scenario.name}")
