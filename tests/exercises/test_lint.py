"""Every exercise fails unsolved, passes solved, has hints and links, and a slip in its solution changes the engine."""

from __future__ import annotations

import pytest

from minivllm.exercises.course import exercises
from minivllm.exercises.lint_run import lint_aside


def _faults(*, quick: bool) -> dict[str, list[str]]:
    verdicts = lint_aside(exercises(), quick=quick)
    assert len(verdicts) == len(exercises())
    return {verdict.exercise: verdict.faults for verdict in verdicts if verdict.faults}


def test_every_exercise_is_sound() -> None:
    assert _faults(quick=True) == {}


@pytest.mark.slow
def test_every_slip_is_noticed() -> None:
    assert _faults(quick=False) == {}


def test_names_and_files_are_unique() -> None:
    for values in ([each.name for each in exercises()], [each.file for each in exercises()]):
        assert len(set(values)) == len(values)
