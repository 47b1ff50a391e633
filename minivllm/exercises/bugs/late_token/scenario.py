"""A caller who leaves in the middle of a step, and one whose text meets its stop string."""

from __future__ import annotations

from minivllm.scenarios.definition import GO_ON, Scenario, ScenarioRequest

SCENARIO = Scenario(
    name="hung-up",
    title="A caller leaves while the model computes",
    teaches="What a step brings for somebody who has left is dropped where output is committed.",
    engine={"max_model_len": 128, "block_size": 8, "num_gpu_blocks_override": 33, "max_num_seqs": 3},
    requests=(
        ScenarioRequest("R0", "Once upon a time", max_tokens=10, sampling={"stop": ("girl",), **GO_ON}),
        ScenarioRequest(
            "R1", "The little dog was", 12, arrival_step=1, abort_step=4, abort_phase="mid", sampling=GO_ON
        ),
        ScenarioRequest("R2", "The cat sat on the wall and", max_tokens=4, arrival_step=2, sampling=GO_ON),
    ),
)
