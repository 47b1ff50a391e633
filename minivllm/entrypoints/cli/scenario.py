"""Owns `minivllm scenario`: the named runs."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table

from minivllm.entrypoints.cli.common import JsonOption, complete_scenario, examples, note, print_json, stdout_console
from minivllm.entrypoints.cli.errors import user_errors
from minivllm.scenarios.registry import Piece, Scenario, all_scenarios, get_scenario
from minivllm.trace.events import Level

NameArgument = Annotated[str, typer.Argument(help="Name of a scenario.", autocompletion=complete_scenario)]


def register(app: typer.Typer) -> None:
    """Add the group."""
    group_epilog = examples("minivllm scenario list", "minivllm scenario show hello")
    group = typer.Typer(help="Named, seeded runs with their recorded logs.", epilog=group_epilog, no_args_is_help=True)
    list_epilog = examples("minivllm scenario list", "minivllm scenario list --json")
    group.command("list", epilog=list_epilog)(user_errors(list_))
    show_epilog = examples("minivllm scenario show hello", "minivllm scenario show mixed-batch --json")
    group.command("show", epilog=show_epilog)(user_errors(show))
    record_epilog = examples("minivllm scenario record hello", "minivllm scenario record hello chunked")
    group.command("record", epilog=record_epilog)(user_errors(record))
    app.add_typer(group, name="scenario")


def list_(as_json: JsonOption = False) -> None:
    """List the scenarios, in the order in which to meet them."""
    if as_json:
        entries = [{"name": s.name, "title": s.title, "teaches": s.teaches} for s in all_scenarios()]
        print_json("scenario-list", {"scenarios": entries})
        return
    table = Table(box=None, pad_edge=False)
    table.add_column("scenario", style="bold", no_wrap=True)
    table.add_column("what happens, and what it teaches")
    for scenario in all_scenarios():
        table.add_row(scenario.name, f"{scenario.title}. {scenario.teaches}")
    stdout_console(None).print(table)
    note("next: minivllm trace -s hello")


def show(name: NameArgument, as_json: JsonOption = False) -> None:
    """Show a scenario's settings and requests."""
    scenario = get_scenario(name)
    requests = [
        {
            "request": request.id,
            "prompt": request.prompt if isinstance(request.prompt, str) else None,
            "num_prompt_tokens": None if isinstance(request.prompt, str) else _num_tokens(request.prompt),
            "arrival_step": request.arrival_step,
            "max_tokens": request.max_tokens,
        }
        for request in scenario.requests
    ]
    if as_json:
        head = {"name": scenario.name, "title": scenario.title, "teaches": scenario.teaches}
        print_json("scenario", {**head, "engine": scenario.engine, "requests": requests})
        return
    print(f"{scenario.name}: {scenario.title}\n{scenario.teaches}\n")
    print("engine    " + "  ".join(f"{key}={value}" for key, value in scenario.engine.items()))
    for request in requests:
        what = repr(request["prompt"]) if request["prompt"] else f"{request['num_prompt_tokens']} tokens"
        print(f"{request['request']:<9} step {request['arrival_step']:<4} {what}, up to {request['max_tokens']} more")
    if scenario.note:
        print(f"\n{scenario.note}")
    note(f"next: minivllm trace -s {scenario.name}")


def record(
    names: Annotated[
        list[str] | None, typer.Argument(help="Names of scenarios.", autocompletion=complete_scenario)
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="All of them.")] = False,
) -> None:
    """Run scenarios anew and replace the logs that ship with the package."""
    if bool(names) == all_:
        raise typer.BadParameter("give names of scenarios, or --all for all of them")
    for scenario in [get_scenario(name) for name in names] if names else all_scenarios():
        _record(scenario)


def _record(scenario: Scenario) -> None:
    from minivllm.scenarios.run import run_scenario

    path = scenario.log_path
    # Beside the old log, so that a run that fails leaves it as it was.
    unfinished = path.with_name(f"{scenario.name}.unfinished.gz")
    try:
        # With times it is recorded for its times: every call has one.
        is_logical = scenario.clock == "logical"
        level: Level = "step" if is_logical else "function"
        run = run_scenario(scenario, {}, log_path=unfinished, check=True, logical=is_logical, level=level)
        if run.violations:
            violation = run.violations[0]
            raise ValueError(
                f"{scenario.name}: not recorded: iteration {violation['iteration']} violated: {violation['message']}"
            )
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    note(f"{scenario.name}: recorded {len(run.log.events)} events of {run.result.steps} iterations: {path}")


def _num_tokens(prompt: tuple[Piece | int, ...]) -> int:
    return sum(1 if isinstance(part, int) else part.count for part in prompt)
