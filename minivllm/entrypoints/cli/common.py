"""Owns what several commands share: consoles, JSON, choosing a log, choosing iterations."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from minivllm.scenarios.registry import all_scenarios, get_scenario
from minivllm.trace.reader import Log, LogError, read_log
from minivllm.trace.store import newest_log


def complete_scenario(incomplete: str) -> list[str]:
    """Names of scenarios, for the shell's completion."""
    return [scenario.name for scenario in all_scenarios() if scenario.name.startswith(incomplete)]


ScenarioOption = Annotated[
    str | None,
    typer.Option(
        "--scenario", "-s", help="A named run (see `minivllm scenario list`).", autocompletion=complete_scenario
    ),
]
LogOption = Annotated[Path | None, typer.Option("--log", help="A recorded log; default: the newest one.")]
IterationOption = Annotated[
    str | None,
    typer.Option("--iteration", "-i", help="Which iterations: N, A:B, last or all.", metavar="N|A:B|last|all"),
]
WidthOption = Annotated[int | None, typer.Option(min=40, help="Columns to draw for; default: the terminal's.")]
AsciiOption = Annotated[bool, typer.Option("--ascii", help="Use no character beyond ASCII.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of a picture.")]


def stdout_console(width: int | None) -> Console:
    """Where pictures go. Piped output has 80 columns unless a width is given."""
    return Console(width=width, highlight=False, soft_wrap=False)


def note(message: str) -> None:
    """Progress and hints go to stderr, so that stdout holds nothing but data."""
    print(message, file=sys.stderr, flush=True)


def print_json(kind: str, document: dict[str, Any]) -> None:
    """One JSON document, with its schema first."""
    print(json.dumps({"schema": f"minivllm.{kind}/1", **document}, ensure_ascii=False))


def choose_log(log: Path | None, scenario: str | None) -> Log:
    """The log that a command reads: a file, a scenario's recorded run, or the newest.

    Raises:
        LogError: There is none, or it cannot be read.
        UnknownScenarioError: No scenario has that name.
    """
    if log is not None and scenario is not None:
        raise LogError("--log and --scenario exclude each other: give one")
    if log is not None:
        return read_log(log)
    if scenario is not None:
        path = get_scenario(scenario).log_path
        if not path.exists():
            raise LogError(f"scenario {scenario!r} has no recorded log; run: minivllm trace -s {scenario}")
        return read_log(path)
    newest = newest_log()
    if newest is None:
        raise LogError("there is no log yet; run: minivllm trace")
    return read_log(newest)


def choose_iterations(spec: str | None, numbers: list[int]) -> list[int]:
    """The iterations that a user asked for.

    Args:
        spec: N, A:B (both included), last, all, or None for all.
        numbers: Those that the run has.

    Raises:
        ValueError: It is written wrongly, or the run has no such iteration.
    """
    if spec is None or spec == "all":
        return numbers
    if spec == "last":
        return numbers[-1:]
    first_text, colon, last_text = spec.partition(":")
    try:
        first = int(first_text) if first_text or not colon else numbers[0]
        last = (int(last_text) if last_text else numbers[-1]) if colon else first
    except ValueError:
        raise ValueError(f"--iteration takes N, A:B, last or all, not {spec!r}") from None
    chosen = [number for number in numbers if first <= number <= last]
    if not chosen:
        raise ValueError(f"there is no iteration {spec}: this run has {numbers[0]} to {numbers[-1]}")
    return chosen
