"""When answers end whose callers want a number of tokens at least."""

from __future__ import annotations

from minivllm.exercises.bench import Bench
from minivllm.exercises.faults import run_here
from minivllm.exercises.runs import Run


def engine(bench: Bench) -> list[Run]:
    """The runs that must change when the solution is broken."""
    return [run_here(bench)]


def _check(bench: Bench, run: Run, request: str, at_least: int) -> None:
    got = len(run.tokens[request])
    if got < at_least:
        call, expected = f"output tokens of {request}", f"{at_least} or more: min_tokens"
        raise bench.wrong(run, got - 1, call=call, expected=expected, got=got, map="state", request=request)


def test_nobody_gets_less_than_it_asked_for(bench: Bench) -> None:
    """Every answer has min_tokens tokens at least."""
    run = run_here(bench)
    for request in run.scenario.requests:
        _check(bench, run, request.id, request.sampling["min_tokens"])


def test_a_stop_in_the_last_of_them_does_not_count(bench: Bench) -> None:
    """A stop string in the last of the min_tokens tokens does not end the answer."""
    _check(bench, run_here(bench), "R2", 6)


def test_answers_end_where_they_end_without_the_fault(bench: Bench) -> None:
    """A stop string behind min_tokens still ends the answer, and every piece of text is the same."""
    run = run_here(bench)
    bench.same_plans(run)
    bench.sound(run)


def test_other_stops_stay(bench: Bench) -> None:
    """Stop strings without min_tokens end where they ended."""
    bench.same_plans(bench.run("stop-strings"))
