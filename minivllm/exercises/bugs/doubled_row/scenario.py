"""A prompt takes a row before requests that decode, so rows are swapped."""

from __future__ import annotations

from minivllm.scenarios.definition import GO_ON, Piece, Scenario, ScenarioRequest

SCENARIO = Scenario(
    name="two-rows-swap",
    title="A newcomer takes the first row, and the decodes want to stand before it",
    teaches="A row is a place; whoever moves takes every column along.",
    engine={"max_model_len": 64, "block_size": 4, "num_gpu_blocks_override": 65, "max_num_seqs": 4, "batch": "rows"},
    requests=(
        ScenarioRequest("R0", (Piece(0, 6),), max_tokens=3, sampling=GO_ON),
        ScenarioRequest("R1", (Piece(20, 6),), max_tokens=8, sampling=GO_ON),
        ScenarioRequest("R2", (Piece(40, 6),), max_tokens=8, sampling=GO_ON),
        ScenarioRequest("R3", (Piece(60, 10),), max_tokens=6, arrival_step=3, sampling=GO_ON),
    ),
)
