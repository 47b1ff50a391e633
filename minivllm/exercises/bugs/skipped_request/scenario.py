"""Three requests by priority, ahead of their tokens: the least important one is passed over, and then the victim."""

from __future__ import annotations

from minivllm.scenarios.definition import GO_ON, Piece, Scenario, ScenarioRequest

SCENARIO = Scenario(
    name="passed-over",
    title="The victim was looked at, and got nothing, before it became the victim",
    teaches="A list that shrinks under a loop moves everybody behind the gap.",
    engine={
        "max_model_len": 16,
        "block_size": 4,
        "num_gpu_blocks_override": 5,
        "max_num_seqs": 4,
        "async_scheduling": True,
        "scheduling_policy": "priority",
    },
    requests=(
        ScenarioRequest("R0", (Piece(0, 4),), max_tokens=5, priority=9, sampling=GO_ON),
        ScenarioRequest("R1", (Piece(20, 1),), max_tokens=8, arrival_step=1, priority=0, sampling=GO_ON),
        ScenarioRequest("R2", (Piece(40, 1),), max_tokens=8, arrival_step=1, priority=1, sampling=GO_ON),
    ),
)
