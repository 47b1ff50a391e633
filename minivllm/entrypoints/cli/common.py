"""Owns what several commands share: options, consoles, JSON, choosing a log, checking where to write."""

from __future__ import annotations

import json
import os
import re
import sys
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console

from minivllm.entrypoints.cli.choosing import as_window
from minivllm.scenarios.registry import all_scenarios, get_scenario
from minivllm.trace.reader import Log, LogError, last_iteration, read_log, read_window
from minivllm.trace.store import newest_log


def _a_name(value: str | None) -> str | None:
    if value is not None and not value.strip():
        raise typer.BadParameter("the name is empty; see: minivllm model list")
    return value


def complete_scenario(incomplete: str) -> list[str]:
    """Names of scenarios, for the shell's completion."""
    return [scenario.name for scenario in all_scenarios() if scenario.name.startswith(incomplete)]


# Bytes, plain and compressed, up to which a log is read as a whole whatever part of it is looked at.
_LARGE_LOG = (8_000_000, 1_000_000)

# No picture fits into fewer columns, and no screen has more: a mistyped number must not fill the memory.
MIN_WIDTH, MAX_WIDTH = 40, 1000
# Gigabytes, or 10^12 operations, a second.
_RATES = (1e-6, 1e9)

ModelOption = Annotated[
    str | None, typer.Option("--model", "-m", help="Model name, folder or .gguf file.", callback=_a_name)
]
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
RequestOption = Annotated[
    str | None, typer.Option("--request", "-r", help="Only iterations that concern this request.")
]
WidthOption = Annotated[
    int | None, typer.Option(min=MIN_WIDTH, max=MAX_WIDTH, help="Columns to draw for; default: the terminal's.")
]
AsciiOption = Annotated[bool, typer.Option("--ascii", help="Use no character beyond ASCII.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of a picture.")]


LangOption = Annotated[
    Literal["en", "zh"] | None,
    typer.Option("--lang", help="Language of the sentences; default: that of LC_ALL or LANG.", show_default=False),
]


def language(asked: str | None, *, ascii_only: bool = False) -> str:
    """The language that a command speaks: the one asked for, or that of the environment; English if it is another.

    Raises:
        BadParameter: Chinese was asked for, and characters beyond ASCII are not wanted.
    """
    if asked == "zh" and ascii_only:
        raise typer.BadParameter("--ascii cannot show --lang zh: leave one out")
    if asked is not None or ascii_only:
        return asked or "en"
    # An empty variable is as good as none, as for every other program.
    named = next(filter(None, map(os.environ.get, ("LC_ALL", "LC_MESSAGES", "LANG"))), "")
    return "zh" if named.lower().startswith("zh") else "en"


def examples(*commands: str) -> str:
    """The end of a help page: runnable examples, one a line."""
    return "\n\n".join(["Examples:", *(f"`{command}`" for command in commands)])


def stdout_console(width: int | None) -> Console:
    """Where pictures go. Piped output has 80 columns unless a width is given."""
    console = Console(width=width, highlight=False, soft_wrap=False, markup=False, emoji=False)
    console.width = min(max(console.width, MIN_WIDTH), MAX_WIDTH)
    return console


def note(message: str) -> None:
    """Progress and hints go to stderr, so that stdout holds nothing but data."""
    print(message, file=sys.stderr, flush=True)


def for_screen(text: str) -> str:
    """Text of a model or a user on its way to stdout: on a terminal without what would steer it, to a pipe exactly."""
    if not sys.stdout.isatty():
        return text
    return "".join(c.encode("unicode_escape").decode("ascii") if _steers(c) else c for c in text)


def _steers(character: str) -> bool:
    # Line ends and tabs are layout, joiners hold emoji and some scripts together.
    return unicodedata.category(character) in ("Cc", "Cf") and character not in "\n\t\u200c\u200d"


def check_text(text: str, where: str) -> None:
    """Refuse text that came in another encoding, which Python holds as characters that stand for bytes.

    Raises:
        ValueError: It has such a byte.
    """
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        shown = text[: error.start].encode("unicode_escape").decode("ascii")[-20:]
        raise ValueError(
            f"{where} is not text in UTF-8 (behind {shown!r}): convert it first, for instance with "
            "iconv -f latin1 -t utf-8, and set your terminal to UTF-8"
        ) from None


