"""Two answers to one prompt, for a caller who looks every third iteration."""

from __future__ import annotations

from pathlib import Path

from minivllm.exercises.callers import run_with_late_caller
from minivllm.exercises.runs import Run
from minivllm.scenarios.definition import GO_ON, Scenario, ScenarioRequest

SCENARIO = Scenario(
    name="late-caller",
    title="A caller who fetches late wants two answers",
    teaches="What is merged in a mailbox must be merged by completion.",
    engine={"max_model_len": 128, "block_size": 8, "num_gpu_blocks_override": 65, "max_num_seqs": 4},
    requests=(
        ScenarioRequest(
            "R0",
            "Tom and Lily went to the park. Tom said:",
            max_tokens=8,
            sampling={"n": 2, "temperature": 1.0, "seed": 7, **GO_ON},
        ),
    ),
)


def run(path: Path | None) -> Run:
    """The scenario with that caller."""
    return run_with_late_caller(SCENARIO, path, every=3)
