"""Owns `minivllm diff`: two runs side by side, where they part, and what came of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from minivllm.entrypoints.cli.common import (
    AsciiOption,
    JsonOption,
    LangOption,
    WidthOption,
    choose_log,
    complete_scenario,
    examples,
    language,
    note,
    print_json,
    stdout_console,
)
from minivllm.entrypoints.cli.errors import BAD_INPUT, user_errors

if TYPE_CHECKING:
    from minivllm.analysis.diff import Diff, First
    from minivllm.analysis.diff_metric import MetricDiff
    from minivllm.analysis.diff_tokens import LogitsDifference
    from minivllm.trace.reader import Log

_RunHelp = "A log, or the name of a scenario."
RunA = Annotated[str, typer.Argument(help=_RunHelp, metavar="A", autocompletion=complete_scenario)]
RunB = Annotated[str, typer.Argument(help=_RunHelp, metavar="B", autocompletion=complete_scenario)]
Metric = Literal["itl", "ttft", "tpot", "queue", "e2e"]


def register(app: typer.Typer) -> None:
    """Add the command."""
    epilog = examples(
        "minivllm diff kv-pressure new.jsonl --tokens", "minivllm diff two-processes two-processes --metric itl"
    )
    app.command(epilog=epilog)(user_errors(diff))


def diff(
    a: RunA,
    b: RunB,
    tokens: Annotated[
        bool, typer.Option("--tokens", help="Compare only what each request said, whenever it said it.")
    ] = False,
    plans: Annotated[bool, typer.Option("--plans", help="Compare only who was planned, not what was said.")] = False,
    logits: Annotated[
        bool, typer.Option("--logits", help="Compare the logits, if both runs were traced with --logits.")
    ] = False,
    metric: Annotated[
        Metric | None,
        typer.Option(help="Also compare what callers felt: in ms with clocks, else in iterations and work."),
    ] = None,
    as_json: JsonOption = False,
    width: WidthOption = None,
    ascii_only: AsciiOption = False,
    lang_: LangOption = None,
) -> None:
    """Compare two runs: the first iteration in which they differ, then what came of it.

    Ends with 0 if they are equal, and with 1 if they differ, as diff does. Requests are matched by their ids.
    """
    from minivllm.analysis.diff import diff_logs

    lang = language(lang_, ascii_only=ascii_only)
    log_a, log_b = _log(a), _log(b)
    everything = not (tokens or plans or logits)
    found = diff_logs(log_a, log_b, plans=plans or everything, tokens=tokens or everything)
    rows = _logits(found, log_a, log_b) if logits else None
    felt = _metric(metric, log_a, log_b)
    sentences = _sentences(found, log_a, log_b, rows, felt, lang)
    if as_json:
        print_json("diff", _document(found, log_a, log_b, sentences, rows, felt))
    else:
        from minivllm.entrypoints.cli.diff_view import Comparison, draw_comparison

        titles = _title(a, log_a), _title(b, log_b)
        asked = {"plans": plans, "tokens": tokens, "logits": logits}
        comparison = Comparison(found, sentences, titles=titles, aspects=tuple(filter(asked.get, asked)))
        draw_comparison(comparison, log_a, stdout_console(width), ascii_only=ascii_only, lang=lang)
        _say_next(a, b, found.first, lang)
    if not found.equal:
        raise typer.Exit(BAD_INPUT)


def _log(run: str) -> Log:
    """A log by its path, or a scenario's by its name. A file goes first: a name with a dot or a slash is none."""
    path = Path(run)
    if path.exists() or "/" in run or path.suffix in (".jsonl", ".gz"):
        return choose_log(path, None)
    return choose_log(None, run)


def _title(run: str, log: Log) -> str:
    header = log.header
    parts = [
        header.scenario if header.scenario != run else "",
        header.model,
        header.device,
        "no clocks" if header.clock == "logical" else "",
    ]
    return f"{run}  ({', '.join(part for part in parts if part)})"


def _logits(found: Diff, a: Log, b: Log) -> list[LogitsDifference]:
    from minivllm.analysis.diff_tokens import first_logits, logits_differences

    rows = logits_differences(a, b)
    found.first = found.first or first_logits(rows)
    return rows


def _metric(name: Metric | None, a: Log, b: Log) -> MetricDiff | None:
    from minivllm.analysis.diff_metric import compare_metric

    return compare_metric(name, a, b) if name is not None else None


def _sentences(
    found: Diff, a: Log, b: Log, rows: list[LogitsDifference] | None, felt: MetricDiff | None, lang: str
) -> list[str]:
    from minivllm.analysis.diff_said import logits_sentences, metric_sentences, sides_of
    from minivllm.analysis.diff_words import consequences

    sides = sides_of(lang)
    sentences = consequences(found, a, b, sides)
    if rows is not None:
        sentences += logits_sentences(rows, sides)
    if felt is not None:
        sentences += metric_sentences(felt, sides)
    return sentences


def _document(
    found: Diff,
    a: Log,
    b: Log,
    sentences: list[str],
    rows: list[LogitsDifference] | None,
    felt: MetricDiff | None,
) -> dict[str, Any]:
    from minivllm.analysis.diff_tokens import token_differences

    document: dict[str, Any] = {
        "log_a": str(a.path),
        "log_b": str(b.path),
        "settings": [setting.as_dict() for setting in found.settings],
        "equal": found.equal,
        "first": found.first.as_dict() if found.first is not None else None,
        "consequences": sentences,
        "tokens": [difference.as_dict() for difference in token_differences(found.a, found.b)],
        "numbers": {"a": found.a.as_dict(), "b": found.b.as_dict()},
    }
    if rows is not None:
        document["logits"] = [row.as_dict() for row in rows]
    if felt is not None:
        document["metric"] = felt.as_dict()
    return document


def _say_next(a: str, b: str, first: First | None, lang: str) -> None:
    from minivllm.analysis.words_diff import DIFF_WORDS
    from minivllm.maps.wording import Words

    def say(run: str, command: str, options: str) -> None:
        source = f"--log {run}" if Path(run).exists() else f"-s {run}"
        note(Words(lang, DIFF_WORDS)("next", command=f"minivllm {command} {source} {options}"))

    if first is None:
        say(a, "whatif", "--set max_num_seqs=1")
        return
    for run in (a, b):
        say(run, "map plan", f"--iteration {first.iteration}")
