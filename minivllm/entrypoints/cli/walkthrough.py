"""Owns `minivllm walkthrough`: the list of lessons, and going through one, page by page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

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

if TYPE_CHECKING:
    from minivllm.entrypoints.cli.lesson_view import LessonView
    from minivllm.learning.lesson import Lesson, LessonHead
    from minivllm.learning.progress import Progress
    from minivllm.learning.question import Question

# Keys at the end of a page; no byte at all is the end of the input.
_ON = (b"\n", b"\r", b" ")
_OFF = (b"q", b"Q", b"\x04", b"")


def complete_lesson(incomplete: str) -> list[str]:
    """Names of lessons, for the shell's completion."""
    from minivllm.learning.lesson import lesson_heads

    return [head.name for head in lesson_heads() if head.name.startswith(incomplete)]


LessonArgument = Annotated[
    str, typer.Argument(help="Name of a lesson.", metavar="NAME", autocompletion=complete_lesson)
]
RestartOption = Annotated[bool, typer.Option("--restart", help="Begin at the first page, whatever was read before.")]


def register(app: typer.Typer) -> None:
    """Add the group."""
    own = examples("minivllm walkthrough list", "minivllm walkthrough run mixed-batch")
    group = typer.Typer(help="Guided lessons, each on a run of its own.", epilog=own, no_args_is_help=True)
    listed = examples("minivllm walkthrough list", "minivllm walkthrough list --json")
    group.command("list", epilog=listed)(user_errors(list_))
    run_ = examples("minivllm walkthrough run mixed-batch", "minivllm walkthrough run mixed-batch --lang zh")
    group.command("run", epilog=run_)(user_errors(run))
    next__ = examples("minivllm walkthrough next --width 60", "minivllm walkthrough next --ascii")
    group.command("next", epilog=next__)(user_errors(next_))
    app.add_typer(group, name="walkthrough")


def list_(
    as_json: JsonOption = False,
    width: WidthOption = None,
    ascii_only: AsciiOption = False,
    lang_: LangOption = None,
) -> None:
    """List the lessons in the order of the course, and how far you are."""
    from minivllm.learning.lesson import lesson_heads
    from minivllm.learning.progress import load_progress
    from minivllm.learning.wording import say

    lang = language(lang_, ascii_only=ascii_only)
    heads, progress = lesson_heads(lang=lang), load_progress()
    if as_json:
        print_json("walkthrough-list", {"walkthroughs": [_document(head, progress) for head in heads]})
        return
    from rich.table import Table

    from minivllm.entrypoints.cli.common import stdout_console
    from minivllm.entrypoints.cli.lesson_view import print_on

    table = Table(box=None, pad_edge=False)
    table.add_column("")
    for key in ("lesson", "what_it_asks", "minutes"):
        table.add_column(say(lang, key), justify="right" if key == "minutes" else "left")
    done, begun = ("x", ">") if ascii_only else ("✓", "▸")
    for head in heads:
        mark = {"done": done, "begun": begun, "new": ""}[_status(head, progress)]
        table.add_row(mark, head.name, head.title, str(head.minutes))
    print_on(stdout_console(width), table, ascii_only)
    note(say(lang, "next", command="minivllm walkthrough next"))


def _status(head: LessonHead, progress: Progress) -> str:
    if head.name in progress.pages:
        return "begun"
    return "done" if head.name in progress.done else "new"


def _document(head: LessonHead, progress: Progress) -> dict[str, str | int | None]:
    return {
        "name": head.name,
        "title": head.title,
        "minutes": head.minutes,
        "scenario": head.scenario,
        "status": _status(head, progress),
        "page": progress.pages.get(head.name),
    }


def run(
    name: LessonArgument,
    restart: RestartOption = False,
    width: WidthOption = None,
    ascii_only: AsciiOption = False,
    lang: LangOption = None,
) -> None:
    """Go through a lesson: Enter goes on, q leaves, and the next time it goes on where you were.

    Without a terminal the whole text is printed, with the answers.
    """
    from minivllm.learning.lesson import find_lesson
    from minivllm.learning.progress import load_progress

    progress = load_progress()
    lesson = find_lesson(name, language(lang, ascii_only=ascii_only))
    _go_through(lesson, progress, 0 if restart else progress.pages.get(lesson.name, 0), width, ascii_only)