def check_rates(bandwidth: float | None, tflops: float | None) -> None:
    """Refuse rates of a machine that no machine has: beyond these bounds a floor would be no number.

    Raises:
        BadParameter: One is out of bounds, or only one is given.
    """
    rates = {"--bandwidth-gb-s": bandwidth, "--tflops": tflops}
    if (bandwidth is None) != (tflops is None):
        raise typer.BadParameter("--bandwidth-gb-s and --tflops belong together: give both")
    for name, rate in rates.items():
        if rate is not None and not 0 < rate < float("inf"):
            raise typer.BadParameter(f"{name} must be a number above 0, got {rate:g}")
        if rate is not None and not _RATES[0] <= rate <= _RATES[1]:
            raise typer.BadParameter(f"{name} must be from {_RATES[0]:g} to {_RATES[1]:g}, got {rate:g}")


def name_option(message: str, options: dict[str, Any]) -> str:
    """A complaint about a sampling parameter, with the option in front that set it."""
    for name in options:
        if re.search(rf"\b{name}\b", message):
            return f"--{name.replace('_', '-')}: {message}"
    return message


def json_document(kind: str, document: dict[str, Any]) -> str:
    """One JSON document on one line, with its schema first."""
    return json.dumps({"schema": f"minivllm.{kind}/1", **document}, ensure_ascii=False)


def print_json(kind: str, document: dict[str, Any]) -> None:
    """One JSON document, with its schema first."""
    print(json_document(kind, document))


def log_path(log: Path | None, scenario: str | None) -> Path:
    """Where the log lies that a command reads: the file that was named, a scenario's recorded run, or the newest.

    Raises:
        LogError: There is none.
        UnknownScenarioError: No scenario has that name.
    """
    if log is not None and scenario is not None:
        raise typer.BadParameter("--log and --scenario exclude each other: give one")
    return log or _recorded(scenario)


def choose_log(log: Path | None, scenario: str | None, iteration: str | None = None) -> Log:
    """The log that a command reads: a file, a scenario's recorded run, or the newest.

    Args:
        log: The file that was named.
        scenario: The scenario that was named.
        iteration: Which iterations are looked at (see IterationOption): of a large log no more than these is read.

    Raises:
        LogError: There is none, or it cannot be read.
        UnknownScenarioError: No scenario has that name.
    """
    path = log_path(log, scenario)
    chosen = _window(path, iteration) if iteration is not None and is_large(path) else read_log(path)
    if chosen.truncated:
        note(f"{chosen.path} was cut off: this is what came before the cut")
    if chosen.num_dropped:
        note(f"{chosen.path} leaves out the last {chosen.num_dropped} events: the run had too many")
    return chosen


def _window(path: Path, iteration: str) -> Log:
    end = last_iteration(path)
    window = as_window(iteration, end)
    if window is None or end < 0:
        return read_log(path)
    if window[0] > end:
        raise LogError(f"there is no iteration {iteration}: this run has 0 to {end}; the nearest is {end}")
    return read_window(path, *window)


def is_large(path: Path) -> bool:
    """Whether a log is read in parts, if a part is all that is needed."""
    return path.is_file() and path.stat().st_size > _LARGE_LOG[path.suffix == ".gz"]


def _recorded(scenario: str | None) -> Path:
    if scenario is not None:
        path = get_scenario(scenario).log_path
        if not path.exists():
            raise LogError(f"scenario {scenario!r} has no recorded log; run: minivllm scenario record {scenario}")
        return path
    newest = newest_log()
    if newest is None:
        raise LogError("there is no log yet; run: minivllm trace")
    return newest


def check_outputs(outputs: dict[str, Path | None], inputs: Sequence[Path | None] = ()) -> None:
    """Find out before any work is done whether its result can be written.

    Args:
        outputs: Paths to write, by the option that named them.
        inputs: Files that are read, and must not be overwritten.

    Raises:
        ValueError: A path that cannot be written, or that is named twice.
    """
    taken = [path.resolve() for path in inputs if path is not None]
    for option, path in outputs.items():
        if path is None:
            continue
        if path.is_dir():
            raise ValueError(f"{option} {path}: this is a folder; name a file")
        if not path.parent.is_dir():
            raise ValueError(f"{option} {path}: there is no folder {path.parent}; make it first")
        if not os.access(path if path.exists() else path.parent, os.W_OK):
            raise ValueError(f"{option} {path}: no permission to write there; name another file")
        if path.resolve() in taken:
            raise ValueError(f"{option} {path}: another argument names the same file; give it one of its own")
        taken.append(path.resolve())
