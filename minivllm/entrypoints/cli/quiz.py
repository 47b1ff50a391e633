"""Owns `minivllm quiz`: questions whose answers are computed from runs, one after the other, with a score."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from minivllm.entrypoints.cli.common import (
    AsciiOption,
    JsonOption,
    LangOption,
    WidthOption,
    examples,
    language,
    note,
    print_json,
)
from minivllm.entrypoints.cli.errors import user_errors
from minivllm.entrypoints.cli.walkthrough import complete_lesson, keep

if TYPE_CHECKING:
    from rich.console import Console

    from minivllm.learning.progress import Progress
    from minivllm.learning.question import Question

_ROUND = 10


def register(app: typer.Typer) -> None:
    """Add the command."""
    epilog = examples("minivllm quiz mixed-batch --json", 'minivllm quiz mixed-batch --answers "b; 0 1 257 260"')
    app.command(epilog=epilog)(user_errors(quiz))


def quiz(
    lesson: Annotated[
        str | None,
        typer.Argument(
            help="Only the questions of this lesson; self-test has those of the articles. Default: all lessons.",
            metavar="LESSON",
            autocompletion=complete_lesson,
            show_default=False,
        ),
    ] = None,
    answers: Annotated[
        str | None,
        typer.Option(
            "--answers",
            help="Answers in order, with ; between them: a letter, a number, a list. - reads them, a line each.",
        ),
    ] = None,
    count: Annotated[
        int | None, typer.Option(min=1, help="Ask so many; default: a round of 10, or a whole lesson.")
    ] = None,
    as_json: JsonOption = False,
    width: WidthOption = None,
    ascii_only: AsciiOption = False,
    lang_: LangOption = None,
) -> None:
    """Answer questions about runs, and learn from each answer.

    On a terminal, what you answered rightly before is not asked again. Without one, and without --answers, questions
    are printed with their answers.
    """
    from minivllm.entrypoints.cli.common import stdout_console
    from minivllm.entrypoints.cli.terminal import is_terminal
    from minivllm.learning.progress import load_progress
    from minivllm.learning.wording import say

    lang = language(lang_, ascii_only=ascii_only)
    given = _given(answers)
    progress = load_progress()
    interactive = given is None and not as_json and is_terminal()
    asked = _questions(lesson, progress.right if interactive else (), lang)
    wanted = count or (None if lesson is not None else _ROUND)
    if given is not None and count is None:
        wanted = len(given)
    chosen = itertools.islice(asked, wanted)
    if as_json:
        print_json("quiz", _document(list(chosen), given))
        return
    round_ = _Round(stdout_console(width), ascii_only, progress, given, interactive, lang)
    for question in chosen:
        if not round_.ask(question):
            break
    round_.say_score()
    keep(progress, lang)
    note(say(lang, "next", command="minivllm walkthrough next"))


def _given(answers: str | None) -> list[str] | None:
    """Answers that were given beforehand; None for none."""
    import sys

    if answers is None:
        return None
    return [answer.strip() for answer in (sys.stdin.read().splitlines() if answers == "-" else answers.split(";"))]


def _questions(lesson: str | None, without: Any, lang: str) -> Iterator[Question]:
    """Questions of a lesson, or of all in the order of the course; a lesson's run is read when its turn comes."""
    from minivllm.entrypoints.cli.lesson_view import question_id
    from minivllm.learning.facts import facts_of
    from minivllm.learning.fill import filler_of
    from minivllm.learning.lesson import find_lesson, lesson_heads, read_lesson
    from minivllm.learning.question import read_question

    lessons = (
        [find_lesson(lesson, lang)]
        if lesson is not None
        else map(read_lesson, [h.path for h in lesson_heads(lang=lang)])
    )
    for each in lessons:
        asks = {question_id(each, place): block for place, block in enumerate(each.blocks("ask"))}
        asks = {name: block for name, block in asks.items() if name not in without}
        if not asks:
            continue
        filler = filler_of(each, facts_of(each.scenario))
        for name, block in asks.items():
            yield read_question(block, filler, name)