def next_(width: WidthOption = None, ascii_only: AsciiOption = False, lang_: LangOption = None) -> None:
    """Go on with the lesson that was left, or with the first one that is not done."""
    from minivllm.learning.lesson import lesson_heads, read_lesson
    from minivllm.learning.progress import load_progress
    from minivllm.learning.wording import say

    lang = language(lang_, ascii_only=ascii_only)
    heads, progress = lesson_heads(lang=lang), load_progress()
    # What was left last comes first: a dictionary keeps the order in which lessons were left.
    begun = [head for name in reversed(progress.pages) for head in heads if head.name == name]
    new = [head for head in heads if head.name not in progress.done]
    if not begun and not new:
        print(say(lang, "all_done", count=len(heads)))
        note(say(lang, "next", command="minivllm quiz"))
        return
    head = (begun or new)[0]
    _go_through(read_lesson(head.path), progress, progress.pages.get(head.name, 0), width, ascii_only)


def _go_through(lesson: Lesson, progress: Progress, start: int, width: int | None, ascii_only: bool) -> None:
    from minivllm.entrypoints.cli.common import stdout_console
    from minivllm.entrypoints.cli.lesson_view import LessonView
    from minivllm.entrypoints.cli.terminal import is_terminal
    from minivllm.learning.facts import facts_of
    from minivllm.learning.fill import filler_of
    from minivllm.learning.wording import say

    interactive = is_terminal()
    num_pages = len(lesson.pages)
    start = start if interactive and start < num_pages else 0
    if start:
        note(say(lesson.lang, "going_on", page=start + 1, pages=num_pages))
    view = LessonView(
        lesson, filler_of(lesson, facts_of(lesson.scenario)), stdout_console(width), ascii_only=ascii_only
    )
    for page in range(start, num_pages):
        finished = view.draw(page, lambda question: _ask(question, view, progress, interactive, lesson.lang))
        if interactive:
            finished = finished and _goes_on(lesson.lang, is_last=page + 1 == num_pages)
            # Whoever leaves sees the page again, unless it was the last.
            progress.pages.pop(lesson.name, None)
            progress.reached(lesson.name, page + 1 if finished else page, num_pages)
            keep(progress, lesson.lang)
        if not finished:
            note(say(lesson.lang, "next", command=f"minivllm walkthrough run {lesson.name}"))
            return
    progress.reached(lesson.name, num_pages, num_pages)
    keep(progress, lesson.lang)
    note(say(lesson.lang, "next", command="minivllm walkthrough next"))


def keep(progress: Progress, lang: str) -> None:
    """Write progress, if it can be written: a lesson can be read without it."""
    from minivllm.learning.wording import say

    try:
        progress.save()
    except OSError as error:
        note(say(lang, "not_kept", error=f"{error.strerror}: {error.filename}"))


def _ask(question: Question, view: LessonView, progress: Progress, interactive: bool, lang: str) -> bool:
    from minivllm.learning.wording import say

    if not interactive:
        view.draw_answer(question, "")
        return True
    try:
        given = input(say(lang, "ask_in_lesson") + " ").strip()
    except EOFError:
        return False
    if given.lower() == "q":
        return False
    is_right = question.is_right(given)
    if given:
        progress.answered(question.id, is_right)
    print()
    view.draw_answer(question, say(lang, "right" if is_right else "wrong") if given else "")
    return True


def _goes_on(lang: str, *, is_last: bool) -> bool:
    """Wait for a key: Enter goes on, q leaves."""
    import os
    import sys
    import termios
    import tty

    from rich.cells import cell_len

    from minivllm.learning.wording import say

    words = say(lang, "ends" if is_last else "goes_on")
    keyboard = sys.stdin.fileno()
    before = termios.tcgetattr(keyboard)
    try:
        # A key that was pressed early still counts.
        tty.setcbreak(keyboard, termios.TCSADRAIN)
        print(words, end=" ", flush=True)
        while (key := os.read(keyboard, 1)) not in _ON + _OFF:
            pass
    finally:
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)
        print("\r" + " " * cell_len(words) + "\r", end="", flush=True)
    return key in _ON or is_last
