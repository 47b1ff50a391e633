"""What the frontend keeps when everybody is done or gone."""

from __future__ import annotations

from minivllm.exercises.bench import Bench
from minivllm.exercises.callers import left_of
from minivllm.exercises.faults import run_here, sound_run
from minivllm.exercises.replacing import replaced
from minivllm.exercises.runs import Run


def engine(bench: Bench) -> list[Run]:
    """The runs that must change when the solution is broken."""
    return [run_here(bench)]


def test_nothing_is_left(bench: Bench) -> None:
    """After the last request the frontend keeps nothing: no state, no parent, no id."""
    run = run_here(bench)
    for name, kept in left_of(run).items():
        if kept:
            call = f"{run.call}: output_processor.{name}, at the end"
            raise bench.wrong(run, run.result.steps - 1, call=call, expected="nothing", got=kept, map="state")


def test_the_core_is_told_of_both_children(bench: Bench) -> None:
    """Both children end in the core, at the iteration in which their caller left."""
    run = run_here(bench)
    expected = {k: v for k, v in sound_run(bench.exercise).result.finals.items()}
    bench.call("", lambda: dict(run.result.finals), text="finish reasons of all requests").gives(expected)


def test_everything_else_goes_on(bench: Bench) -> None:
    """Who did not leave is served as before, and every invariant holds."""
    run = run_here(bench)
    bench.sound(run)
    bench.same_plans(run, reference=sound_run(bench.exercise))


def test_ids_that_are_gone_are_ignored(bench: Bench) -> None:
    """An abort of an id that is unknown, or was aborted before, does nothing."""
    with replaced(bench.replacements()):
        from minivllm.engine.output_processor import OutputProcessor

        desk = OutputProcessor(None)
        bench.call("abort_requests", desk, ["nobody"], text='abort_requests(frontend, ["nobody"])').gives([])
