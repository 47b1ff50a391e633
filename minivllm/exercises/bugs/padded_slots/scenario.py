"""Four decodes, then three: a graph for four has one row of padding."""

from __future__ import annotations

from minivllm.scenarios.definition import GO_ON, Piece, Scenario, ScenarioRequest

SCENARIO = Scenario(
    name="padded-decodes",
    title="The first of four requests leaves, and three run in a graph for four",
    teaches="All rows of a graph write; those of padding must be told to write nowhere.",
    engine={"max_model_len": 64, "block_size": 4, "num_gpu_blocks_override": 65, "max_num_seqs": 8},
    requests=(
        ScenarioRequest("R0", (Piece(0, 6),), max_tokens=4, sampling=GO_ON),
        ScenarioRequest("R1", (Piece(20, 6),), max_tokens=12, sampling=GO_ON),
        ScenarioRequest("R2", (Piece(40, 6),), max_tokens=12, sampling=GO_ON),
        ScenarioRequest("R3", (Piece(60, 6),), max_tokens=12, sampling=GO_ON),
    ),
)