def _document(questions: list[Question], given: list[str] | None) -> dict[str, Any]:
    entries = [question.as_dict() for question in questions]
    if given is None:
        return {"questions": entries, "asked": len(entries), "right": None}
    for question, entry, answer in itertools.zip_longest(questions, entries, given[: len(questions)], fillvalue=""):
        entry |= {"given": answer, "is_right": question.is_right(answer)}  # type: ignore[union-attr, operator]
    return {"questions": entries, "asked": len(entries), "right": sum(entry["is_right"] for entry in entries)}


class _Round:
    """One round of questions.

    Args:
        console: Where to print.
        ascii_only: Use no character beyond ASCII.
        progress: What is remembered of the learner.
        given: Answers that were given beforehand; None for none.
        interactive: Wait for an answer after each question.
        lang: "en" or "zh".
    """

    def __init__(
        self,
        console: Console,
        ascii_only: bool,
        progress: Progress,
        given: list[str] | None,
        interactive: bool,
        lang: str,
    ) -> None:
        self._console = console
        self._ascii_only = ascii_only
        self._progress = progress
        self._given = given
        self._interactive = interactive
        self._lang = lang
        self._lesson = ""
        self._num_asked = 0
        self._num_right = 0

    def ask(self, question: Question) -> bool:
        """One question, and what is right. Returns False if the learner leaves."""
        from rich.text import Text

        from minivllm.entrypoints.cli.lesson_view import draw_answer
        from minivllm.learning.wording import say

        self._say_lesson(question.id.partition("/")[0])
        number = self._num_asked + 1
        self._say(Text(f"{number}  {question.id}", style="bold"))
        self._markdown(question.text)
        for line in question.lines():
            self._say(Text(f"  {line}"))
        answer = self._answer_to()
        if answer is None:
            return False
        self._num_asked = number
        verdict = ""
        if self._interactive or self._given is not None:
            is_right = question.is_right(answer)
            self._num_right += is_right
            self._progress.answered(question.id, is_right)
            key = "right" if is_right else "you_said" if answer else "no_answer"
            verdict = say(self._lang, key, given=answer)
        self._say("")
        draw_answer(question, verdict, self._lang, self._markdown, self._say)
        return True

    def _say_lesson(self, name: str) -> None:
        """Which run the next questions are about, and how to look at it: "this step" says nothing without one."""
        from rich.text import Text

        from minivllm.learning.lesson import find_lesson
        from minivllm.learning.wording import say

        if name == self._lesson:
            return
        self._lesson = name
        lesson = find_lesson(name, self._lang)
        self._say(Text(say(self._lang, "asked_of", title=lesson.title, scenario=lesson.scenario), style="dim"))
        self._say("")

    def say_score(self) -> None:
        """How many were right; nothing if nobody answered."""
        from minivllm.learning.wording import say

        if self._num_asked == 0:
            print(say(self._lang, "nothing_left"))
        elif self._interactive or self._given is not None:
            print(say(self._lang, "score", right=self._num_right, asked=self._num_asked))

    def _answer_to(self) -> str | None:
        if self._given is not None:
            return self._given[self._num_asked] if self._num_asked < len(self._given) else ""
        if not self._interactive:
            return ""
        from minivllm.learning.wording import say

        try:
            given = input(say(self._lang, "ask_in_quiz") + " ").strip()
        except EOFError:
            return None
        return None if given.lower() == "q" else given

    def _markdown(self, text: str) -> None:
        from minivllm.entrypoints.cli.lesson_view import markdown_of

        self._say(markdown_of(text))

    def _say(self, what: Any) -> None:
        from minivllm.entrypoints.cli.lesson_view import print_on

        print_on(self._console, what, self._ascii_only)
