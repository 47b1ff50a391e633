"""Owns what is remembered of a learner: how far each lesson was read, and which questions were answered rightly."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from minivllm.trace.store import state_home, write_whole

_SCHEMA = "minivllm.learning/1"


class _File(msgspec.Struct):
    schema: str = _SCHEMA
    pages: dict[str, int] = {}
    done: list[str] = []
    right: list[str] = []


def progress_path() -> Path:
    """The file: learning.json, beside the folder of logs."""
    return state_home().parent / "learning.json"


@dataclass(slots=True)
class Progress:
    """One learner's progress.

    Attributes:
        pages: Of a lesson that was left in the middle: the page to go on with.
        done: Lessons that were read to the end, in that order.
        right: Ids of the questions that were answered rightly.
    """

    pages: dict[str, int] = field(default_factory=dict)
    done: list[str] = field(default_factory=list)
    right: list[str] = field(default_factory=list)

    def reached(self, lesson: str, page: int, num_pages: int) -> None:
        """A lesson was read up to a page: the next one to show. At its end it is done."""
        if page < num_pages:
            self.pages[lesson] = page
            return
        self.pages.pop(lesson, None)
        if lesson not in self.done:
            self.done.append(lesson)

    def answered(self, question: str, is_right: bool) -> None:
        """A question was answered; what was right once stays right."""
        if is_right and question not in self.right:
            self.right.append(question)

    def save(self) -> None:
        """Write it.

        Raises:
            OSError: The folder cannot be written.
        """
        path = progress_path()
        path.parent.mkdir(parents=True, exist_ok=True)
        raw = msgspec.json.encode(_File(_SCHEMA, self.pages, self.done, self.right))
        write_whole(path, [raw.decode()])


def load_progress() -> Progress:
    """What is remembered; nothing if there is no file yet.

    Raises:
        ValueError: The file is not one of ours.
    """
    path = progress_path()
    try:
        file = msgspec.json.decode(path.read_bytes(), type=_File)
    except (FileNotFoundError, NotADirectoryError):
        return Progress()
    except msgspec.DecodeError as error:
        raise ValueError(f"{path} cannot be read ({error}); delete it to begin the course anew") from None
    return Progress(file.pages, file.done, file.right)
