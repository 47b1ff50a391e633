"""Owns running the lint in processes of their own: kernels run in Triton's interpreter there, nothing is left here."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from minivllm.exercises.checking import without_pytest_options
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


def lint_aside(
    chosen: Sequence[Exercise], ends: Callable[[str], None] = lambda name: None, *, quick: bool = False
) -> list[Verdict]:
    """Lint exercises, two at a time.

    Args:
        chosen: Which.
        ends: Is told of each that has been checked.
        quick: Try only the first slip of each.

    Raises:
        ExerciseError: A process that does it came to an end early.
    """
    halves = [half for half in (chosen[::2], chosen[1::2]) if half]
    with ThreadPoolExecutor(len(halves) or 1) as pool:
        found = [verdict for part in pool.map(lambda half: _lint(half, ends, quick), halves) for verdict in part]
    names = [exercise.name for exercise in chosen]
    return sorted(found, key=lambda verdict: names.index(verdict.exercise))


def _lint(chosen: Sequence[Exercise], ends: Callable[[str], None], quick: bool) -> list[Verdict]:
    here = str(Path(__file__).parents[2])
    paths = [here, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    own = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths)}
    if any(exercise.interpreter for exercise in chosen):
        own["TRITON_INTERPRET"] = "1"
    options = [*(["--quick"] if quick else []), *(exercise.name for exercise in chosen)]
    command = [sys.executable, "-P", "-m", "minivllm.exercises.lint", *options]
    verdicts: list[Verdict] = []
    kept = without_pytest_options(os.environ)
    with subprocess.Popen(command, stdout=subprocess.PIPE, env={**kept, **own}, text=True) as process:
        assert process.stdout is not None
        for exercise in chosen:
            line = process.stdout.readline()
            if not line.startswith("{"):
                raise ExerciseError(f"{exercise.name}: the process that checks it has ended; see what it said above")
            verdicts.append(msgspec.json.decode(line, type=Verdict))
            ends(exercise.name)
    return verdicts
