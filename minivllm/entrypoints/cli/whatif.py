"""Owns `minivllm whatif`: a recorded run planned again with another setting, and what that changes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from minivllm.entrypoints.cli.common import (
    AsciiOption,
    JsonOption,
    LangOption,
    LogOption,
    ScenarioOption,
    WidthOption,
    check_outputs,
    choose_log,
    examples,
    language,
    note,
    print_json,
    stdout_console,
)
from minivllm.entrypoints.cli.engine_options import SetOption
from minivllm.entrypoints.cli.errors import user_errors

if TYPE_CHECKING:
    from minivllm.analysis.diff import Diff
    from minivllm.scenarios.replan import Replanned
    from minivllm.trace.reader import Log


def register(app: typer.Typer) -> None:
    """Add the command."""
    epilog = examples(
        "minivllm whatif -s mixed-batch --set max_num_batched_tokens=620",
        "minivllm whatif -s kv-pressure --set num_gpu_blocks=28",
    )
    app.command(epilog=epilog)(user_errors(whatif))


def whatif(
    log: LogOption = None,
    scenario: ScenarioOption = None,
    settings: SetOption = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Write the log of the new run, for map, why and check.")
    ] = None,
    as_json: JsonOption = False,
    width: WidthOption = None,
    ascii_only: AsciiOption = False,
    lang_: LangOption = None,
) -> None:
    """Plan a recorded run again with another setting: the real scheduler, the recorded tokens, no model.

    Who arrives when, who gives up when, and what each request says stays as it was. Without --set the recorded plans
    come out again.
    """
    from minivllm.analysis.diff import diff_logs
    from minivllm.analysis.whatif import effects
    from minivllm.analysis.whatif_knobs import old_values, parse_settings
    from minivllm.scenarios.replan import config_of, replan

    lang = language(lang_, ascii_only=ascii_only)
    new = parse_settings(settings or [])
    chosen = choose_log(log, scenario)
    check_outputs({"--out": out}, inputs=[chosen.path])
    before = replan(chosen, {})
    _check_record(chosen, before.log)
    after = replan(chosen, new, out)
    found = diff_logs(before.log, after.log)
    old = old_values(config_of(chosen), new)
    sentences = [*effects(found, before.log, after.log, old, new, lang), *_beyond(before, after, lang)]
    if as_json:
        print_json("whatif", _document(chosen, found, old, new, sentences, after, out))
    else:
        _draw(chosen, found, sentences, stdout_console(width), ascii_only, lang)
    _say_next(chosen, scenario, found, out, lang)


def _check_record(recorded: Log, again: Log) -> None:
    """Say if the run does not repeat: then it is compared with what its own settings plan now."""
    from minivllm.analysis.diff import first_divergence

    parts = first_divergence(recorded, again, decisions_only=True)
    if parts is not None:
        note(
            f"planned again with its own settings, this run is another one from iteration {parts.iteration} on "
            f"({parts.field}): it was not pinned to iterations, or its log was changed. What follows compares with the "
            "run that its settings plan now."
        )


def _beyond(before: Replanned, after: Replanned, lang: str) -> list[str]:
    """Who ran on beyond the record, or for ever."""
    from minivllm.analysis.words_diff import DIFF_WORDS
    from minivllm.maps.wording import Words

    words = Words(lang, DIFF_WORDS)
    if after.result.truncated and not before.result.truncated:
        stuck = [request for request in after.result.requests if request not in after.result.finals]
        return [words("never_end", steps=after.result.steps, names=words.names(stuck[:4]))]
    if not after.num_made_up:
        return []
    some = words.names([f"{request} {count}" for request, count in list(after.num_made_up.items())[:4]])
    more = words("more_requests", count=len(after.num_made_up) - 4) if len(after.num_made_up) > 4 else ""
    return [words("beyond", some=some, more=more)]


def _document(
    chosen: Log,
    found: Diff,
    old: dict[str, Any],
    new: dict[str, Any],
    sentences: list[str],
    after: Replanned,
    out: Path | None,
) -> dict[str, Any]:
    return {
        "log": str(chosen.path),
        "out": str(out) if out is not None else None,
        "settings": [{"name": name, "a": old[name], "b": new[name]} for name in new],
        "equal": found.equal,
        "first": found.first.as_dict() if found.first is not None else None,
        "consequences": sentences,
        "made_up": after.num_made_up,
        "refused": after.result.refused,
        "numbers": {"a": found.a.as_dict(), "b": found.b.as_dict()},
    }


def _draw(chosen: Log, found: Diff, sentences: list[str], console: Any, ascii_only: bool, lang: str) -> None:
    from minivllm.entrypoints.cli.diff_view import Comparison, draw_comparison

    comparison = Comparison(found, sentences, ("recorded", "what if"))
    draw_comparison(comparison, chosen, console, ascii_only=ascii_only, lang=lang)


def _say_next(chosen: Log, scenario: str | None, found: Diff, out: Path | None, lang: str) -> None:
    from minivllm.analysis.words_diff import DIFF_WORDS
    from minivllm.maps.wording import Words

    source = f"-s {scenario}" if scenario is not None else f"--log {chosen.path}"
    if out is not None:
        note(f"log: {out}")
        at = f" --iteration {found.first.iteration}" if found.first is not None else ""
        command = f"map plan --log {out}{at}"
    elif found.first is not None:
        command = f"map plan {source} --iteration {found.first.iteration}"
    else:
        command = f"map timeline {source}"
    note(Words(lang, DIFF_WORDS)("next", command=f"minivllm {command}"))
