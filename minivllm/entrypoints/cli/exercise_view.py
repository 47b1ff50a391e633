"""Owns how exercises look: the task, what a check found, hints, the list, how far one is."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from minivllm.entrypoints.cli.common import note
from minivllm.entrypoints.cli.lesson_view import print_on

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console, RenderableType
    from rich.text import Text

    from minivllm.exercises.course import Exercise
    from minivllm.exercises.progress import ExerciseProgress
    from minivllm.exercises.report import MapPlace, Report, TaskResult

_MARKS = {"pass": "✓", "fail": "✗", "error": "✗", "not_run": "·"}
_ASCII_MARKS = {"pass": "ok", "fail": "NO", "error": "NO", "not_run": "--"}
_COLOURS = {"pass": "green", "fail": "bold red", "error": "bold red", "not_run": "dim"}
_STATUS_MARKS = {"passed": "✓", "started": "▸", "new": ""}
_ASCII_STATUS_MARKS = {"passed": "x", "started": ">", "new": ""}
# Narrower than this there is a number instead of a bar.
_LEAST_BAR = 50
_MOST_BAR = 60


class ExerciseView:
    """Draws exercises.

    Args:
        console: Where to.
        ascii_only: Use no character beyond ASCII.
        hints: Say on stderr where to see more.
    """

    def __init__(self, console: Console, *, ascii_only: bool, hints: bool = True) -> None:
        self.console = console
        self._hints = hints
        self._ascii_only = ascii_only

    def task(self, exercise: Exercise, file: Path) -> None:
        """What is to be done, and what will be checked."""
        from rich.text import Text

        self._title(f"{exercise.name}: {exercise.title}")
        self.markdown(exercise.task)
        self._print(Text("What is checked", style="bold"))
        self._rows([(Text(f"  {task.number}."), Text(task.title)) for task in exercise.tasks])
        self._print("")
        self._print(Text.assemble("Your file: ", (str(file), "cyan")))

    def report(self, report: Report) -> None:
        """What a check found: a line for each task, and everything about the first that does not hold."""
        from rich.text import Text

        marks = _ASCII_MARKS if self._ascii_only else _MARKS
        if report.problem is None:
            rows = [(Text(marks[t.status], _COLOURS[t.status]), Text(f"{t.task}. {t.title}")) for t in report.tasks]
            self._rows(rows)
        else:
            self._print(Text(report.problem, style="bold red"))
        self._print("")
        told = []
        if (failed := report.first_failed) is not None:
            told = [failed]
            # A part that is wrong when it is called alone does something to the engine, too.
            seen = [task for task in report.tasks if task.status in ("fail", "error") and task.map is not None]
            told += [] if failed.map is not None else seen[:1]
        for task in told:
            self._failure(task)
        self._printed([task for task in report.tasks if task.output and task not in told])

    def _printed(self, tasks: list[TaskResult]) -> None:
        """What was printed in tasks that are not told of: in a run that several look at, it is with the first."""
        from rich.text import Text

        if not tasks:
            return
        rows = [(Text(f"printed in task {t.task}:", style="dim"), Text(t.output or "", overflow="fold")) for t in tasks]
        self._rows(rows)
        self._print("")

    def _failure(self, task: TaskResult) -> None:
        from rich.text import Text

        self._title(f"task {task.task}: {task.title}")
        if task.message:
            self._print(Text(task.message, style="bold red"))
        facts = {"call": task.call, "expected": task.expected, "got": task.got, "in": task.place}
        told = [(name, value) for name, value in {**facts, "printed": task.output}.items() if value]
        self._rows([(Text(f"  {name}", style="dim"), Text(value, overflow="fold")) for name, value in told])
        self._print("")
        if task.map is not None:
            self._map(task.map)

    def _map(self, place: MapPlace) -> None:
        from rich.text import Text

        self._print(Text(f"The {place.kind} map of your run, iteration {place.iteration}:", style="bold"))
        drawn = draw_map(place, self.console, self._ascii_only)
        if drawn:
            note(drawn)
        if not self._hints:
            return
        of = f" --request {place.request}" if place.request else ""
        note(f"more: minivllm map {place.kind} --log {place.log} --iteration {place.iteration}{of}")

    def solution(self, exercise: Exercise) -> None:
        """One that passes."""
        from rich.syntax import Syntax

        source = exercise.solution.read_text(encoding="utf-8").strip()
        if self.console.is_terminal:
            self._print(Syntax(source, "python", background_color="default", word_wrap=True))
        else:
            self.console.print(source, soft_wrap=True)
        self._print("")

    def explanation(self, exercise: Exercise) -> None:
        """What to take away, and where it is in both sources."""
        from rich.text import Text

        from minivllm.learning.question import vllm_place
        from minivllm.sourcemap.locate import shown

        self.markdown(exercise.explanation)
        for ours in exercise.links:
            self._print(Text.assemble("  ", ours.rpartition(":")[2], ("  " + shown(ours), "cyan")))
            self._print(Text(f"      vLLM 0.27.1  {vllm_place(ours) or 'has no such thing'}", style="dim"))
        self._print("")

    def listing(self, exercises: tuple[Exercise, ...], progress: ExerciseProgress) -> None:
        """All of them, and how far one is."""
        from rich.table import Table

        marks = _ASCII_STATUS_MARKS if self._ascii_only else _STATUS_MARKS
        table = Table(box=None, pad_edge=False)
        for name in ("", "exercise", "level", "what it is about"):
            table.add_column(name, justify="right" if name == "level" else "left")
        kind = None
        for exercise in exercises:
            if exercise.kind != kind:
                kind = exercise.kind
                table.add_row("", "build a part" if kind == "build" else "find a bug", "", "", style="bold")
            mark = marks[progress.status(exercise.name)]
            table.add_row(mark, exercise.name, str(exercise.level), exercise.title)
        self._print(table)

    def bar(self, done: int, total: int) -> None:
        """How many are done: a bar, or a number where there is no room."""
        from rich.text import Text

        counted = f"{done}/{total}"
        room = min(self.console.width, _MOST_BAR) - len(counted) - len("Progress: [] ")
        if self.console.width < _LEAST_BAR:
            self._print(Text(f"Progress: {counted}"))
            return
        filled = room * done // max(total, 1)
        full, rest = ("#", "-") if self._ascii_only else ("█", "░")
        self._print(Text.assemble("Progress: [", (full * filled, "green"), rest * (room - filled), f"] {counted}"))

    def markdown(self, text: str) -> None:
        """Prose."""
        from minivllm.entrypoints.cli.lesson_view import markdown_of

        self._print(markdown_of(text))
        self._print("")

    def say(self, text: str, style: str = "") -> None:
        """A line."""
        from rich.text import Text

        self._print(Text(text, style=style))

    def _rows(self, rows: list[tuple[Text, Text]]) -> None:
        """A word or a mark, and what belongs to it."""
        from rich.table import Table

        table = Table.grid(padding=(0, 1))
        for row in rows:
            table.add_row(*row)
        self._print(table)

    def _title(self, text: str) -> None:
        from rich.text import Text

        dash = "-" if self._ascii_only else "─"
        self._print(Text(f"{dash * 2} {text}", style="bold"))
        self._print("")

    def _print(self, what: RenderableType) -> None:
        print_on(self.console, what, self._ascii_only)


def draw_map(place: MapPlace, console: Console, ascii_only: bool) -> str:
    """Draw a slice of a map. Returns why it cannot be drawn; "" if it can."""
    from pathlib import Path

    from minivllm.analysis.iteration import BROKEN
    from minivllm.entrypoints.cli.map_view import MapView
    from minivllm.trace.reader import read_log

    try:
        MapView(place.kind, str(place.iteration), place.request, ascii_only).draw(read_log(Path(place.log)), console)
    except (ValueError, *BROKEN) as error:
        return f"it cannot be drawn: {error}"
    return ""


def map_text(place: MapPlace, width: int) -> str | None:
    """The slice as text, for a JSON document; None if it cannot be drawn."""
    from rich.console import Console

    screen = Console(file=io.StringIO(), width=width, color_system=None, highlight=False, markup=False, emoji=False)
    if draw_map(place, screen, ascii_only=False):
        return None
    assert isinstance(screen.file, io.StringIO)
    return screen.file.getvalue()
