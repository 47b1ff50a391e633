"""Owns how a lesson looks: its text, what its commands print, its questions, and its places in the source."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import sys
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar

from minivllm.learning.fill import Filler
from minivllm.learning.lesson import Block, Lesson, LessonError, Page
from minivllm.learning.question import Question, read_question, vllm_place
from minivllm.learning.wording import say

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

_COLOURS = re.compile(r"\x1b\[[0-9;]*m|\x1b\]8;[^\x1b]*\x1b\\")

# What rich draws for Markdown.
_MARKDOWN_ASCII = str.maketrans("•▌━▸✓✗’‘", "*|->xx''")

# What is done with a question once it is on the screen. Returns False if the learner leaves.
Asked = Callable[[Question], bool]


class LessonView:
    """Draws the pages of a lesson.

    Args:
        lesson: The lesson.
        filler: Its run's values.
        console: Where to.
        ascii_only: Use no character beyond ASCII.
    """

    def __init__(self, lesson: Lesson, filler: Filler, console: Console, *, ascii_only: bool) -> None:
        self._lesson = lesson
        self._filler = filler
        self._console = console
        self._ascii_only = ascii_only
        self._asks = lesson.blocks("ask")

    def draw(self, number: int, asked: Asked) -> bool:
        """Draw a page; `asked` is called after each question.

        Returns:
            False if it ended early, because the learner left.
        """
        from rich.text import Text

        page = self._lesson.pages[number]
        place = say(self._lesson.lang, "page", page=number + 1, pages=len(self._lesson.pages))
        dash = "-" if self._ascii_only else "─"
        self._print(Text(f"{dash * 2} {page.title} {dash * 2} {place}", style="bold"))
        self._print("")
        return all(self._draw_block(block, page, asked) for block in page.blocks)

    def _draw_block(self, block: Block, page: Page, asked: Asked) -> bool:
        if block.kind == "text":
            body = block.body.removeprefix(f"## {page.title}").strip()
            if body:
                self._markdown(self._filler.fill(body))
        elif block.kind == "run":
            self._run(block)
        elif block.kind == "where":
            self._where(block)
        elif block.kind == "ask":
            return self._ask(block, asked)
        return True

    def _ask(self, block: Block, asked: Asked) -> bool:
        from rich.text import Text

        question = read_question(block, self._filler, question_id(self._lesson, self._asks.index(block)))
        self._markdown(say(self._lesson.lang, "question", text=question.text))
        for line in question.lines():
            self._print(Text(f"  {line}"))
        if question.choices:
            self._print("")
        return asked(question)

    def _run(self, block: Block) -> None:
        from rich.text import Text

        command, lines = output_of(
            block,
            self._filler,
            self._console.width,
            self._ascii_only,
            self._console.is_terminal,
            lang=self._lesson.lang,
        )
        self._print(Text(f"$ {command}", style="bold cyan"))
        for line in lines:
            self._console.print(Text.from_ansi(line), soft_wrap=True)
        self._print("")

    def _where(self, block: Block) -> None:
        from rich.text import Text

        for ours, here, vllm in places(block):
            self._print(Text.assemble("  ", ours.rpartition(":")[2], ("  " + here, "cyan")))
            found = vllm or say(self._lesson.lang, "not_in_vllm")
            self._print(Text(f"      vLLM 0.27.1  {found}", style="dim"))
        self._print("")

    def draw_answer(self, question: Question, verdict: str) -> None:
        """Say what was right, why, and where the rule stands.

        Args:
            question: The question.
            verdict: What is said of the answer that was given; "" if none was.
        """
        draw_answer(question, verdict, self._lesson.lang, self._markdown, self._print)

    def _markdown(self, text: str) -> None:
        self._print(markdown_of(text))
        self._print("")

    def _print(self, what: RenderableType) -> None:
        print_on(self._console, what, self._ascii_only)


def draw_answer(
    question: Question,
    verdict: str,
    lang: str,
    markdown: Callable[[str], None],
    show: Callable[[RenderableType], None],
) -> None:
    """Say what was right, why, and where the rule stands."""
    from rich.text import Text

    from minivllm.sourcemap.locate import shown

    answer = question.right.replace("*", "\\*").replace("_", "\\_")
    markdown(say(lang, "answer", verdict=verdict, answer=answer, why=question.why))
    show(Text(f"  {say(lang, 'here')}  {shown(question.ours)}", style="dim"))
    if vllm := vllm_place(question.ours):
        show(Text(f"  vLLM  {vllm}", style="dim"))
    show("")


def markdown_of(text: str) -> Any:
    """Markdown for a console; Chinese is wrapped as Chinese is."""
    from rich.markdown import Markdown, MarkdownContext, MarkdownElement, Paragraph, TableDataElement

    from minivllm.maps.render.wrap import WrappedText

    class WrappedParagraph(Paragraph):
        def on_enter(self, context: MarkdownContext) -> None:
            super().on_enter(context)
            self.text = WrappedText(justify="left")

    class WrappedCell(TableDataElement):
        def __init__(self, justify: Any) -> None:
            super().__init__(justify)
            self.content = WrappedText("", justify=justify)

    class WrappedMarkdown(Markdown):
        elements: ClassVar[dict[str, type[MarkdownElement]]] = {
            **Markdown.elements,
            "paragraph_open": WrappedParagraph,
            "td_open": WrappedCell,
            "th_open": WrappedCell,
        }

    return WrappedMarkdown(text, hyperlinks=False)


def print_on(console: Console, what: RenderableType, ascii_only: bool) -> None:
    """Print something, in ASCII if that is asked for."""
    from rich.text import Text

    if not ascii_only:
        console.print(what)
        return
    from minivllm.maps.render.style import to_ascii

    with console.capture() as captured:
        console.print(what)
    plain = to_ascii(captured.get().removesuffix("\n").translate(_MARKDOWN_ASCII))
    console.print(Text.from_ansi(plain), soft_wrap=True)


def question_id(lesson: Lesson, place: int) -> str:
    """The name of a lesson's question, by its place from 0."""
    return f"{lesson.name}/{place + 1}"


