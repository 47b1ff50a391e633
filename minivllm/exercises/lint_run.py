"""Owns running the lint in a process of its own: kernels run in Triton's interpreter there, nothing is left here."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from minivllm.exercises.course import Exercise, ExerciseError


class Verdict(msgspec.Struct):
    """What is wrong with an exercise.

    Attributes:
        exercise: Its name.
        seconds: Work that it took to find out.
        faults: One sentence each; none if all is well.
    """

    exercise: str
    seconds: float
    faults: list[str]


def lint_aside(chosen: Sequence[Exercise], begins: Callable[[str], None] = lambda name: None) -> list[Verdict]:
    """Lint exercises, one after another.

    Args:
        chosen: Which.
        begins: Is told of each before it is checked.

    Raises:
        ExerciseError: The process that does it came to an end early.
    """
    here = str(Path(__file__).parents[2])
    paths = [here, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    own = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths)}
    if any(exercise.interpreter for exercise in chosen):
        own["TRITON_INTERPRET"] = "1"
    command = [sys.executable, "-m", "minivllm.exercises.lint", *(exercise.name for exercise in chosen)]
    verdicts: list[Verdict] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, **own}, text=True) as process:
        assert process.stdout is not None
        for exercise in chosen:
            begins(exercise.name)
            line = process.stdout.readline()
            if not line.startswith("{"):
                raise ExerciseError(f"{exercise.name}: the process that checks it has ended; see what it said above")
            verdicts.append(msgspec.json.decode(line, type=Verdict))
    return verdicts
