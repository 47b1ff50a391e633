"""Owns the `minivllm` command: its groups, its global options, and how it ends."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from minivllm import __version__
from minivllm.entrypoints.cli import (
    bench,
    chat,
    check,
    diff,
    docs,
    doctor,
    exercise,
    explain,
    export,
    generate,
    map_,
    model,
    open_,
    quiz,
    scenario,
    simulate,
    trace,
    walkthrough,
    whatif,
    where,
    why,
)
from minivllm.entrypoints.cli.common import examples
from minivllm.entrypoints.cli.errors import BAD_INPUT, FINE, INTERRUPTED, USAGE, say

# What Typer raises for a wrong command line. Its name is not public; it is what BadParameter is a kind of.
_UsageError: type[Exception] = typer.BadParameter.__bases__[0]

app = typer.Typer(
    name="minivllm",
    help="Watch a real vLLM-style engine think, one iteration at a time.",
    epilog=examples('minivllm trace "Once upon a time"', "minivllm trace -s mixed-batch"),
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
check.register(app)
export.register(app)
open_.register(app)
why.register(app)
explain.register(app)
diff.register(app)
whatif.register(app)
generate.register(app)
chat.register(app)
where.register(app)
scenario.register(app)
walkthrough.register(app)
quiz.register(app)
exercise.register(app)
model.register(app)
doctor.register(app)
docs.register(app)
bench.register(app)


def main(args: Sequence[str] | None = None) -> int:
    """Entry point of the installed command.

    Args:
        args: The command line without the program's name; None for this process's own.

    Returns:
        The exit code.
    """
    _prepare_process()
    try:
        code = app(args=args, prog_name="minivllm", standalone_mode=False)
        sys.stdout.flush()
        return code or FINE
    except (KeyboardInterrupt, typer.Abort):
        say("interrupted")
        return INTERRUPTED
    except (BrokenPipeError, SystemExit) as ended:
        # Typer and rich end with 1 at a broken pipe.
        if isinstance(ended, SystemExit) and ended.code != 1:
            raise
        # Whoever reads our output has seen enough. Python would complain at exit that it cannot flush the rest.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FINE
    except OSError as error:  # of what no command guards: help and version
        say(f"the output cannot be written: {error.strerror}")
        return BAD_INPUT
    except _UsageError as error:
        return _usage(error)


def _prepare_process() -> None:
    """Make up for what a caller left out: standard streams that are closed, a screen of no width."""
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            # The lowest free number is this one. Left free, a file that we open would be taken for the stream.
            os.open(os.devnull, os.O_RDWR)
    sys.stdin = sys.stdin or os.fdopen(0, closefd=False)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)
    if not os.environ.get("COLUMNS", "").strip("0"):
        os.environ.pop("COLUMNS", None)


def _usage(error: Exception) -> int:
    if type(error).__name__ != "NoArgsIsHelpError":  # that one has printed the help page by now
        context = getattr(error, "ctx", None)
        command = context.command_path if context is not None else "minivllm"
        message = error.format_message().rstrip(".").removeprefix("Invalid value: ").replace("Value error, ", "")  # type: ignore[attr-defined]
        say(f"{message}{'' if message.endswith('?') else '.'} See: {command} --help")
    return USAGE
