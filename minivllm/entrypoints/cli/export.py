"""Owns `minivllm export`: a recorded run in the forms that other programs open."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from minivllm.entrypoints.cli.choosing import check_iteration_option, check_one_iteration, choose_iterations
from minivllm.entrypoints.cli.common import (
    IterationOption,
    LogOption,
    RequestOption,
    ScenarioOption,
    WidthOption,
    check_outputs,
    choose_log,
    examples,
    is_large,
    log_path,
    note,
)
from minivllm.entrypoints.cli.errors import user_errors

if TYPE_CHECKING:
    from minivllm.trace.reader import Log

MapName = Literal["plan", "state", "process", "hot", "timeline"]
_SVG_MAPS: tuple[MapName, ...] = ("plan", "state", "process", "hot", "timeline")
_MERMAID_MAPS: tuple[MapName, ...] = ("process", "state")
# A file has no screen whose width it could take.
_FILE_WIDTH = 120

OutOption = Annotated[Path | None, typer.Option("--output", "-o", help="File to write; default: stdout.")]
# A text, since a Path does not keep the / at its end.
PlaceOption = Annotated[
    str | None,
    typer.Option("--output", "-o", help="File for one map, or a folder (its name ends in /) for all; default: stdout."),
]
MapOption = Annotated[MapName | None, typer.Option("--map", help="Which map, if it is one.", show_default=False)]
CentreOption = Annotated[
    str | None,
    typer.Option("--iteration", "-i", help="Which one is shown first: N or last.", metavar="N|last"),
]


def register(app: typer.Typer) -> None:
    """Add the group."""
    group = typer.Typer(
        help="Hand a recorded run to other programs.",
        epilog=examples(
            "minivllm export html -s mixed-batch -o run.html", "minivllm export chrome -s hello -o hello.json"
        ),
        no_args_is_help=True,
    )
    for name, command, first, second in _COMMANDS:
        group.command(name, epilog=examples(f"minivllm export {name} {first}", f"minivllm export {name} {second}"))(
            user_errors(command)
        )
    app.add_typer(group, name="export")


def chrome(
    log: LogOption = None, scenario: ScenarioOption = None, iteration: IterationOption = None, output: OutOption = None
) -> None:
    """A Chrome trace, for Perfetto (ui.perfetto.dev) and chrome://tracing.

    Steps, stages and calls as slices that nest; requests as asynchronous events; flows from a request to its steps and
    tokens; counters. Without clocks in the log, every event takes one microsecond.
    """
    import json

    from minivllm.export.chrome import chrome_trace

    check_outputs({"--output": output}, [log])
    trace = chrome_trace(_part(log, scenario, iteration))
    _write([json.dumps(trace, ensure_ascii=False), "\n"], output)
    if output is not None:
        note("next: open it in https://ui.perfetto.dev (it is read in your browser, and not sent anywhere)")


def html(
    log: LogOption = None, scenario: ScenarioOption = None, iteration: CentreOption = None, output: OutOption = None
) -> None:
    """The viewer: the whole run in one HTML file that needs no network.

    Of a run of more than 240 iterations, the file holds those around --iteration.
    """
    check_outputs({"--output": output}, [log])
    _write([viewer_text(log, scenario, iteration)], output)


def svg(
    log: LogOption = None,
    scenario: ScenarioOption = None,
    map_: MapOption = None,
    iteration: IterationOption = None,
    request: RequestOption = None,
    width: WidthOption = None,
    output: PlaceOption = None,
) -> None:
    """The maps as SVG pictures, in light and dark: one file, or all five in a folder.

    Without --map the one file shows the plan.
    """
    from minivllm.entrypoints.cli.map_view import MapView
    from minivllm.maps.render.runs import drawn
    from minivllm.maps.render.svg import to_svg

    columns = width or _FILE_WIDTH

    def draw(kind: MapName, run: Log) -> str:
        view = MapView(kind, iteration, request)
        title = f"minivllm map {kind}: {run.header.scenario or run.header.model}"
        return to_svg(drawn(lambda console: view.draw(run, console), columns), title, columns)

    _write_maps(_SVG_MAPS, map_, "svg", output, log, _part_of_maps(log, scenario, iteration, request), draw)


def mermaid(
    log: LogOption = None,
    scenario: ScenarioOption = None,
    map_: MapOption = None,
    iteration: IterationOption = None,
    request: RequestOption = None,
    output: PlaceOption = None,
) -> None:
    """The process map and the life of the requests as Mermaid text: one file, or both in a folder.

    Without --map the one file shows the process map. The other maps have no Mermaid form.
    """
    from minivllm.entrypoints.cli.map_view import MapView

    if map_ is not None and map_ not in _MERMAID_MAPS:
        raise typer.BadParameter(f"map {map_} has no Mermaid form; take --map process or --map state, or export svg")

    def draw(kind: MapName, run: Log) -> str:
        return MapView(kind, iteration, request).mermaid(run)

    _write_maps(_MERMAID_MAPS, map_, "mmd", output, log, _part_of_maps(log, scenario, iteration, request), draw)


def kv_events(
    log: LogOption = None,
    scenario: ScenarioOption = None,
    format_: Annotated[
        Literal["jsonl", "msgpack"],
        typer.Option("--format", help="JSON lines, or the bytes that vLLM's decoder reads."),
    ] = "jsonl",
    output: OutOption = None,
) -> None:
    """The KV cache's events with the names and fields of vLLM 0.27.1: BlockStored, BlockRemoved, AllBlocksCleared.

    One EventBatch for each iteration that changed what is cached.
    """
    from minivllm.export.kv_events import as_json_lines, as_msgpack, kv_event_batches

    check_outputs({"--output": output}, [log])
    run = choose_log(log, scenario)
    batches = kv_event_batches(run)
    if format_ == "msgpack":
        _write([as_msgpack(batches)], output)
    else:
        _write((f"{line}\n" for line in as_json_lines(batches)), output)
    if not batches:
        note("nothing was published or lost in this run: no block became full, or prefix caching was off")


def jsonl(log: LogOption = None, scenario: ScenarioOption = None, output: OutOption = None) -> None:
    """The event log itself, as plain JSON lines, for jq, pandas, Polars or DuckDB.

    Uncompressed, and with an index of its keyframes at the end.
    """
    from minivllm.export.jsonl import log_lines

    check_outputs({"--output": output}, [log])
    _write(log_lines(choose_log(log, scenario)), output)


_COMMANDS: tuple[tuple[str, Callable[..., None], str, str], ...] = (
    ("chrome", chrome, "-s mixed-batch -o mixed.json", "-s hello --iteration 3:5"),
    ("html", html, "-s mixed-batch -o mixed.html", "-s kv-pressure -i 13 -o kv.html"),
    ("svg", svg, "-s mixed-batch --iteration 13 -o maps/", "-s hello --map timeline -o hello.svg"),
    ("mermaid", mermaid, "-s mixed-batch --iteration 13", "-s kv-pressure --map state -o life.mmd"),
    ("kv-events", kv_events, "-s prefix-warmup", "-s kv-pressure --format msgpack -o kv.bin"),
    ("jsonl", jsonl, "-s hello -o hello.jsonl", "-s hello"),
)


def viewer_text(log: Path | None, scenario: str | None, iteration: str | None) -> str:
    """The viewer's page of a run; of a long one, of the iterations around the one that is asked for.

    Raises:
        ValueError: The run has no such iteration, or none at all.
    """
    from minivllm.entrypoints.cli.map_view import first_to_look_at
    from minivllm.export.viewer import MAX_ITERATIONS, viewer_document, viewer_page, window_around
    from minivllm.trace.reader import last_iteration, read_window

    check_one_iteration(iteration)
    path = log_path(log, scenario)
    if is_large(path):
        run, last = None, last_iteration(path)
    else:
        run = choose_log(log, scenario)
        last = max(run.by_step(), default=-1)
    asked = choose_iterations(iteration, range(last + 1))[0] if iteration is not None or last < 0 else None
    if last >= MAX_ITERATIONS:
        first, end = window_around(asked or 0, last)
        run = read_window(path, first, end)
        note(f"iterations {first} to {end} of 0 to {last}; for others: --iteration N")
    elif run is None:
        run = choose_log(log, scenario)
    steps = sorted(run.by_step())
    look_at = asked if asked is not None else first_to_look_at(run, steps, "plan")
    source = f"-s {scenario}" if scenario is not None else f"--log {path.name}"
    return viewer_page(viewer_document(run, look_at, last, source))


def _part(log: Path | None, scenario: str | None, iteration: str | None) -> Log:
    """A run, or the iterations of it that are asked for."""
    check_iteration_option(iteration)
    if iteration in (None, "all"):
        return choose_log(log, scenario)
    from minivllm.trace.reader import last_iteration, read_window

    path = log_path(log, scenario)
    chosen = choose_iterations(iteration, range(last_iteration(path) + 1))
    return read_window(path, chosen[0], chosen[-1])


def _part_of_maps(log: Path | None, scenario: str | None, iteration: str | None, request: str | None) -> Log:
    # What concerns a request can stand anywhere.
    return choose_log(log, scenario, iteration if request is None else None)


def _write_maps(
    kinds: tuple[MapName, ...],
    asked: MapName | None,
    suffix: str,
    place: str | None,
    log: Path | None,
    run: Log,
    draw: Callable[[MapName, Log], str],
) -> None:
    """One map to a file or to stdout, or all of them to a folder."""
    output = Path(place) if place is not None else None
    if place is None or output is None or not _is_folder(place):
        check_outputs({"--output": output}, [log])
        _write([draw(asked or kinds[0], run)], output)
        return
    output.mkdir(parents=True, exist_ok=True)
    files = {kind: output / f"{kind}.{suffix}" for kind in ((asked,) if asked is not None else kinds)}
    for file in files.values():
        check_outputs({"--output": file}, [log])
    for kind, file in files.items():
        _write([draw(kind, run)], file)


def _is_folder(place: str) -> bool:
    """Whether a path names a folder: one that is there, or one that ends in /, or whose name has no suffix.

    Raises:
        ValueError: It ends in /, and is a file.
    """
    path = Path(place)
    if place.endswith("/") and path.exists() and not path.is_dir():
        raise ValueError(f"--output {place}: this is a file, and stays as it is; name a folder, or leave out the /")
    return path.is_dir() or place.endswith("/") or (not path.suffix and not path.exists())


def _write(parts: Iterable[str | bytes], output: Path | None) -> None:
    """Write to stdout as it comes, or to a file that is there in full or as it was before."""
    if output is None:
        for part in parts:
            sys.stdout.buffer.write(_as_bytes(part))
        sys.stdout.buffer.flush()
        return
    from minivllm.trace.store import write_whole_bytes

    write_whole_bytes(output, map(_as_bytes, parts))
    note(f"wrote {output}")


def _as_bytes(part: Any) -> bytes:
    return part if isinstance(part, bytes) else part.encode("utf-8", "surrogatepass")
