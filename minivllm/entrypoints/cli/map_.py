"""Owns `minivllm map`: draw from a log, without running anything."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from minivllm.entrypoints.cli.common import (
    AsciiOption,
    IterationOption,
    LogOption,
    ScenarioOption,
    WidthOption,
    choose_iterations,
    choose_log,
    print_json,
    stdout_console,
)
from minivllm.entrypoints.cli.errors import user_errors


def register(app: typer.Typer) -> None:
    """Add the group."""
    group = typer.Typer(help="Draw a recorded run.", no_args_is_help=True)
    epilog = "Examples: `minivllm map plan` · `minivllm map plan -s mixed-batch --iteration 13`"
    group.command("plan", epilog=epilog)(user_errors(plan))
    app.add_typer(group, name="map")


def plan(
    log: LogOption = None,
    scenario: ScenarioOption = None,
    iteration: IterationOption = None,
    format_: Annotated[Literal["rich", "ascii", "json"], typer.Option("--format", help="How to draw it.")] = "rich",
    width: WidthOption = None,
    ascii_only: AsciiOption = False,
) -> None:
    """The plan map: who got how many tokens, who did not and why, and what the worker made of it."""
    from minivllm.maps.plan import plan_map
    from minivllm.maps.render.plan import PlanRenderer

    chosen = choose_log(log, scenario)
    document = plan_map(chosen)
    shown = choose_iterations(iteration, [entry["iteration"] for entry in document["iterations"]])
    iterations = [entry for entry in document["iterations"] if entry["iteration"] in shown]
    if format_ == "json":
        requests = document["requests"]
        print_json(
            "map-plan", {"log": str(chosen.path), "iterations": iterations, "requests": requests, "violations": []}
        )
        return
    renderer = PlanRenderer(document, chosen.header, stdout_console(width), ascii_only=ascii_only or format_ == "ascii")
    renderer.draw_header()
    for entry in iterations:
        renderer.draw(entry)
    renderer.draw_requests()
