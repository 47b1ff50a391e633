"""Owns reading the learner's file: everything that can be wrong with it before it runs is told in a sentence."""

from __future__ import annotations

import inspect
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from minivllm.exercises.course import Exercise


class OutOfTimeError(BaseException):
    """The learner's code ran too long. No Exception, so that `except Exception` in a loop does not swallow it."""


@dataclass(frozen=True, slots=True)
class Place:
    """A line of the learner's file."""

    file: Path
    line: int
    source: str

    def __str__(self) -> str:
        return f"{self.file.name}:{self.line}: {self.source}" if self.source else f"{self.file.name}:{self.line}"


class LearnerFileError(Exception):
    """The learner's file cannot be used; the message says why, and what to do."""


def load(exercise: Exercise, file: Path) -> ModuleType:
    """Import the learner's file, and see that it has the parts of the exercise.

    Raises:
        LearnerFileError: It cannot be read or imported, or a part is missing or takes other arguments.
    """
    module = _import(file, f"minivllm_exercise_{exercise.path.name}")
    wanted = interface(_import(exercise.starter, f"minivllm_starter_{exercise.path.name}"), exercise.parts)
    for name, signature in interface(module, exercise.parts).items():
        if signature is None:
            raise LearnerFileError(
                f"{file.name} has no {name!r}. It must define {name}{wanted[name] or ''}; "
                f"to begin anew: minivllm exercise reset {exercise.name}"
            )
        if signature == "" != wanted.get(name):
            raise LearnerFileError(f"{name} in {file.name} is no function: it must be {name}{wanted[name]}")
        if signature != wanted.get(name, signature):
            raise LearnerFileError(
                f"{name} in {file.name} takes other arguments than the engine gives it: it must be "
                f"{name}{wanted[name]}, and is {name}{signature}"
            )
    for name in exercise.parts:
        home = getattr(getattr(module, name), "__module__", module.__name__)
        if home.startswith("minivllm."):
            raise LearnerFileError(f"{name} in {file.name} is the engine's own, from {home}: write one yourself")
    missing = [name for name in wanted if name not in interface(module, exercise.parts)]
    if missing:
        raise LearnerFileError(
            f"{file.name} has no {missing[0]!r}; the engine calls it: {missing[0]}{wanted[missing[0]]}"
        )
    return module


def interface(module: ModuleType, parts: tuple[str, ...]) -> dict[str, str | None]:
    """The parts of a module, methods of classes included, with their arguments; None for a part that is not there."""
    found: dict[str, str | None] = {}
    for name in parts:
        part = getattr(module, name, None)
        found[name] = None if part is None else _arguments(part)
        if isinstance(part, type):
            methods = {key: value for key, value in vars(part).items() if inspect.isfunction(value)}
            public = {key for key in methods if not key.startswith("_") or key in ("__init__", "__iter__", "__len__")}
            found |= {f"{name}.{key}": _arguments(methods[key]) for key in sorted(public)}
    return found


def _arguments(part: Any) -> str | None:
    """Names and kinds of the parameters; annotations and values of defaults are the learner's own business."""
    part = getattr(part, "fn", part)  # a Triton kernel
    if not callable(part):
        return ""
    if isinstance(part, type):
        return ""
    shown = [
        parameter.replace(annotation=inspect.Parameter.empty, default=inspect.Parameter.empty)
        if parameter.default is inspect.Parameter.empty
        else parameter.replace(annotation=inspect.Parameter.empty, default=...)
        for parameter in inspect.signature(part).parameters.values()
    ]
    return str(inspect.Signature(shown)).replace("Ellipsis", "...")


def _import(file: Path, name: str) -> ModuleType:
    module = ModuleType(name)
    module.__file__ = str(file)
    try:
        source = file.read_bytes()
        code = compile(source, str(file), "exec")
        sys.modules[name] = module  # dataclasses look their module up there
        exec(code, module.__dict__)
    except SyntaxError as error:
        if error.filename not in (None, str(file)):
            raise LearnerFileError(f"{file.name} imports something with a syntax error: {error}") from None
        line = (error.text or "").strip()
        where = file.name if error.lineno is None else f"{file.name}, line {error.lineno}"  # none for a null byte
        raise LearnerFileError(f"{where}: {error.msg}{f': {line}' if line else ''}") from None
    except OSError as error:
        raise LearnerFileError(f"{file}: {error.strerror or error}") from None
    except ImportError as error:
        place = place_in(file, error)
        raise LearnerFileError(f"{_where(file, place)}: {error}; only what the engine itself needs is here") from None
    except OutOfTimeError:
        raise
    except (Exception, SystemExit) as error:
        raise LearnerFileError(f"{_where(file, place_in(file, error))} cannot be run: {said(error)}") from None
    return module


def place_in(file: Path, error: BaseException) -> Place | None:
    """The innermost line of a file that an error went through; None if it did not."""
    frames = traceback.extract_tb(error.__traceback__)
    for frame in reversed(frames):
        if frame.filename == str(file):
            return Place(file, frame.lineno or 0, (frame.line or "").strip())
    return None


def innermost(file: Path, error: BaseException) -> tuple[BaseException, Place | None]:
    """The error that began it, and its line of a file: what runs a kernel raises another one instead."""
    place = place_in(file, error)
    cause = error.__cause__
    if cause is not None and (inner := place_in(file, cause)) is not None:
        return cause, inner
    return error, place


def said(error: BaseException) -> str:
    """An error in one line: its kind, and what it says."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _where(file: Path, place: Place | None) -> str:
    return str(place) if place is not None else file.name
