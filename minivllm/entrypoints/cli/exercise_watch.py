"""Owns the loop that checks a learner's file each time it is saved, and its keys."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from minivllm.entrypoints.cli.exercise import judged, keep, next_exercise, show_hint, take_up

if TYPE_CHECKING:
    from minivllm.entrypoints.cli.exercise_view import ExerciseView
    from minivllm.exercises.course import Exercise
    from minivllm.exercises.progress import ExerciseProgress

# How often the file is looked at.
_LOOK_SECONDS = 0.2
_QUIT = ("q", "\x04", "")
_ESCAPE = b"\x1b"
_CLEAR = "\x1b[H\x1b[2J\x1b[3J"

# When it was written, and how long it is.
Saved = tuple[int, int] | None


class Watch:
    """The loop.

    Args:
        exercise: Where to begin.
        folder: The learner's folder; None for the usual one.
        progress: What is remembered.
        view: Draws.
        lang: Language of the hints.
    """

    def __init__(
        self, exercise: Exercise, folder: Path | None, progress: ExerciseProgress, view: ExerciseView, lang: str = "en"
    ) -> None:
        self._exercise = exercise
        self._folder = folder
        self._progress = progress
        self._view = view
        self._lang = lang
        self._hints = 0
        self._checked: Saved = None
        self._open()

    def _open(self) -> None:
        self._workshop = take_up(self._exercise, self._folder, self._progress)
        self._file = self._workshop.file(self._exercise)
        self._hints = 0

    def run(self) -> None:
        """Until q is pressed."""
        with _single_keys():
            self._begin()
            while True:
                key = _key()
                if key in _QUIT:
                    print()
                    return
                if key is not None:
                    self._press(key)
                elif saved(self._file) not in (None, self._checked):
                    self._check()  # an editor may take the file away for a moment while it saves: None

    def _begin(self) -> None:
        print(_CLEAR, end="")
        self._view.task(self._exercise, self._file)
        print()
        self._check(clear=False)

    def _press(self, key: str) -> None:
        if key == "n":
            self._next()
        elif key == "h":
            self._hint()
        elif key == "l":
            from minivllm.exercises.course import exercises

            print("\n")
            self._view.listing(exercises(), self._progress)
            self._prompt()
        elif key == "c":
            self._check()
        elif key == "x":
            self._reset()

    def _check(self, *, clear: bool = True) -> None:
        from minivllm.exercises.course import ExerciseError

        if clear:
            print(_CLEAR, end="")
        self._checked = saved(self._file)  # before it is read: who saves during the check has it checked again
        print(f"Checking {self._exercise.file} ... please wait", flush=True)
        try:
            report = judged(self._exercise, self._workshop, self._progress)
        except ExerciseError as error:
            self._view.say(str(error), "bold red")
            self._prompt()
            return
        print()
        self._view.report(report)
        if report.passed:
            self._view.say(f"All {len(report.tasks)} tasks hold.", "bold green")
            print()
            self._view.explanation(self._exercise)
        self._prompt()

    def _next(self) -> None:
        following = next_exercise(self._progress, after=self._exercise.name)
        if following is None:
            print("\n\nThere is no other exercise that you have not passed.")
            self._prompt()
            return
        self._exercise = following
        self._open()
        self._begin()

    def _hint(self) -> None:
        self._hints = min(self._hints + 1, len(self._exercise.hints))
        print("\n")
        show_hint(self._exercise, self._hints, self._view, self._lang)
        self._progress.hints[self._exercise.name] = max(self._hints, self._progress.hints.get(self._exercise.name, 0))
        keep(self._progress)
        self._prompt()

    def _reset(self) -> None:
        print(f"\n\nPut {self._file} back to its beginning? y: yes, any other key: no ", end="", flush=True)
        key = None
        while key is None:
            key = _key()
        if key == "y":
            kept = self._workshop.reset(self._exercise)
            self._check()
            print(f"\nYours is in {kept}" if kept else "")
        self._prompt()

    def _prompt(self) -> None:
        from minivllm.exercises.course import exercises

        names = [exercise.name for exercise in exercises()]
        self._view.bar(sum(name in self._progress.passed for name in names), len(names))
        self._view.say(f"{self._file}", "cyan")
        print("n:next / h:hint / l:list / c:check / x:reset / q:quit ? ", end="", flush=True)


def saved(file: Path) -> Saved:
    """When a file was written last, and its size; None if it is not there."""
    try:
        state = file.stat()
    except OSError:
        return None
    return state.st_mtime_ns, state.st_size


@contextmanager
def _single_keys() -> Iterator[None]:
    """Keys come one by one, and are not shown."""
    import termios
    import tty

    keyboard = sys.stdin.fileno()
    before = termios.tcgetattr(keyboard)
    try:
        tty.setcbreak(keyboard, termios.TCSADRAIN)
        yield
    finally:
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)


def _key() -> str | None:
    """The next key; None if none is pressed for a moment, or one without a letter; "" at the end of the input."""
    if not _is_typed(_LOOK_SECONDS):
        return None
    try:
        key = os.read(sys.stdin.fileno(), 1)
        if key != _ESCAPE:
            return key.decode("ascii", "replace").lower()
        _skip_sequence()
        return None
    except OSError:  # the terminal is gone
        return ""


def _skip_sequence() -> None:
    """The rest of what a key without a letter sends: an arrow is Esc [ C, and no c for a check."""
    keyboard = sys.stdin.fileno()
    if not _is_typed(0) or os.read(keyboard, 1) not in (b"[", b"O"):
        return
    while _is_typed(0) and (part := os.read(keyboard, 1)) and not b"@" <= part <= b"~":
        pass


def _is_typed(seconds: float) -> bool:
    return bool(select.select([sys.stdin], [], [], seconds)[0])