def places(block: Block) -> list[tuple[str, str, str | None]]:
    """The symbols of a `where` block: ours, its file and line, vLLM's symbol.

    Raises:
        LessonError: A symbol is not there, or not on the source map.
    """
    from minivllm.sourcemap.locate import locate, shown
    from minivllm.sourcemap.rows import rows

    found = []
    for ours in block.body.split():
        if locate(ours) is None or not any(row.ours == ours for row in rows()):
            raise LessonError(f"there is no {ours} on the source map; see: minivllm where --tree")
        found.append((ours, shown(ours), vllm_place(ours)))
    return found


def output_of(
    block: Block,
    filler: Filler,
    width: int,
    ascii_only: bool = False,
    is_terminal: bool = False,
    lang: str = "en",
) -> tuple[str, list[str]]:
    """Carry out a `run` block.

    Args:
        block: The block.
        filler: Values for its placeholders.
        width: Columns.
        ascii_only: Use no character beyond ASCII.
        is_terminal: Whether the lines go to a terminal, and may have colours.
        lang: The language to ask for, of commands that speak more than one.

    Returns:
        The command, and the lines of its output, cut as the block says.

    Raises:
        LessonError: The command prints nothing.
    """
    command, *cuts = filler.fill(block.body).strip().splitlines()
    program, *args = shlex.split(command)
    if _speaks(args):
        args += ["--lang", lang]
        command += f" --lang {lang}" if lang != "en" else ""
    screen = _Screen(is_terminal)
    with contextlib.redirect_stdout(screen), contextlib.redirect_stderr(io.StringIO()) as complaints:
        _commands()(
            [*args, "--width", str(width), *(["--ascii"] if ascii_only else [])], program, standalone_mode=False
        )
    lines = [line.rstrip() for line in screen.getvalue().strip("\n").splitlines()]
    if not lines:
        raise LessonError(f"{command} prints nothing: {complaints.getvalue().strip()}")
    for cut in cuts:
        side, _, words = cut.partition(": ")
        english, _, own = words.partition(" | ")
        lines = _cut(lines, side, own or english)
    return command, lines


def _speaks(args: list[str]) -> bool:
    """Whether a command has the option --lang."""
    command = _commands()
    for word in args:
        below = getattr(command, "commands", {})
        if word not in below:
            break
        command = below[word]
    return any("--lang" in parameter.opts for parameter in command.params)


@lru_cache(maxsize=1)
def _commands() -> Any:
    """The command line, put together once for all commands of a lesson."""
    from typer.main import get_command

    from minivllm.entrypoints.cli.main import app

    return get_command(app)


def _cut(lines: list[str], side: str, words: str) -> list[str]:
    """Lines from the one with some words on, or up to it. At another width the output may be laid out without them."""
    found = [place for place, line in enumerate(lines) if place and words in _COLOURS.sub("", line)]
    if not found:
        return lines
    return lines[found[0] :] if side == "from" else lines[: found[0]]


class _Screen(io.StringIO):
    """What a command writes to, instead of stdout."""

    def __init__(self, is_terminal: bool) -> None:
        super().__init__()
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal

    def fileno(self) -> int:
        return sys.__stdout__.fileno() if sys.__stdout__ is not None else 1
