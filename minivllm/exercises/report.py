"""Owns the form in which the result of a check travels: from the process that judges to the one that shows."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from minivllm.exercises.course import Exercise

# Of what the learner's code printed, so much is kept.
MAX_OUTPUT = 500


class MapPlace(msgspec.Struct, frozen=True):
    """The slice of a map that shows what is wrong.

    Attributes:
        kind: Which map: "plan", "state", ...
        iteration: Of which iteration.
        request: Of which request; None for all.
        log: File with the learner's run.
        text: The slice, drawn; filled in by whoever shows it.
    """

    kind: str
    iteration: int
    log: str
    request: str | None = None
    text: str | None = None


class TaskResult(msgspec.Struct):
    """The result of one task.

    Attributes:
        task: Its number.
        name, title: See `course.Task`.
        status: "error" if the learner's code raised or ran too long; "not_run" if that was found out before.
        message: What is wrong, in a sentence.
        call, expected, got: What was called, what it should have given, what it gave.
        place: Line of the learner's file, "file.py:12: source".
        output: What the learner's code printed.
        map: What to look at.
    """

    task: int
    name: str
    title: str
    status: Literal["pass", "fail", "error", "not_run"] = "not_run"
    message: str | None = None
    call: str | None = None
    expected: str | None = None
    got: str | None = None
    place: str | None = None
    output: str | None = None
    map: MapPlace | None = None


class Report(msgspec.Struct):
    """The result of a check.

    Attributes:
        exercise: Its name.
        file: The file that was judged.
        passed: Every task holds.
        problem: Why nothing could be checked; None if it could.
        tasks: One result each, in order.
        seconds: How long the tests took.
    """

    exercise: str
    file: str
    passed: bool
    problem: str | None
    tasks: list[TaskResult]
    seconds: float = 0.0

    @property
    def first_failed(self) -> TaskResult | None:
        """The task to look at."""
        return next((task for task in self.tasks if task.status in ("fail", "error")), None)


def new_report(exercise: Exercise, file: Path) -> Report:
    """A report in which nothing has been run yet."""
    results = [TaskResult(task.number, task.name, task.title) for task in exercise.tasks]
    return Report(exercise.name, str(file), False, None, results)
