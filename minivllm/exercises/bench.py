"""Owns what the checks of an exercise work with: calling the learner's part, running the engine with it, comparing.

A check is a pytest function with the fixture `bench`:

    def test_equal_blocks_have_equal_names(bench):
        '''The same tokens after the same parent have the same name.'''
        bench.call("hash_block_tokens", parent, [1, 2]).gives(expected)

    def test_the_engine_finds_prefixes(bench):
        '''The engine finds again what it has computed.'''
        run = bench.run("prefix-warmup")
        bench.same_plans(run)
        bench.sound(run)
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from minivllm.analysis.diff_said import Sides
from minivllm.analysis.diff_words import consequences
from minivllm.exercises.course import Exercise
from minivllm.exercises.learner_file import OutOfTimeError, Place, innermost, place_in, said
from minivllm.exercises.replacing import replaced
from minivllm.exercises.report import MapPlace
from minivllm.exercises.runs import MAX_STEPS, Run, difference, planted, reference_of, run_key, run_with
from minivllm.scenarios.definition import Scenario
from minivllm.scenarios.registry import get_scenario
from minivllm.trace.reader import read_log

__all__ = ["Bench", "Called", "How", "Run", "WrongError", "difference", "planted", "reference_of", "run_with", "shown"]

# Runs a scenario in a way of its own; the log goes to the path, if there is one.
How = Callable[[Path | None], Run]

_SHOWN = 300


class WrongError(AssertionError):
    """A check that does not hold.

    Attributes:
        message: What is wrong, in a sentence; "" if the rest says it.
        call, expected, got: What was called, what it should have given, what it gave; "" for what does not apply.
        place: Line of the learner's file.
        map: What to look at.
        is_error: The learner's code raised.
        is_endless: It was stopped, because it ran too long.
    """

    def __init__(
        self,
        message: str = "",
        *,
        call: str = "",
        expected: str = "",
        got: str = "",
        place: Place | None = None,
        map: MapPlace | None = None,
        is_error: bool = False,
    ) -> None:
        super().__init__(message or f"{call}: expected {expected}, got {got}")
        self.message = message
        self.call = call
        self.expected = expected
        self.got = got
        self.place = place
        self.map = map
        self.is_error = is_error
        self.is_endless = False


@dataclass(frozen=True, slots=True)
class Called:
    """A call of the learner's part that has returned.

    Attributes:
        call: How it looks.
        value: What it gave.
    """

    call: str
    value: Any

    def gives(self, expected: Any, why: str = "", *, got: Any = None) -> None:
        """Hold the value (or `got`, what is of interest in it) against what is expected."""
        got = self.value if got is None else got
        if type(got) is not type(expected) or got != expected:
            raise WrongError(why, call=self.call, expected=shown(expected), got=shown(got))

    def is_true(self, holds: bool, expected: str, why: str = "", *, got: Any = None) -> None:
        """A condition on the value, in words."""
        if not holds:
            raise WrongError(why, call=self.call, expected=expected, got=shown(self.value if got is None else got))


class Bench:
    """The learner's part, called alone and inside the engine.

    Args:
        exercise: The exercise.
        part: The learner's module (or the solution).
        file: Where it was read from.
        runs: Folder for the logs of its runs.
    """

    def __init__(self, exercise: Exercise, part: ModuleType, file: Path, runs: Path) -> None:
        self.exercise = exercise
        self.part = part
        self.file = file
        self.runs = runs
        self.last_call = ""
        self._known: dict[str, Run | WrongError] = {}

    # ---- the part alone ---------------------------------------------------------------------------------------

    def call(self, name: str, *args: Any, text: str = "", **kwargs: Any) -> Called:
        """Call a function of the learner's.

        Args:
            name: Of the function; "" to call the first of `args`.
            args, kwargs: Given to it.
            text: How the call is shown, where its arguments would not say much.

        Raises:
            WrongError: It raised.
        """
        function: Callable[..., Any] = getattr(self.part, name) if name else args[0]
        given = args if name else args[1:]
        words = [shown(arg) for arg in given] + [f"{key}={shown(value)}" for key, value in kwargs.items()]
        call = self.last_call = text or f"{name or getattr(function, '__name__', '?')}({', '.join(words)})"
        try:
            return Called(call, function(*given, **kwargs))
        except OutOfTimeError as error:
            raise self.out_of_time(error, call) from None
        except (Exception, SystemExit) as error:
            raise self.raised(error, call, nobody="This call raised an error.") from None

    def same(self, call: str, got: Any, expected: Any, why: str = "") -> None:
        """Hold something that a call has done against what is expected."""
        Called(call, got).gives(expected, why)

    def raised(
        self,
        error: BaseException,
        call: str,
        at: MapPlace | None = None,
        step: int | None = None,
        nobody: str = "The engine could not go on with what your part gave it.",
    ) -> WrongError:
        """What to say when something raised; `nobody` if it was not in the learner's file."""
        error, place = innermost(self.file, error)
        if isinstance(error, NotImplementedError) and place is not None:
            return WrongError("This is not written yet.", call=call, got=said(error), place=place, is_error=True)
        message = nobody if place is None else "Your code raised an error."
        if step is not None:
            message += f" That was in iteration {step}"
            message += "." if at is None or at.iteration == step else "; the map shows the last plan before it."
        return WrongError(message, call=call, got=said(error), place=place, map=at, is_error=True)

    def out_of_time(self, error: BaseException, call: str, at: MapPlace | None = None) -> WrongError:
        """What to say when something runs for ever."""
        place = place_in(self.file, error)
        where = "is it a loop that never ends?" if place else "does the engine wait for something that never comes?"
        message = f"Stopped: it was still running; {where}"
        wrong = WrongError(message, call=call, got="no end", place=place, map=at, is_error=True)
        wrong.is_endless = True
        return wrong

    # ---- the part in the engine -------------------------------------------------------------------------------

    def replaced(self) -> AbstractContextManager[None]:
        """The learner's part in the engine, for the length of a `with` block."""
        return replaced(self.replacements())

    def replacements(self) -> dict[str, Any]:
        """What takes the place of which symbol. A fault that is planted comes first, so that a repair replaces it."""
        parts = planted(self.exercise)
        if self.exercise.seam:
            seam = importlib.import_module(self.exercise.module("seam"))
            return parts | dict(seam.seam(self.part))
        return parts | {symbol: getattr(self.part, name) for symbol, name in self.exercise.replaces.items()}

    def run(self, scenario: str | Scenario, *, how: How | None = None, **overrides: Any) -> Run:
        """Run a scenario with the learner's part in the engine: once, however many checks ask for it.

        Args:
            scenario: What to run.
            how: Runs it, and writes its log; None for the ordinary way.
            overrides: Settings instead of the scenario's.

        Raises:
            WrongError: The run did not come to its end.
        """
        chosen = get_scenario(scenario) if isinstance(scenario, str) else scenario
        if how is not None:
            return self._run(chosen, how, overrides)
        key = run_key(chosen, overrides)
        if key not in self._known:
            try:
                self._known[key] = self._run(chosen, None, overrides)
            except WrongError as error:
                self._known[key] = error
        known = self._known[key]
        if isinstance(known, WrongError):
            raise known
        return known

    def _run(self, chosen: Scenario, how: How | None, overrides: dict[str, Any]) -> Run:
        call = f"the engine, on the scenario {chosen.name}"
        path = self.runs / f"{self.exercise.name}-{chosen.name}.jsonl"
        try:
            with self.replaced():
                run = run_with(chosen, overrides, path) if how is None else how(path)
        except OutOfTimeError as error:
            raise self.out_of_time(error, call, _last_place(path)) from None
        except (Exception, SystemExit) as error:
            raise self.raised(error, call, _last_place(path), _last_step(path)) from None
        if run.result.truncated:
            waiting = [name for name in run.result.requests if name not in run.result.finals]
            raise WrongError(
                f"After {MAX_STEPS} iterations {', '.join(waiting)} had still not ended.",
                call=call,
                expected="a run that ends",
                got=f"{MAX_STEPS} iterations, and no end",
                map=_place_without_progress(run),
            )
        return run

    def same_plans(
        self, run: Run, *, tokens: bool = True, only_decisions: bool = False, reference: Run | None = None
    ) -> None:
        """Hold a run against that of the engine's own parts.

        Args:
            run: The learner's run.
            tokens: Compare what was said, too.
            only_decisions: Who was planned with how many tokens, who was preempted, what was said; not which blocks,
                nor the reasons.
            reference: The run to compare with; None for the engine's own parts.
        """
        reference = reference or reference_of(run.scenario, run.overrides)
        diff = difference(run, reference, tokens=tokens, only_decisions=only_decisions)
        if (first := diff.first) is None:
            return
        told = consequences(diff, run.log, reference.log, Sides("in your engine", "in ours"))
        here = f"In iteration {first.iteration} your engine and ours part."
        raise WrongError(
            told[0] if told and told[0].startswith(f"Iteration {first.iteration}") else here,
            call=f"{run.call}, iteration {first.iteration}: {first.field}",
            expected=shown(_unlike(first.b, first.a)),
            got=shown(_unlike(first.a, first.b)),
            map=run.at(first.iteration),
        )

    def reference(self, run: Run) -> Run:
        """The same run with the engine's own parts."""
        return reference_of(run.scenario, run.overrides)

    def same_tokens(self, run: Run) -> None:
        """Every request says what it says with the engine's own parts, whenever it says it."""
        expected = reference_of(run.scenario, run.overrides).tokens
        for request, tokens in expected.items():
            got = run.tokens.get(request, [])
            if got == tokens:
                continue
            pairs = enumerate(zip(got, tokens, strict=False))
            place = next((i for i, (a, b) in pairs if a != b), min(len(got), len(tokens)))
            raise WrongError(
                f"Output token {place} of {request} is another one.",
                call=f"{run.call}: tokens of {request}",
                expected=shown(tokens),
                got=shown(got),
                map=run.at(_iteration_of(run, request, place), request=request),
            )

    def sound(self, run: Run, leave_out: tuple[str, ...] = ()) -> None:
        """No invariant is broken, but for those that the exercise is meant to break."""
        found = [each for each in run.violations if each[1].partition(":")[0] not in leave_out]
        if not found:
            return
        iteration, message = found[0]
        name = message.partition(":")[0]
        raise WrongError(
            f"{name} does not hold in iteration {iteration}.",
            call=f"{run.call}, iteration {iteration}",
            expected=_sentence(name),
            got=message.partition(": ")[2] or message,
            map=run.at(iteration, _map_of(name)),
        )

    def wrong(self, run: Run, iteration: int, message: str = "", **facts: Any) -> WrongError:
        """What to raise for something else that is wrong with a run."""
        kind, request = facts.pop("map", "plan"), facts.pop("request", None)
        told: dict[str, Any] = {key: v if isinstance(v, str) else shown(v) for key, v in facts.items()}
        call = told.pop("call", f"{run.call}, iteration {iteration}")
        return WrongError(message, call=call, map=run.at(iteration, kind, request), **told)


