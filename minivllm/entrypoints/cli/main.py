"""Owns the `minivllm` command: its groups and its global options."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from minivllm import __version__
from minivllm.entrypoints.cli import bench, generate, map_, model, scenario, simulate, trace

app = typer.Typer(
    name="minivllm",
    help="Watch a real vLLM-style engine think, one iteration at a time.",
    epilog='Examples: `minivllm trace "Once upon a time"` · `minivllm trace -s mixed-batch`',
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(asked: bool) -> None:
    if asked:
        print(f"minivllm {__version__}")
        raise typer.Exit()


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and leave.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Options that stand before the command."""
    if debug:
        os.environ["MINIVLLM_DEBUG"] = "1"


trace.register(app)
map_.register(app)
simulate.register(app)
generate.register(app)
scenario.register(app)
model.register(app)
bench.register(app)


def main() -> None:
    """Entry point of the installed command."""
    app()
