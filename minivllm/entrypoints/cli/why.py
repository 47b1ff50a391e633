"""Owns `minivllm why`: ask a run why something happened to a request, or did not."""

from __future__ import annotations

from typing import Annotated

import typer

from minivllm.entrypoints.cli.common import (
    AsciiOption,
    JsonOption,
    LangOption,
    LogOption,
    ScenarioOption,
    WidthOption,
    choose_log,
    examples,
    language,
    print_json,
    stdout_console,
)
from minivllm.entrypoints.cli.errors import user_errors

_QUESTIONS = ("not-scheduled", "preempted", "no-hit", "waited", "partial", "finished")


def complete_question(incomplete: str) -> list[str]:
    """Questions, for the shell's completion."""
    return [question for question in _QUESTIONS if question.startswith(incomplete)]


RequestArgument = Annotated[str, typer.Argument(help="Id of a request of the run, e.g. R3.", metavar="REQUEST")]
QuestionArgument = Annotated[
    str | None,
    typer.Argument(
        help=f"One of: {', '.join(_QUESTIONS)}. Default: what its life in the run raises.",
        metavar="QUESTION",
        show_default=False,
        autocompletion=complete_question,
    ),
]
WhenOption = Annotated[
    int | None, typer.Option("--iteration", "-i", min=0, help="When; default: the last time that it happened.")
]


def register(app: typer.Typer) -> None:
    """Add the command."""
    epilog = examples("minivllm why R3 -s mixed-batch --iteration 13", "minivllm why R2 preempted -s kv-pressure")
    app.command(epilog=epilog)(user_errors(why))


def why(
    request: RequestArgument,
    question: QuestionArgument = None,
    iteration: WhenOption = None,
    log: LogOption = None,
    scenario: ScenarioOption = None,
    as_json: JsonOption = False,
    width: WidthOption = None,
    ascii_only: AsciiOption = False,
    lang_: LangOption = None,
) -> None:
    """Ask why a request was not scheduled, preempted, not found in the cache, kept waiting, cut short, or ended.

    The answer has the rule, its arithmetic with this run's numbers, and its place in our source and in vLLM's.
    """
    _check_question(question)
    lang = language(lang_, ascii_only=ascii_only)
    from minivllm.analysis.why import why as answer_why
    from minivllm.entrypoints.cli.choosing import check_request, choose_iterations
    from minivllm.maps.stages import requests_of

    chosen = choose_log(log, scenario)
    check_request(request, requests_of(chosen))
    if iteration is not None:
        choose_iterations(str(iteration), list(chosen.by_step()))
    answer = answer_why(chosen, request, question, iteration, lang)
    if as_json:
        print_json("why", {"log": str(chosen.path), **answer.as_dict()})
        return
    from minivllm.entrypoints.cli.answer_view import draw_answer

    source = f"-s {scenario}" if scenario is not None else f"--log {chosen.path}"
    draw_answer(answer, chosen, source, stdout_console(width), ascii_only=ascii_only, lang=lang)


def _check_question(question: str | None) -> None:
    import difflib

    if question is None or question in _QUESTIONS:
        return
    close = difflib.get_close_matches(question, _QUESTIONS, 1)
    hint = f"did you mean {close[0]}?" if close else f"there are: {', '.join(_QUESTIONS)}"
    raise typer.BadParameter(f"there is no question {question!r}; {hint}")
