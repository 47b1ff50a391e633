"""Stop strings that come before, at and after the last of the tokens that a caller wants at least."""

from __future__ import annotations

from minivllm.scenarios.definition import GO_ON, Scenario, ScenarioRequest

SCENARIO = Scenario(
    name="too-short",
    title="Stop strings come before min_tokens",
    teaches="The core ends requests at ids, the frontend at strings: a wish that concerns both is kept by both.",
    engine={"max_model_len": 128, "block_size": 8, "num_gpu_blocks_override": 33, "max_num_seqs": 4},
    requests=(
        ScenarioRequest("R0", "The little dog was", 16, sampling={"stop": ("pot and",), "min_tokens": 11, **GO_ON}),
        ScenarioRequest("R1", "Once upon a time", 12, sampling={"stop": ("was", "had"), "min_tokens": 8, **GO_ON}),
        ScenarioRequest("R2", "Once upon a time", 12, sampling={"stop": ("little",), "min_tokens": 5, **GO_ON}),
    ),
)