def shown(value: Any) -> str:
    """A value in a report: short, and bytes as their first digits."""
    if isinstance(value, bytes):
        return f"<{value.hex()[:8]}...>" if len(value) > 8 else repr(value)
    if isinstance(value, list | tuple) and any(isinstance(item, bytes) for item in value):
        words = ", ".join(map(shown, value))
        return f"[{words}]" if isinstance(value, list) else f"({words})"
    text = str(value) if hasattr(value, "request_id") else repr(value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."


def _unlike(value: Any, other: Any) -> Any:
    """Of a long list, the entries that another one has not: what differs must not be behind what is cut off."""
    if isinstance(value, list) and isinstance(other, list) and len(repr(value)) > _SHOWN:
        return [item for item in value if item not in other] or value
    return value


def _last_place(path: Path) -> MapPlace | None:
    """The last iteration that a run which broke off has in its log."""
    if not path.exists():
        return None
    steps = [event.step for event in read_log(path).events if event.kind == "schedule"]
    return MapPlace("plan", steps[-1], str(path)) if steps else None


def _last_step(path: Path) -> int | None:
    """The iteration in which a run broke off."""
    return max((event.step for event in read_log(path).events), default=0) if path.exists() else None


def _place_without_progress(run: Run) -> MapPlace | None:
    """The iteration after the last one in which anything was computed."""
    busy = [event.step for event in run.log.events if event.kind == "schedule" and event.data["scheduled"]]
    return run.at(min(busy[-1] + 1, MAX_STEPS - 1) if busy else 0)


def _iteration_of(run: Run, request: str, place: int) -> int:
    """The iteration that brought a request's output token at a place."""
    seen = 0
    for event in run.log.events:
        if event.kind == "update":
            seen += len(event.data["emitted"].get(request, ()))
            if seen > place:
                return event.step
    return max((event.step for event in run.log.events), default=0)


def _sentence(name: str) -> str:
    from minivllm.analysis.invariants import all_invariants

    return next((rule.sentence for rule in all_invariants() if rule.id == name), "every invariant holds")


def _map_of(name: str) -> str:
    from minivllm.analysis.invariants import all_invariants

    return next((rule.map for rule in all_invariants() if rule.id == name), "state")
