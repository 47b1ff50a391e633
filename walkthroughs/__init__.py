"""Guided lessons: each folder holds a text, and what a run of its scenario must show.

The numbers in a text are not typed and hoped for: tests/walkthroughs runs each lesson's scenario and compares.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

_HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Lesson:
    """One lesson.

    Attributes:
        name: Its folder's name, with hyphens: `mixed-batch`.
        title: First heading of its text.
        minutes: How long it takes.
        scenario: The run that it is about.
        text: The lesson, in Markdown.
        expected: What that run must show.
    """

    name: str
    title: str
    minutes: int
    scenario: str
    text: str
    expected: dict[str, Any]


def lessons() -> list[Lesson]:
    """Every lesson of the package, by name."""
    return [_read(path.parent) for path in sorted(_HERE.glob("*/lesson.md"))]


def find_lesson(name: str) -> Lesson:
    """A lesson by name. Raises KeyError, with the names that exist, if there is none."""
    by_name = {lesson.name: lesson for lesson in lessons()}
    if name not in by_name:
        raise KeyError(f"there is no lesson {name!r}; there are: {', '.join(by_name)}")
    return by_name[name]


def _read(folder: Path) -> Lesson:
    text = (folder / "lesson.md").read_text(encoding="utf-8")
    expected = msgspec.json.decode((folder / "expected.json").read_bytes())
    title = text.splitlines()[0].removeprefix("# ")
    name = folder.name.replace("_", "-")
    return Lesson(name, title, expected["minutes"], expected["scenario"], text, expected)
