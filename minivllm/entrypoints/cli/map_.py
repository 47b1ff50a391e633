"""Owns `minivllm map`: draw from a log, without running anything."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from minivllm.entrypoints.cli.common import (
    AsciiOption,
    IterationOption,
    JsonOption,
    LogOption,
    RequestOption,
    ScenarioOption,
    WidthOption,
    choose_log,
    examples,
)
from minivllm.entrypoints.cli.errors import user_errors


def register(app: typer.Typer) -> None:
    """Add the group."""
    both = examples("minivllm map plan", "minivllm map plan -s mixed-batch --iteration 13")
    group = typer.Typer(help="Draw a recorded run.", epilog=both, no_args_is_help=True)
    group.command("plan", epilog=both)(user_errors(plan))
    app.add_typer(group, name="map")


def plan(
    log: LogOption = None,
    scenario: ScenarioOption = None,
    iteration: IterationOption = None,
    request: RequestOption = None,
    format_: Annotated[Literal["rich", "ascii", "json"], typer.Option("--format", help="How to draw it.")] = "rich",
    as_json: JsonOption = False,
    width: WidthOption = None,
    ascii_only: AsciiOption = False,
) -> None:
    """The plan map: who got how many tokens, who did not and why, and what the worker made of it."""
    from minivllm.entrypoints.cli.plan_view import PlanView
    from minivllm.maps.plan import plan_map

    view = PlanView(iteration, request, as_json or format_ == "json", width, ascii_only or format_ == "ascii")
    chosen = choose_log(log, scenario)
    document = plan_map(chosen)
    view.show("map-plan", document, view.choose(document), chosen.header, log=str(chosen.path), violations=[])
