"""Owns `minivllm bench startup`: seconds from the start of a process to its first token, phase by phase."""

from __future__ import annotations

import os
import platform
from typing import Annotated, Any

import typer
from rich.table import Table

from minivllm import __version__
from minivllm.entrypoints.cli.bench_generation import ArgumentOption, ModelOption, parsed_arguments, processor
from minivllm.entrypoints.cli.common import JsonOption, examples, note, print_json, stdout_console
from minivllm.entrypoints.cli.errors import user_errors

_EPILOG = examples("minivllm bench startup --repeats 1", "minivllm bench startup --repeats 1 --json")


def add_commands(group: typer.Typer) -> None:
    """Add the command to `bench`."""
    group.command("startup", epilog=_EPILOG)(user_errors(startup))


def startup(
    model: ModelOption = "stories-5m",
    prompt_len: Annotated[int, typer.Option("--input-len", min=1, help="Tokens of the prompt.")] = 32,
    repeats: Annotated[int, typer.Option(min=1, help="Starts; with kernels so many cold and so many warm ones.")] = 3,
    engine_arg: ArgumentOption = None,
    as_json: JsonOption = False,
) -> None:
    """Time a start, from the process to its first token: imports, weights, kernels, KV cache, graphs.

    Where kernels are compiled, each start is made twice: with an empty Triton cache and with a filled one.
    """
    from minivllm.bench.shapes import model_arguments
    from minivllm.bench.startup import measure_startup
    from minivllm.entrypoints.progress import make_progress

    arguments = {**model_arguments(model), **parsed_arguments(engine_arg or [])}
    with make_progress("starts", 2 * repeats, True) as progress:
        results = measure_startup(arguments, prompt_len, repeats, progress.advance)
    machine = {
        "processor": processor(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "minivllm": __version__,
    }
    if as_json:
        workload = {"model": arguments["model"], "prompt_tokens": prompt_len, "output_tokens": 1, "repeats": repeats}
        document = {"bench": "startup", "engine": "minivllm", "machine": machine, "workload": workload}
        print_json("bench", {**document, "results": results, "floor": None})
        return
    console = stdout_console(None)
    for result in results:
        console.print(_table(result))
        kernels = result["kernels"]
        console.print(
            f"{kernels['compiled']} kernels compiled ({kernels['compile_s']:.1f} s, inside the phases), "
            f"{kernels['from_cache']} from the cache; {result['graphs']} graphs recorded.\n"
        )
    note(", ".join(f"{key} {value}" for key, value in machine.items()))


def _table(result: dict[str, Any]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column(f"{result['cache']}, {result['starts']} starts")
    for name in ("s", "range"):
        table.add_column(name, justify="right")
    for phase in result["phases"]:
        spread = f"{phase['min']:.2f} to {phase['max']:.2f}" if phase["max"] else ""
        table.add_row(phase["name"], f"{phase['median']:.2f}", spread)
    total = result["total_s"]
    table.add_row("process start to first token", f"{total['median']:.2f}", f"{total['min']:.2f} to {total['max']:.2f}")
    return table
