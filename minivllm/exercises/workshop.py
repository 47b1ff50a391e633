"""Owns the learner's folder: where it is, putting a starter file there, and putting it back."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path

from minivllm.exercises.course import Exercise, ExerciseError
from minivllm.exercises.progress import ExerciseProgress

FOLDER = Path("minivllm-exercises")
_RUNS = "runs"


@dataclass(frozen=True, slots=True)
class Workshop:
    """A learner's folder.

    Attributes:
        folder: It.
    """

    folder: Path

    @property
    def runs(self) -> Path:
        """Logs of the runs that the last checks made."""
        return self.folder / _RUNS

    @property
    def option(self) -> str:
        """What a command needs to find it again, with a blank in front; "" if it would look there anyway."""
        return "" if self.folder in (FOLDER, Path(".")) else f" --dir {shlex.quote(str(self.folder))}"

    def file(self, exercise: Exercise) -> Path:
        """The learner's file, whether it is there or not."""
        return self.folder / exercise.file

    def start(self, exercise: Exercise) -> bool:
        """Put the starter file there, unless the learner has one. Returns whether it was put."""
        file = self.file(exercise)
        if file.exists():
            return False
        self.folder.mkdir(parents=True, exist_ok=True)
        file.write_text(starter_text(exercise), encoding="utf-8")
        return True

    def reset(self, exercise: Exercise) -> Path | None:
        """Begin anew. What the learner had is kept beside it, as NAME.py.before-reset. Returns where.

        A file that is still as it was at the beginning is not kept: it would take the place of what was kept before.
        """
        file = self.file(exercise)
        kept = None
        if file.exists() and not (file.is_file() and file.read_bytes() == starter_text(exercise).encode()):
            kept = file.with_name(file.name + ".before-reset")
            file.replace(kept)
        self.start(exercise)
        return kept

    def written(self, exercise: Exercise) -> Path:
        """The learner's file.

        Raises:
            ExerciseError: It is not there.
        """
        file = self.file(exercise)
        if file.is_dir():
            raise ExerciseError(f"{file} is a folder; the exercise's file has to be there: move the folder away")
        if not file.is_file():
            start = f"minivllm exercise start {exercise.name}{self.option}"
            raise ExerciseError(f"there is no {file}; run: {start}")
        return file


def starter_text(exercise: Exercise) -> str:
    """What the learner's file begins as."""
    return exercise.starter.read_text(encoding="utf-8")


def find_workshop(asked: Path | None, progress: ExerciseProgress) -> Workshop:
    """The learner's folder: the one asked for, the one below here, the one used last; else a new one below here."""
    if asked is not None:
        return Workshop(asked)
    if FOLDER.is_dir():
        return Workshop(FOLDER)
    if progress.folder is not None and Path(progress.folder).is_dir():
        remembered = Path(progress.folder)
        return Workshop(remembered if remembered != Path.cwd() else Path("."))
    return Workshop(FOLDER)
