"""Owns `minivllm map`: draw from a log, without running anything (unless a fresh run is asked for)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from minivllm.entrypoints.cli.common import (
    AsciiOption,
    IterationOption,
    JsonOption,
    LangOption,
    LogOption,
    RequestOption,
    ScenarioOption,
    WidthOption,
    check_outputs,
    choose_log,
    examples,
    json_document,
    language,
    note,
    print_json,
    stdout_console,
)
from minivllm.entrypoints.cli.errors import user_errors

if TYPE_CHECKING:
    from rich.console import Console

    from minivllm.entrypoints.cli.map_view import MapView
    from minivllm.trace.reader import Log

Format = Literal["rich", "ascii", "json", "svg", "html", "mermaid"]

_FORMAT_OF_SUFFIX: dict[str, Format] = {
    ".json": "json",
    ".svg": "svg",
    ".html": "html",
    ".mmd": "mermaid",
    ".mermaid": "mermaid",
}
# What a file of these names would hold is none of our forms.
_NO_FORM = frozenset([".png", ".jpg", ".jpeg", ".gif", ".webp", ".pdf"])
# A file has no screen whose width it could take.
_FILE_WIDTH = 120

_HELP = {
    "process": "The process map: which processes there are, what crosses between them, and who waits for whom.",
    "state": "The state map: each request in frontend, scheduler and worker, and who owns which block.",
    "hot": "The hot-path map: where the time of a step goes, call by call and stage by stage.",
    "timeline": "The timeline: one line a request, one column an iteration.",
    "plan": "The plan map: who got how many tokens, who did not and why, and what the worker made of it.",
}
# What stands where a kind has no Mermaid text.
_INSTEAD_OF_MERMAID = {"hot": "a table of times", "timeline": "a grid", "plan": "a table of plans"}
_NEXT = {"process": "state", "state": "hot", "hot": "process", "timeline": "plan", "plan": "process"}

FormatOption = Annotated[
    Format | None,
    typer.Option("--format", help="How to draw it; default: as the file of -o is named, or rich.", show_default=False),
]
OutOption = Annotated[Path | None, typer.Option("--output", "-o", help="File to write instead of the screen.")]
FreshOption = Annotated[
    bool, typer.Option("--fresh", help="Run the scenario on this machine now, with times, instead of its recorded run.")
]


def register(app: typer.Typer) -> None:
    """Add the group."""
    both = examples("minivllm map plan", "minivllm map process -s mixed-batch --iteration 13")
    group = typer.Typer(help="Draw a recorded run.", epilog=both, no_args_is_help=True)
    for kind, text in _HELP.items():
        own = examples(f"minivllm map {kind} -s hello", f"minivllm map {kind} -s mixed-batch --iteration 13")
        group.command(kind, help=text, epilog=own)(user_errors(_command(kind)))
    app.add_typer(group, name="map")


def _command(kind: str) -> Callable[..., None]:
    def draw(
        log: LogOption = None,
        scenario: ScenarioOption = None,
        fresh: FreshOption = False,
        iteration: IterationOption = None,
        request: RequestOption = None,
        format_: FormatOption = None,
        as_json: JsonOption = False,
        width: WidthOption = None,
        ascii_only: AsciiOption = False,
        lang: LangOption = None,
        output: OutOption = None,
    ) -> None:
        from minivllm.entrypoints.cli.map_view import MapView

        wanted = _format(kind, format_, as_json, output)
        ascii_only = ascii_only or wanted == "ascii"
        view = MapView(kind, iteration, request, ascii_only, language(lang, ascii_only=ascii_only))
        check_outputs({"--output": output}, [log])
        # What concerns a request can stand anywhere.
        part = iteration if request is None else None
        chosen = fresh_log(log, scenario) if fresh else choose_log(log, scenario, part)
        if wanted == "rich" or wanted == "ascii":
            _to_screen(view, chosen, width, output)
            if output is None:
                _say_next(kind, scenario if not fresh else None, chosen)
            return
        if wanted == "json" and output is None:
            print_json(f"map-{kind}", view.document(chosen))
            return
        # A file that was made of a log does not say where that log was.
        source = f"-s {scenario}" if scenario is not None and not fresh else None
        _put(_as_text(view, chosen, wanted, width or _FILE_WIDTH, source), output)

    return draw


def _format(kind: str, asked: Format | None, as_json: bool, output: Path | None) -> Format:
    """The form that is wanted. Raises BadParameter if the kind has no such form, or two are asked for."""
    if as_json and asked not in (None, "json"):
        raise typer.BadParameter(f"--json and --format {asked} exclude each other: give one")
    if output is not None and asked is None and not as_json and output.suffix.lower() in _NO_FORM:
        raise typer.BadParameter(f"--output {output}: no map is drawn as {output.suffix}; take .svg or .html")
    by_name = _FORMAT_OF_SUFFIX.get(output.suffix.lower()) if output is not None else None
    wanted = "json" if as_json else asked or by_name or "rich"
    if wanted == "mermaid" and kind in _INSTEAD_OF_MERMAID:
        raise typer.BadParameter(
            f"map {kind} has no Mermaid form, because it is {_INSTEAD_OF_MERMAID[kind]}; "
            "take --format svg or html, or one of: map process, map state"
        )
    return wanted


def _to_screen(view: MapView, log: Log, width: int | None, output: Path | None) -> None:
    if output is None:
        view.draw(log, stdout_console(width))
        return
    import io

    from rich.console import Console

    # A file is no terminal, whatever the environment says of colours.
    plain = Console(file=io.StringIO(), width=width or _FILE_WIDTH, force_terminal=False, color_system=None)
    view.draw(log, plain)
    _put(plain.file.getvalue(), output)  # type: ignore[attr-defined]


def _as_text(view: MapView, log: Log, wanted: Format, width: int, source: str | None) -> str:
    if wanted == "json":
        return json_document(f"map-{view.kind}", view.document(log)) + "\n"
    if wanted == "mermaid":
        return view.mermaid(log)
    from minivllm.maps.render.html import to_html
    from minivllm.maps.render.runs import drawn
    from minivllm.maps.render.svg import to_svg

    name = log.header.scenario or log.header.model
    title = f"minivllm map {view.kind}: {name}"

    def draw(console: Console) -> None:
        view.draw(log, console)
        if source is not None:
            console.print(f"next: minivllm map {_NEXT[view.kind]} {source}", style="dim")

    lines = drawn(draw, width)
    return to_svg(lines, title, width) if wanted == "svg" else to_html(lines, title)


def _put(text: str, output: Path | None) -> None:
    if output is None:
        print(text, end="")
        return
    from minivllm.trace.store import write_whole

    write_whole(output, text.splitlines())
    note(f"wrote {output}")


def fresh_log(log: Path | None, scenario: str | None) -> Log:
    """Run a scenario now, with clocks and every call, and keep its log like that of a trace."""
    if scenario is None or log is not None:
        raise typer.BadParameter("--fresh runs a scenario: name one with -s, and give no --log")
    from minivllm.scenarios.registry import get_scenario
    from minivllm.trace.store import new_log_path

    chosen = get_scenario(scenario)
    note(f"running {scenario} ...")
    from minivllm.scenarios.run import run_scenario

    run = run_scenario(chosen, {}, log_path=new_log_path(chosen.name), level="function")
    note(f"log: {run.log.path}")
    return run.log


def _say_next(kind: str, scenario: str | None, log: Log) -> None:
    source = f"-s {scenario}" if scenario is not None else f"--log {log.path}"
    note(f"next: minivllm map {_NEXT[kind]} {source}")
