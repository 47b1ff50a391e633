"""Owns what an exercise is and where its files are: reading a folder's `exercise.toml`, texts and tasks. No engine.

A folder of an exercise, in `parts/` (to build) or `bugs/`, by its kind:

    exercise.toml    title, level, the learner's file, what it replaces in the engine (see `Exercise`)
    task.md          what is to be done
    starter.py       what the learner gets; solution.py has the same interface
    checks.py        tests with the fixture `bench` (see `bench.py`); each is one task, its docstring says which
    hints.md         three hints under headings: a nudge, where to look, almost the answer; hints.zh.md in Chinese
    explanation.md   shown after passing
    fault.py         only of a bug: what is planted into the engine
    seam.py          only where needed: `seam(part)` gives what takes the place of which symbol
"""

from __future__ import annotations

import ast
import difflib
import re
import tomllib
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Literal

HERE = Path(__file__).parent
# Folder of each kind, in the order of the course.
_FOLDERS: dict[Literal["build", "bug"], str] = {"build": "parts", "bug": "bugs"}
NUM_HINTS = 3


class ExerciseError(ValueError):
    """An exercise that does not exist, or whose folder is incomplete; the message says which and what to do."""


@dataclass(frozen=True, slots=True)
class Task:
    """One thing that is checked.

    Attributes:
        number: From 1.
        name: The function in `checks.py`.
        title: What has to hold.
    """

    number: int
    name: str
    title: str


@dataclass(frozen=True, slots=True)
class Break:
    """A slip in the solution: text that is replaced. The checks must notice.

    Attributes:
        find, put: Text of the solution, and what stands there instead.
        engine: The engine must then plan or say something else, too.
    """

    find: str
    put: str
    engine: bool = True


@dataclass(frozen=True)
class Exercise:
    """One exercise.

    Attributes:
        path: Its folder.
        kind: "build": the learner writes the part; "bug": something is wrong in the engine.
        title: In one line, what it is about.
        level: 1 (easy) to 5.
        order: Its place in the course.
        minutes: About how long it takes.
        file: Name of the learner's file, after the part.
        replaces: Symbols of the engine, "module:qualname", and the name in the learner's file that takes their place.
        also: Other names that the learner's file must have, because the checks use them.
        plants: Symbols of the engine, and the name in `fault.py` that takes their place.
        seam: `seam.py` says how the part gets into the engine, where its symbol does not fit as it is.
        links: Symbols on the source map to read afterwards; the way to vLLM's.
        interpreter: Kernels run in Triton's interpreter.
        breaks: Slips that the checks and the engine must notice.
    """

    path: Path
    kind: Literal["build", "bug"]
    title: str
    level: int
    order: int
    minutes: int
    file: str
    replaces: dict[str, str] = field(default_factory=dict)
    also: tuple[str, ...] = ()
    plants: dict[str, str] = field(default_factory=dict)
    seam: bool = False
    links: tuple[str, ...] = ()
    interpreter: bool = False
    breaks: tuple[Break, ...] = ()

    @property
    def name(self) -> str:
        """For the command line: "block-hash"."""
        return self.path.name.replace("_", "-")

    @property
    def starter(self) -> Path:
        """What the learner begins with."""
        return self.path / "starter.py"

    @property
    def solution(self) -> Path:
        """One that passes."""
        return self.path / "solution.py"

    @property
    def checks(self) -> Path:
        """Its tests."""
        return self.path / "checks.py"

    @property
    def parts(self) -> tuple[str, ...]:
        """Names that the learner's file must have."""
        return tuple(dict.fromkeys([*self.replaces.values(), *self.also]))

    @property
    def task(self) -> str:
        """The task, as Markdown."""
        return self._text("task.md")

    @property
    def explanation(self) -> str:
        """What to take away, as Markdown."""
        return self._text("explanation.md")

    @cached_property
    def hints(self) -> list[str]:
        """Three hints, as Markdown, the faintest first."""
        return self.hints_in("en")

    def hints_in(self, lang: str) -> list[str]:
        """The hints in a language; in English where there are none in it."""
        own = f"hints.{lang}.md"
        text = self._text(own if (self.path / own).exists() else "hints.md")
        return [part.strip() for part in re.split(r"^## .*$", text, flags=re.M)[1:]]

    @cached_property
    def tasks(self) -> list[Task]:
        """What is checked, in order."""
        tree = ast.parse(self.checks.read_text(encoding="utf-8"))
        tests = [n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name.startswith("test_")]
        return [
            Task(number, test.name, " ".join((ast.get_docstring(test) or test.name).split("\n\n")[0].split()))
            for number, test in enumerate(tests, 1)
        ]

    def module(self, name: str) -> str:
        """The import name of one of its files: "checks", "fault", ..."""
        return f"minivllm.exercises.{self.path.parent.name}.{self.path.name}.{name}"

    def _text(self, name: str) -> str:
        try:
            return (self.path / name).read_text(encoding="utf-8").strip()
        except OSError as error:
            raise ExerciseError(
                f"{self.path / name} cannot be read: {error.strerror}; install minivllm again"
            ) from None


@lru_cache(maxsize=1)
def exercises() -> tuple[Exercise, ...]:
    """Every exercise, in the order of the course: those to build first."""
    found = []
    for kind, folder in _FOLDERS.items():
        heads = [_read(path, kind) for path in sorted((HERE / folder).glob("*/exercise.toml"))]
        found += sorted(heads, key=lambda exercise: (exercise.order, exercise.name))
    return tuple(found)


def find_exercise(name: str) -> Exercise:
    """An exercise by its name, or by the name of the learner's file.

    Raises:
        ExerciseError: There is none; the message names the nearest.
    """
    wanted = Path(name).name.removesuffix(".py").replace("_", "-")
    for exercise in exercises():
        if wanted in (exercise.name, exercise.file.removesuffix(".py").replace("_", "-")):
            return exercise
    close = difflib.get_close_matches(wanted, [exercise.name for exercise in exercises()], 1)
    hint = f"did you mean {close[0]!r}?" if close else "see: minivllm exercise list"
    raise ExerciseError(f"no exercise is called {name!r}; {hint}")


def _read(path: Path, kind: Literal["build", "bug"]) -> Exercise:
    try:
        head: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
        breaks = tuple(Break(**entry) for entry in head.pop("breaks", ()))
        lists: dict[str, Any] = {key: tuple(head.pop(key, ())) for key in ("also", "links")}
        return Exercise(path.parent, kind, breaks=breaks, **lists, **head)
    except (tomllib.TOMLDecodeError, TypeError) as error:
        raise ExerciseError(f"{path}: {error}") from None
