"""Owns what must hold of every exercise itself, so that no learner meets one that cannot be solved or need not be.

python -m minivllm.exercises.lint [--quick] NAME...     one JSON document a line
"""

from __future__ import annotations

import importlib
import itertools
import re
import shlex
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from minivllm.exercises.bench import Bench, Run, WrongError, difference
from minivllm.exercises.course import NUM_HINTS, Break, Exercise, exercises, find_exercise
from minivllm.exercises.judge import judge, judge_bench, open_bench, time_limit
from minivllm.exercises.learner_file import LearnerFileError, OutOfTimeError, interface, load
from minivllm.exercises.lint_run import Verdict

MAX_SECONDS = 10.0
_COMMAND = re.compile(r"`(minivllm [^`]+)`")
_MAX_LINE = 120


def lint(exercise: Exercise, *, quick: bool = False) -> Verdict:
    """Hold one exercise against every rule; `quick` tries only the first slip."""
    start = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        faults = [*_texts(exercise), *_links(exercise), *_commands(exercise), *_runs(exercise, Path(folder), quick)]
    return Verdict(exercise.name, time.process_time() - start, faults)


def _texts(exercise: Exercise) -> Iterator[str]:
    if len(exercise.hints) != NUM_HINTS or not all(exercise.hints):
        yield f"hints.md: {NUM_HINTS} hints under headings, and not {len(exercise.hints)}"
    if len(set(exercise.hints)) != len(exercise.hints):
        yield "hints.md: two hints are the same"
    if not exercise.task or not exercise.explanation:
        yield "task.md or explanation.md is empty"
    if not 1 <= exercise.level <= 5:
        yield f"level {exercise.level}: 1 to 5"
    if not exercise.tasks:
        yield "checks.py has no test"
    for task in exercise.tasks:
        if task.title == task.name:
            yield f"checks.py: {task.name} has no docstring; its first sentence is the task's title"


def _links(exercise: Exercise) -> Iterator[str]:
    from minivllm.learning.question import vllm_place
    from minivllm.sourcemap.locate import locate

    if not exercise.links:
        yield "no links: which symbols should be read afterwards?"
    for symbol in (*exercise.links, *exercise.replaces, *exercise.plants):
        if locate(symbol) is None:
            yield f"there is no {symbol}"
    for symbol in exercise.links:
        if vllm_place(symbol) is None:
            yield f"{symbol} is not on the source map: a link leads to vLLM's source, too"


def _commands(exercise: Exercise) -> Iterator[str]:
    """Commands that the texts mention exist, and so do the runs, lessons and exercises that they name."""
    from typer.main import get_command

    from minivllm.entrypoints.cli.main import app
    from minivllm.learning.lesson import lesson_heads
    from minivllm.scenarios.registry import all_scenarios

    root = get_command(app)
    scenarios = {scenario.name for scenario in all_scenarios()}
    names = {"walkthrough": {head.name for head in lesson_heads()}, "exercise": {each.name for each in exercises()}}
    for text in (exercise.task, exercise.explanation, *exercise.hints):
        for command in _COMMAND.findall(text):
            _, *words = shlex.split(command)
            found = root
            while words and words[0] in (children := getattr(found, "commands", {})):
                found = children[words.pop(0)]
            if found is root:
                yield f"there is no command `{command}`"
            for option, value in itertools.pairwise(words):
                if option == "-s" and value not in scenarios:
                    yield f"`{command}`: no scenario is called {value}"
            kind = command.split()[1]
            named = [word for word in command.split()[3:4] if not word.startswith("-")]
            if kind in names and named and named[0] not in names[kind]:
                yield f"`{command}`: there is no {named[0]}"


def _runs(exercise: Exercise, folder: Path, quick: bool) -> Iterator[str]:
    """It fails unsolved, passes solved in time, and every slip is seen by the checks and changes the engine."""
    try:
        solution = load(exercise, exercise.solution)
        starter = load(exercise, exercise.starter)
    except LearnerFileError as error:
        yield f"{error}"
        return
    if interface(starter, exercise.parts) != interface(solution, exercise.parts):
        yield "starter.py and solution.py do not have the same interface"
    unsolved = judge(exercise, exercise.starter, folder)
    if unsolved.passed:
        yield "starter.py passes: there is nothing to do"
    if unsolved.problem is not None:
        yield f"starter.py cannot be checked: {unsolved.problem}"
    start = time.process_time()
    bench = open_bench(exercise, exercise.solution, folder)
    solved = judge_bench(bench)
    seconds = time.process_time() - start
    if seconds > MAX_SECONDS:
        yield f"a check takes {seconds:.1f} s, more than {MAX_SECONDS:.0f}"
    if solved.problem is not None:
        yield f"solution.py cannot be checked: {solved.problem}"
    if (failed := solved.first_failed) is not None:
        yield f"solution.py fails task {failed.task}: {failed.message} {failed.call} {failed.expected} {failed.got}"
        return
    yield from _breaks(exercise, bench, folder, exercise.breaks[: 1 if quick else None])


def _breaks(exercise: Exercise, solved: Bench, folder: Path, slips: Sequence[Break]) -> Iterator[str]:
    if not slips:
        yield "no [[breaks]]: which slips must be noticed?"
        return
    whole = _engine(solved) if exercise.replaces else None
    changed: list[bool] = []
    for slip in slips:
        source = exercise.solution.read_text(encoding="utf-8")
        if source.count(slip.find) != 1:
            yield f"{slip.find!r} is not once in solution.py"
            continue
        broken = folder / exercise.file
        broken.write_text(source.replace(slip.find, slip.put), encoding="utf-8")
        bench = open_bench(exercise, broken, folder / str(len(changed)))
        if judge_bench(bench).passed:
            yield f"the checks do not notice {_said(slip)}"
        if exercise.replaces and slip.engine:
            runs = _engine(bench)
            changed.append(runs is not None and whole is not None and _differ(whole, runs))
            if runs is not None and not changed[-1]:
                yield f"the engine plans and says the same with {_said(slip)}"
    # The first slip alone may break a run off, which is no plan that has changed.
    if exercise.replaces and len(slips) == len(exercise.breaks) and not any(changed):
        yield "no slip changes plans or tokens: the engine does not use this part"


def _engine(bench: Bench) -> list[Run] | None:
    """The exercise's runs with a file's part in the engine; None if one breaks off."""
    checks = importlib.import_module(bench.exercise.module("checks"))
    try:
        with time_limit(MAX_SECONDS):
            runs: list[Run] = checks.engine(bench)
    except (WrongError, OutOfTimeError):
        return None
    return runs


def _differ(whole: list[Run], broken: list[Run]) -> bool:
    pairs = zip(whole, broken, strict=True)
    return any(difference(a, b).first is not None or _texts_of(a) != _texts_of(b) for a, b in pairs)


def _texts_of(run: Run) -> list[object]:
    """What callers were sent, piece by piece."""
    return [event.data for event in run.log.events if event.kind == "output.text"]


def _said(slip: Break) -> str:
    return f"{slip.put!r} in the place of {slip.find!r}"


def main(names: list[str]) -> int:
    """Lint some exercises."""
    quick = "--quick" in names
    sys.dont_write_bytecode = True
    for name in [name for name in names if name != "--quick"]:
        print(msgspec.json.encode(lint(find_exercise(name), quick=quick)).decode(), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
