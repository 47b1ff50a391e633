"""Owns `minivllm check`: hold a log against every invariant, and show the place where one does not hold."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from minivllm.entrypoints.cli.common import (
    AsciiOption,
    JsonOption,
    LogOption,
    ScenarioOption,
    WidthOption,
    choose_log,
    examples,
    note,
    print_json,
    stdout_console,
)
from minivllm.entrypoints.cli.errors import BAD_INPUT, user_errors

if TYPE_CHECKING:
    from rich.console import Console

    from minivllm.analysis.invariants import Verdict
    from minivllm.trace.reader import Log

_MARKS = {"ok": "✓", "violated": "✗", "not_applicable": "–"}
_ASCII_MARKS = {"ok": "ok ", "violated": "BAD", "not_applicable": " - "}
_COLOURS = {"ok": "green", "violated": "bold red", "not_applicable": "dim"}
# What some rules need is recorded only if it is asked for.
_HOW: dict[tuple[str, ...], str] = {("logits",): "; trace with --logits"}
# Of one invariant, on the screen; JSON has more.
_SHOWN = 3

InvariantOption = Annotated[
    list[str] | None, typer.Option("--invariant", help="Only this one, e.g. INV-03; may be given again.")
]


def register(app: typer.Typer) -> None:
    """Add the command."""
    epilog = examples("minivllm check -s mixed-batch", "minivllm check -s kv-pressure --json")
    app.command(epilog=epilog)(user_errors(check))


def check(
    log: LogOption = None,
    scenario: ScenarioOption = None,
    invariant: InvariantOption = None,
    as_json: JsonOption = False,
    width: WidthOption = None,
    ascii_only: AsciiOption = False,
) -> None:
    """Check a run against every invariant of the engine, one line each.

    Ends with 1 if one does not hold, and shows the part of the map where it broke; and if the log holds no complete
    iteration, for then nothing was checked.
    """
    from minivllm.analysis.invariants import check_log

    wanted = _wanted(invariant)
    chosen = choose_log(log, scenario)
    num_iterations = len({event.step for event in chosen.events if event.kind == "step.end"})
    verdicts = [verdict for verdict in check_log(chosen) if verdict.invariant.id in wanted]
    failed = [verdict for verdict in verdicts if verdict.status == "violated"]
    if as_json:
        passed = sum(verdict.status == "ok" for verdict in verdicts)
        document = {"passed": passed, "failed": len(failed), "invariants": [verdict.as_dict() for verdict in verdicts]}
        print_json("check", {"log": str(chosen.path), "iterations": num_iterations, **document})
    elif num_iterations:
        console = stdout_console(width)
        _draw(verdicts, console, ascii_only)
        if failed:
            _draw_place(failed[0], chosen, console, ascii_only)
        _say_next(verdicts, chosen, scenario)
    if not num_iterations:
        note("nothing was checked: the log holds no complete iteration")
    if failed or not num_iterations:
        raise typer.Exit(BAD_INPUT)


def _wanted(asked: list[str] | None) -> set[str]:
    import difflib

    from minivllm.analysis.invariants import all_invariants

    known = [rule.id for rule in all_invariants()]
    for name in asked or ():
        if name.upper() not in known:
            close = difflib.get_close_matches(name.upper(), known, 1)
            hint = f"did you mean {close[0]}?" if close else f"there are {known[0]} to {known[-1]}"
            raise ValueError(f"there is no invariant {name!r}; {hint}")
    return {name.upper() for name in asked} if asked else set(known)


def _draw(verdicts: list[Verdict], console: Console, ascii_only: bool) -> None:
    from rich.table import Table
    from rich.text import Text

    from minivllm.maps.render.style import to_ascii

    marks = _ASCII_MARKS if ascii_only else _MARKS
    table = Table.grid(padding=(0, 1))
    for verdict in verdicts:
        colour = _COLOURS[verdict.status]
        said = "\n".join(_said(verdict))
        style = "dim" if verdict.status == "not_applicable" else ""
        mark, name = Text(marks[verdict.status], style=colour), Text(verdict.invariant.id, style=colour)
        table.add_row(mark, name, Text(to_ascii(said) if ascii_only else said, style=style, overflow="fold"))
    console.print(table)


def _said(verdict: Verdict) -> list[str]:
    rule = verdict.invariant
    lines = [rule.sentence]
    if verdict.status == "not_applicable":
        lines[0] += f" (not checked: the log holds none of {', '.join(rule.needs)}{_HOW.get(rule.needs, '')})"
    lines += [f"iteration {step}: {message}" for step, message in verdict.violations[:_SHOWN]]
    if verdict.num_violations > _SHOWN:
        lines.append(f"and {verdict.num_violations - _SHOWN} more")
    if verdict.status == "violated":
        lines += [f"why it matters: {rule.reason}", f"seen before: {rule.bug}"]
    return lines


def _draw_place(verdict: Verdict, log: Log, console: Console, ascii_only: bool) -> None:
    """The map of the first iteration in which an invariant does not hold. A broken log may be beyond drawing."""
    from minivllm.analysis.iteration import BROKEN
    from minivllm.entrypoints.cli.map_view import MapView

    step = verdict.violations[0][0]
    console.print()
    try:
        MapView(verdict.invariant.map, str(step), None, ascii_only).draw(log, console)
    except BROKEN:
        note(f"the {verdict.invariant.map} map of iteration {step} cannot be drawn: its events do not fit together")


def _say_next(verdicts: list[Verdict], log: Log, scenario: str | None) -> None:
    failed = [verdict for verdict in verdicts if verdict.status == "violated"]
    source = f"-s {scenario}" if scenario is not None else f"--log {log.path}"
    if failed:
        note("1 invariant does not hold" if len(failed) == 1 else f"{len(failed)} invariants do not hold")
        first = failed[0]
        note(f"next: minivllm map {first.invariant.map} {source} --iteration {first.violations[0][0]}")
    elif not any(verdict.status == "ok" for verdict in verdicts):
        note("nothing was checked: the log holds none of the events that these rules are about")
    else:
        note(f"next: minivllm map state {source}")
