"""Owns holding a rule that a learner wrote, `check(it, memory)`, against logs: of sound engines and of faulty ones.

A rule gets one iteration after the other, and a dict that is empty at the start of a log and is its own to fill. It
yields a sentence for each thing that must not be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from minivllm.analysis.iteration import Iteration, iterations
from minivllm.exercises.bench import Bench, WrongError, shown
from minivllm.exercises.faults import bugs, faulty_run, run_here, sound_run
from minivllm.exercises.learner_file import OutOfTimeError, load
from minivllm.exercises.report import MapPlace
from minivllm.exercises.runs import Run
from minivllm.scenarios.registry import all_scenarios
from minivllm.trace.reader import Log, read_log

Rule = Callable[[Iteration, dict[str, Any]], Iterator[str]]


def must_fire(bench: Bench, kind: str) -> None:
    """The rule speaks of its own fault, and in the iteration in which that happens.

    Args:
        bench: With the rule.
        kind: The map on which the fault shows.
    """
    run = run_here(bench)
    expected = next(_all_said(_solution(bench), run.log), None)
    assert expected is not None, "the solution finds the fault"
    found = next(_said_by(bench, run.log, run.call, run.path), None)
    call = f"check(iteration, memory), on {run.call} with the fault"
    if found is None:
        raise WrongError(
            "Your rule says nothing, and something is wrong.",
            call=call,
            expected=f"a sentence in iteration {expected[0]}",
            got=f"none in {run.result.steps} iterations",
            map=run.at(expected[0], kind),
        )
    if found[0] != expected[0]:
        raise WrongError(
            "Your rule speaks of another iteration than the one in which it happens.",
            call=call,
            expected=f"the first sentence in iteration {expected[0]}",
            got=f"iteration {found[0]}: {found[1]}",
            map=run.at(expected[0], kind),
        )


def must_be_silent(bench: Bench, kind: str) -> None:
    """The rule says nothing of sound runs: the recorded scenarios, and those of all faults without the faults.

    Args:
        bench: With the rule.
        kind: The map to show where it speaks.
    """
    logs: list[tuple[str, Log, Path | None]] = [
        (scenario.name, read_log(scenario.log_path), scenario.log_path) for scenario in all_scenarios()
    ]
    logs += [(run.scenario.name, run.log, run.path) for run in map(sound_run, bugs())]
    for name, log, path in logs:
        what = f"the sound engine, on the scenario {name}"
        for step, message in _said_by(bench, log, what, path):
            raise WrongError(
                "Your rule speaks of a run in which nothing is wrong.",
                call=f"check(iteration, memory), on {what}, iteration {step}",
                expected="nothing",
                got=shown(message),
                map=None if path is None else MapPlace(kind, step, str(path)),
            )


def must_bear_faults(bench: Bench) -> None:
    """The rule comes to the end of every other fault's run, and prints which of them it finds, too."""
    others = [exercise for exercise in bugs() if exercise.name != bench.exercise.name]
    found = []
    for exercise in others:
        try:
            run: Run = faulty_run(exercise)
        except Exception:  # a fault that ends the engine leaves no run
            continue
        if any(True for _ in _said_by(bench, run.log, f"the engine with the fault of {exercise.name}", None)):
            found.append(exercise.name)
    print(f"of {len(others)} other faults your rule finds: {', '.join(found) or 'none'}")


def _said_by(bench: Bench, log: Log, what: str, path: Path | None) -> Iterator[tuple[int, str]]:
    """What the learner's rule says, with iterations. What it cannot do is told as its mistake."""
    memory: dict[str, Any] = {}
    for it in _complete_iterations(log):
        call = f"check(iteration {it.step}, memory), on {what}"
        at = None if path is None else MapPlace("plan", it.step, str(path))
        try:
            said = bench.part.check(it, memory)
            messages = None if said is None or isinstance(said, str) else list(said)
        except OutOfTimeError as error:
            raise bench.out_of_time(error, call, at) from None
        except (Exception, SystemExit) as error:
            raise bench.raised(error, call, at) from None
        if messages is None or not all(isinstance(message, str) for message in messages):
            got = shown(said if messages is None else messages)
            raise WrongError("A rule yields sentences.", call=call, expected="texts, or nothing", got=got)
        yield from ((it.step, message) for message in messages)


def _all_said(rule: Rule, log: Log) -> Iterator[tuple[int, str]]:
    memory: dict[str, Any] = {}
    for it in _complete_iterations(log):
        yield from ((it.step, message) for message in rule(it, memory))


def _complete_iterations(log: Log) -> Iterator[Iteration]:
    """As `minivllm check` sees them; without what callers are noted to have got (see `callers.py`)."""
    events = [event for event in log.events if event.kind != "output.text" or event.request is not None]
    return (it for it in iterations(Log(log.header, events, log.num_dropped)) if it.is_complete)


def _solution(bench: Bench) -> Rule:
    rule: Rule = load(bench.exercise, bench.exercise.solution).check
    return rule
