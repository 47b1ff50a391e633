"""Owns `minivllm trace`: run prompts or a scenario on a real model, and show what was planned and what came out."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from minivllm.entrypoints.cli.choosing import check_request
from minivllm.entrypoints.cli.common import (
    AsciiOption,
    IterationOption,
    JsonOption,
    LangOption,
    ModelOption,
    RequestOption,
    ScenarioOption,
    WidthOption,
    check_outputs,
    check_text,
    examples,
    language,
    name_option,
    note,
    print_json,
    stdout_console,
)
from minivllm.entrypoints.cli.engine_options import AsyncSchedulingOption, MultiprocessOption, SetOption, with_set
from minivllm.entrypoints.cli.errors import BAD_INPUT, user_errors
from minivllm.sampling_params import SamplingParams
from minivllm.scenarios.registry import Scenario, get_scenario, prompts_scenario
from minivllm.trace.store import new_log_path

if TYPE_CHECKING:
    from minivllm.entrypoints.cli.trace_view import TraceView
    from minivllm.scenarios.run import TracedRun
    from minivllm.trace.events import Level

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
    async_scheduling: AsyncSchedulingOption = False,
    max_num_batched_tokens: Annotated[int | None, typer.Option(min=1, help="Token budget of a step.")] = None,
    max_num_seqs: Annotated[int | None, typer.Option(min=1, help="Most requests that run at once.")] = None,
    block_size: Annotated[int | None, typer.Option(min=1, help="Tokens of a KV block.")] = None,
    settings: SetOption = None,
    map_: Annotated[
        str | None,
        typer.Option(
            "--map", help="Which maps, by commas: process, state, hot, timeline, plan. Default: what suits the run."
        ),
    ] = None,
    level: Annotated[
        Literal["step", "function", "kernel"] | None,
        typer.Option(help="How much to record; default: function for the hot map, else step.", show_default=False),
    ] = None,
    logits: Annotated[
        bool, typer.Option("--logits", help="Record the likeliest tokens before every one that is sampled.")
    ] = False,
    mp: MultiprocessOption = False,
    check: Annotated[bool, typer.Option("--check", help="Check the scheduler's invariants after every step.")] = False,
    step: Annotated[bool, typer.Option("--step", help="Step through the run with keys, also backwards.")] = False,
    log: Annotated[Path | None, typer.Option("--log", help="With --step: a recorded run, not a new one.")] = None,
    lang_: LangOption = None,
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
    from minivllm.entrypoints.cli.trace_view import TraceView, parse_maps

    maps = parse_maps(map_)
    lang = language(lang_, ascii_only=ascii_only)
    sampling = _given(max_tokens=max_tokens, temperature=temperature, seed=seed)
    engine = _given(
        model=model,
        batch=batch,
        async_scheduling=async_scheduling or None,
        max_num_batched_tokens=max_num_batched_tokens,
        max_num_seqs=max_num_seqs,
        block_size=block_size,
    )
    engine = with_set(engine, settings)
    if step:
        _check_step(as_json=as_json, width=width, ascii_only=ascii_only)
    if log is not None:
        given = {
            **sampling,
            **engine,
            **_given(mp=mp or None, logits=logits or None, level=level, check=check or None, out=out, plans=plans),
        }
        _look_at(log, prompts, scenario, given, step, iteration, request, maps, lang)
        return
    chosen = _scenario(prompts, scenario, sampling)
    if engine.keys() - {"model"}:
        # What its author says of it, and where to look, is true of its own settings only.
        chosen = replace(chosen, look_at=None, note="")
    if iteration is None and chosen.look_at is not None and request is None and not as_json and not step:
        iteration = str(chosen.look_at)
    view = TraceView(maps, PlanView(iteration, request, as_json, width, ascii_only), lang)
    check_request(request, _ids(chosen))
    check_outputs({"--out": out, "--plans": plans})
    level = level or ("function" if view.wants_calls else "step")
    path = out or new_log_path(chosen.name)
    run = _run(chosen, engine, check, path, plans, level, mp, logits)
    if step:
        _step(path, iteration, request, maps, lang)
        _end(run)
    else:
        _show(chosen, run, view, lang)


def _given(**settings: Any) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if value is not None}


def _check_step(**settings: Any) -> None:
    """Refuse what contradicts stepping, before anything runs."""
    from minivllm.entrypoints.cli.errors import LackingError
    from minivllm.entrypoints.cli.terminal import is_terminal

    for name, value in settings.items():
        if value:
            option = {"as_json": "--json", "width": "--width", "ascii_only": "--ascii"}[name]
            raise typer.BadParameter(f"--step draws on this terminal, at its size: leave out {option}")
    if not is_terminal():
        raise LackingError("--step needs a terminal, and this is none; to see the maps here: leave out --step")


def _look_at(
    log: Path,
    prompts: list[str] | None,
    scenario: str | None,
    given: dict[str, Any],
    step: bool,
    iteration: str | None,
    request: str | None,
    maps: tuple[str, ...] | None,
    lang: str,
) -> None:
    """Step through a recorded run. Raises BadParameter for what only a new run can have."""
    if not step:
        raise typer.BadParameter(f"--log is for --step; to draw a recorded run: minivllm map plan --log {log}")
    if prompts or scenario is not None:
        raise typer.BadParameter("--log shows a recorded run: leave out prompts and --scenario")
    if given:
        option = "--" + next(iter(given)).replace("_", "-")
        raise typer.BadParameter(f"--log shows a recorded run, which has its settings: leave out {option}")
    _step(log, iteration, request, maps, lang)


def _step(path: Path, iteration: str | None, request: str | None, maps: tuple[str, ...] | None, lang: str) -> None:
    from minivllm.entrypoints.cli.choosing import choose_iterations
    from minivllm.entrypoints.cli.stepping import Stepper, step_through

    stepper = Stepper(path, lang, maps[0] if maps else "plan")
    if request is not None:
        stepper.find(request)
    if iteration is not None:
        stepper.go(choose_iterations(iteration, stepper.numbers)[0])
    step_through(stepper)


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


def _ids(scenario: Scenario) -> list[str]:
    """The requests that the core will know: of one that wants several answers, its children."""
    ids: list[str] = []
    for request in scenario.requests:
        count = request.sampling.get("n", 1)
        ids += [request.id] if count == 1 else [f"{index}_{request.id}" for index in range(count)]
    return ids


def _run(
    scenario: Scenario,
    engine: dict[str, Any],
    check: bool,
    path: Path,
    plans: Path | None,
    level: Level,
    mp: bool,
    logits: bool,
) -> TracedRun:
    from minivllm.scenarios.run import run_scenario
    from minivllm.trace.plan_lines import write_plan_lines

    before = _written(path)
    options: dict[str, Any] = {"check": check, "level": level, "mp": mp, "logits": logits}
    try:
        run = run_scenario(scenario, engine, log_path=path, on_violation=_note_first(), **options)
    except (KeyboardInterrupt, RuntimeError):
        if _written(path) != before:
            note(f"log: {path}, up to where the run ended")
        raise
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT):
            raise
        raise OSError(
            error.errno, f"{error.strerror}: the log needs room, or another place (--out)", str(path)
        ) from None
    if plans is not None:
        is_async = run.log.header.config["scheduler_config"]["async_scheduling"]
        write_plan_lines(plans, run.log.events, is_async=is_async)
    return run


def _note_first() -> Callable[[int, str], None]:
    """Tells of each invariant when it is broken for the first time; all that was found is told at the end."""
    broken: set[str] = set()

    def tell(step: int, message: str) -> None:
        rule = message.partition(":")[0]
        if rule not in broken:
            broken.add(rule)
            note(f"iteration {step}: {message} (the run goes on)")

    return tell


def _written(path: Path) -> int | None:
    """When a file was written last; None if there is none."""
    return path.stat().st_mtime_ns if path.exists() else None


def _show(scenario: Scenario, run: TracedRun, view: TraceView, lang: str) -> None:
    from minivllm.maps.plan import plan_map

    plan = plan_map(run.log, lang)
    chosen = view.plans.choose(plan)
    if view.plans.as_json:
        document = {"log": str(run.log.path), "iterations": chosen, "requests": plan["requests"]}
        print_json("trace", {**document, "violations": run.violations, **view.documents(run.log)})
    else:
        view.draw(run.log, plan, chosen, stdout_console(view.plans.width), scenario.note)
    _end(run)


def _end(run: TracedRun) -> None:
    """Say where the log is, what to do next, and what did not hold."""
    if run.result.truncated:
        note(f"stopped after {run.result.steps} steps: not every request finished")
    note(f"log: {run.log.path}")
    note(f"next: minivllm trace --step --log {run.log.path}")
    for violation in run.violations:
        note(f"violated in iteration {violation['iteration']}: {violation['message']}")
    if run.violations:
        raise typer.Exit(BAD_INPUT)
