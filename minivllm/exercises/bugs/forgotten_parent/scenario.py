"""Two answers to one prompt, and their caller hangs up after three iterations."""

from __future__ import annotations

from pathlib import Path

from minivllm.exercises.callers import run_with_leaving_caller
from minivllm.exercises.runs import Run
from minivllm.scenarios.definition import GO_ON, Scenario, ScenarioRequest

SCENARIO = Scenario(
    name="hangs-up",
    title="A caller who wants two answers hangs up",
    teaches="Who leaves must leave nothing behind, whichever way it goes.",
    engine={"max_model_len": 128, "block_size": 8, "num_gpu_blocks_override": 65, "max_num_seqs": 4},
    requests=(
        ScenarioRequest(
            "R0", "Once upon a time", max_tokens=12, sampling={"n": 2, "temperature": 1.0, "seed": 3, **GO_ON}
        ),
        ScenarioRequest("R1", "The little dog was", max_tokens=6, sampling=GO_ON),
    ),
)


def run(path: Path | None) -> Run:
    """The scenario with that caller."""
    return run_with_leaving_caller(SCENARIO, path, "R0", step=3)
