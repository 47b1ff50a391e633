"""Owns what is remembered of a learner's exercises: where the files are, what passed, which hints were read."""

from __future__ import annotations

from pathlib import Path

import msgspec

from minivllm.learning.progress import progress_path as lessons_path
from minivllm.trace.store import write_whole

_SCHEMA = "minivllm.exercises/1"


class ExerciseProgress(msgspec.Struct):
    """One learner's progress.

    Attributes:
        folder: Where the learner's files are; None before the first `start`.
        current: The exercise that was started or checked last.
        started, passed, given_up: Names of exercises, in that order in time.
        hints: How many hints of an exercise were read.
    """

    schema: str = _SCHEMA
    folder: str | None = None
    current: str | None = None
    started: list[str] = []
    passed: list[str] = []
    given_up: list[str] = []
    hints: dict[str, int] = {}

    def status(self, name: str) -> str:
        """new, started or passed."""
        if name in self.passed:
            return "passed"
        return "started" if name in self.started else "new"

    def start(self, name: str) -> None:
        """An exercise was taken up."""
        self.current = name
        if name not in self.started:
            self.started.append(name)

    def passes(self, name: str) -> None:
        """All its checks hold; what passed once stays passed."""
        if name not in self.passed:
            self.passed.append(name)

    def may_see_solution(self, name: str) -> bool:
        """Passed, or given up."""
        return name in self.passed or name in self.given_up

    def save(self) -> None:
        """Write it.

        Raises:
            OSError: The folder cannot be written.
        """
        path = exercises_path()
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, [msgspec.json.encode(self).decode()])


def exercises_path() -> Path:
    """The file: exercises.json, beside that of the lessons."""
    return lessons_path().with_name("exercises.json")


def load_exercise_progress() -> ExerciseProgress:
    """What is remembered; nothing if there is no file yet.

    Raises:
        ValueError: The file is not one of ours.
    """
    path = exercises_path()
    try:
        return msgspec.json.decode(path.read_bytes(), type=ExerciseProgress)
    except (FileNotFoundError, NotADirectoryError):
        return ExerciseProgress()
    except msgspec.DecodeError as error:
        raise ValueError(f"{path} cannot be read ({error}); delete it to begin the exercises anew") from None
