"""Three requests by priority: the first in the list is planned, and then has to make room for the second."""

from __future__ import annotations

from minivllm.scenarios.definition import GO_ON, Piece, Scenario, ScenarioRequest

SCENARIO = Scenario(
    name="ghost",
    title="The victim is in the plan already",
    teaches="Whoever leaves in the middle of planning must leave the plan, too.",
    engine={
        "max_model_len": 32,
        "block_size": 4,
        "num_gpu_blocks_override": 7,
        "max_num_seqs": 4,
        "max_num_batched_tokens": 16,
        "scheduling_policy": "priority",
    },
    requests=(
        ScenarioRequest("R0", (Piece(0, 5),), max_tokens=8, priority=9, sampling=GO_ON),
        ScenarioRequest("R1", (Piece(20, 7),), max_tokens=8, arrival_step=1, priority=0, sampling=GO_ON),
        ScenarioRequest("R2", (Piece(40, 6),), max_tokens=3, arrival_step=1, priority=1, sampling=GO_ON),
    ),
)
