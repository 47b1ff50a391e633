"""Owns the faults of the bug lab as runs: what is planted where, and the scenario in which it shows.

A folder in `bugs/` has, beside the files of every exercise, a `scenario.py` with `SCENARIO`; and a `run(path)` if the
engine must be driven in a way of its own. The fault is in `starter.py` if the learner repairs it, else in `fault.py`.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from minivllm.exercises.bench import Bench, How
from minivllm.exercises.course import Exercise, exercises
from minivllm.exercises.learner_file import load
from minivllm.exercises.replacing import replaced
from minivllm.exercises.runs import Run, planted, run_with
from minivllm.scenarios.definition import Scenario


def bugs() -> list[Exercise]:
    """The exercises with a fault, in the order of the course."""
    return [exercise for exercise in exercises() if exercise.kind == "bug"]


def scenario_of(exercise: Exercise) -> Scenario:
    """The run in which its fault shows."""
    scenario: Scenario = importlib.import_module(exercise.module("scenario")).SCENARIO
    return scenario


def fault_of(exercise: Exercise) -> dict[str, Any]:
    """What is planted: symbols of the engine, and what takes their places."""
    if not exercise.replaces:
        return planted(exercise)
    starter = load(exercise, exercise.starter)
    return planted(exercise) | {symbol: getattr(starter, name) for symbol, name in exercise.replaces.items()}


def run_of(exercise: Exercise, parts: Mapping[str, Any], path: Path | None = None) -> Run:
    """Its scenario, with some parts of the engine replaced."""
    how = _how(exercise)
    with replaced(parts):
        return run_with(scenario_of(exercise), {}, path) if how is None else how(path)


_runs: dict[tuple[str, bool], Run] = {}


def faulty_run(exercise: Exercise) -> Run:
    """Its scenario with the fault in the engine; made once."""
    if (exercise.name, True) not in _runs:
        _runs[exercise.name, True] = run_of(exercise, fault_of(exercise))
    return _runs[exercise.name, True]


def sound_run(exercise: Exercise) -> Run:
    """Its scenario on an engine without the fault; made once."""
    if (exercise.name, False) not in _runs:
        _runs[exercise.name, False] = run_of(exercise, _help(exercise))
    return _runs[exercise.name, False]


def run_here(bench: Bench) -> Run:
    """The exercise's scenario with the learner's part in the engine. The sound engine's log is put beside its log."""
    exercise, scenario = bench.exercise, scenario_of(bench.exercise)
    run_of(exercise, _help(exercise), bench.runs / f"{exercise.name}-{scenario.name}-sound.jsonl")
    return bench.run(scenario, how=_how(exercise))


def _how(exercise: Exercise) -> How | None:
    how: How | None = getattr(importlib.import_module(exercise.module("scenario")), "run", None)
    return how


def _help(exercise: Exercise) -> dict[str, Any]:
    """What is planted although it is no fault: a way to run that this machine lacks."""
    return planted(exercise) if exercise.replaces else {}
