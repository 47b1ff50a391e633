"""The plan with the repaired part: a victim leaves nothing behind."""

from __future__ import annotations

from typing import Any

from minivllm.exercises.bench import Bench, WrongError
from minivllm.exercises.bugs.ghost_in_the_plan.scenario import SCENARIO
from minivllm.exercises.bugs.skipped_request.scenario import SCENARIO as PASSED_OVER
from minivllm.exercises.faults import run_here
from minivllm.exercises.replacing import replaced
from minivllm.exercises.runs import Run, run_with
from minivllm.scenarios.definition import GO_ON, Piece, Scenario, ScenarioRequest

# R0's planned token fills a block, which is published with the plan; then R0 has to go, and comes back.
FILLED = Scenario(
    name="published-and-taken-back",
    title="The victim's planned token would have filled a block",
    teaches="A block is published with its plan; if the plan changes, it must not be hit.",
    engine={
        "max_model_len": 32,
        "block_size": 4,
        "num_gpu_blocks_override": 7,
        "max_num_seqs": 4,
        "max_num_batched_tokens": 9,
        "scheduling_policy": "priority",
    },
    requests=(
        ScenarioRequest("R0", (Piece(0, 5),), max_tokens=8, priority=9, sampling=GO_ON),
        ScenarioRequest("R1", (Piece(20, 7),), max_tokens=8, arrival_step=1, priority=0, sampling=GO_ON),
        ScenarioRequest("R2", (Piece(40, 6),), max_tokens=9, arrival_step=1, priority=1, sampling=GO_ON),
    ),
)


def engine(bench: Bench) -> list[Run]:
    """The runs that must change when the solution is broken."""
    return [run_here(bench), bench.run(FILLED)]


def test_who_is_preempted_is_not_computed(bench: Bench) -> None:
    """Who is preempted leaves the plan: every invariant holds."""
    bench.sound(run_here(bench))


def test_the_plans_are_those_of_a_sound_engine(bench: Bench) -> None:
    """Every iteration is planned as by the engine without the fault, the budget included."""
    bench.same_plans(run_here(bench))


def test_the_budget_gets_back_what_was_planned(bench: Bench) -> None:
    """The budget gets the victim's tokens back: those that were planned, and none otherwise."""
    seen: list[tuple[str, int, int]] = []

    def spy(scheduler: Any, step: Any, index: int) -> Any:
        budget, planned = step.token_budget, dict(step.num_scheduled_tokens)
        victim, place = bench.part.take_victim(scheduler, step, index)
        seen.append((victim.request_id, planned.get(victim.request_id, 0), step.token_budget - budget))
        return victim, place

    with replaced({"minivllm.core.schedule_running:_take_victim": spy}):
        for scenario in (SCENARIO, PASSED_OVER):
            run_with(scenario, {})
    for victim, planned, returned in seen:
        if returned != planned:
            call = f"take_victim(scheduler, step, index), with {victim} as the victim"
            raise WrongError("", call=call, expected=f"{planned} tokens back", got=f"{returned}")


def test_nobody_hits_what_was_never_written(bench: Bench) -> None:
    """A block that the victim's step was to fill is not found in the cache afterwards."""
    run = bench.run(FILLED)
    bench.sound(run)
    bench.same_plans(run)


def test_other_victims_leave_as_before(bench: Bench) -> None:
    """Victims that were not planned, and those of runs without priorities, leave as before."""
    for scenario in (PASSED_OVER, "priority", "kv-pressure"):
        bench.same_plans(bench.run(scenario))
