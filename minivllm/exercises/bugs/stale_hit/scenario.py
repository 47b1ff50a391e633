"""A request waits with a hit, and a block of the hit is given to somebody else."""

from __future__ import annotations

from minivllm.scenarios.definition import GO_ON, Piece, Scenario, ScenarioRequest

SCENARIO = Scenario(
    name="waiting-for-room",
    title="A hit of yesterday",
    teaches="A look-up is true at its moment, and reserves nothing.",
    engine={"max_model_len": 64, "block_size": 4, "num_gpu_blocks_override": 14, "max_num_seqs": 4},
    requests=(
        ScenarioRequest("R0", (Piece(40, 16),), max_tokens=1, sampling=GO_ON),
        ScenarioRequest("R1", (Piece(300, 8),), max_tokens=8, arrival_step=1, sampling=GO_ON),
        ScenarioRequest("R3", (Piece(330, 26),), max_tokens=3, arrival_step=1, sampling=GO_ON),
        ScenarioRequest("R2", (Piece(40, 17),), max_tokens=8, arrival_step=1, sampling=GO_ON),
    ),
)
