"""The plan with the repaired part: nobody is passed over, and nobody else is planned otherwise."""

from __future__ import annotations

from minivllm.exercises.bench import Bench
from minivllm.exercises.bugs.ghost_in_the_plan.scenario import SCENARIO as GHOST
from minivllm.exercises.faults import run_here
from minivllm.exercises.runs import Run


def engine(bench: Bench) -> list[Run]:
    """The runs that must change when the solution is broken."""
    return [run_here(bench), bench.run(GHOST)]


def test_whoever_gets_nothing_has_a_reason(bench: Bench) -> None:
    """Whoever runs and gets nothing has a reason: every invariant holds."""
    bench.sound(run_here(bench))


def test_the_plans_are_those_of_a_sound_engine(bench: Bench) -> None:
    """Every iteration is planned as by the engine without the fault."""
    bench.same_plans(run_here(bench))


def test_a_victim_that_was_planned_still_leaves_the_plan(bench: Bench) -> None:
    """A victim that is in the plan already leaves it, and gives its tokens back to the budget."""
    run = bench.run(GHOST)
    bench.sound(run)
    bench.same_plans(run)


def test_other_runs_are_planned_as_before(bench: Bench) -> None:
    """Victims behind the cursor, and runs without priorities, are planned as before."""
    for name in ("priority", "kv-pressure", "thrash"):
        bench.same_plans(bench.run(name))
