"""Two texts with stop strings, of which one comes, and one without."""

from __future__ import annotations

from minivllm.scenarios.definition import GO_ON, Scenario, ScenarioRequest

SCENARIO = Scenario(
    name="held-text",
    title="Text is held back for a stop string",
    teaches="Ids and text belong together: who waits for one waits for the other.",
    engine={"max_model_len": 128, "block_size": 8, "num_gpu_blocks_override": 33, "max_num_seqs": 4},
    requests=(
        ScenarioRequest("R0", "The little dog was", max_tokens=40, sampling={"stop": ("big pot and",), **GO_ON}),
        ScenarioRequest("R1", "Once upon a time", max_tokens=10, sampling={"stop": ("zebra",), **GO_ON}),
        ScenarioRequest("R2", "The cat sat on the wall and", max_tokens=6, sampling=GO_ON),
    ),
)
