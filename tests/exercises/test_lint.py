"""Every exercise fails unsolved, passes solved, has hints and links, and a slip in its solution changes the engine."""

from __future__ import annotations

from minivllm.exercises.course import exercises
from minivllm.exercises.lint_run import lint_aside


def test_every_exercise_is_sound() -> None:
    verdicts = lint_aside(exercises())
    assert {verdict.exercise: verdict.faults for verdict in verdicts if verdict.faults} == {}


def test_names_and_files_are_unique() -> None:
    for values in ([each.name for each in exercises()], [each.file for each in exercises()]):
        assert len(set(values)) == len(values)
