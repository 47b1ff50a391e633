"""Owns the scenarios about who gets nothing: KV blocks that run out, queues that stand still, priorities."""

from __future__ import annotations

from minivllm.scenarios.definition import GO_ON, Piece, Scenario, ScenarioRequest

KV_PRESSURE = Scenario(
    name="kv-pressure",
    title="Three stories grow until the KV blocks run out, and the youngest has to give way",
    teaches="A running request that needs a block takes it from the last one in line, whose computed tokens are lost.",
    engine={"max_model_len": 64, "block_size": 4, "num_gpu_blocks_override": 14, "max_num_seqs": 4},
    requests=(
        ScenarioRequest("R0", "Tom and Lily went to the park. They saw", max_tokens=14, sampling=GO_ON),
        ScenarioRequest("R1", "One day, a boy named Tim found a", max_tokens=14, sampling=GO_ON),
        ScenarioRequest("R2", "The cat sat on the wall and", max_tokens=14, sampling=GO_ON),
    ),
    look_at=7,
    note=(
        "R2 came last, so it gives way; what it had computed is lost, what it had said is not. It comes back in "
        "iteration 14, when there is room for all that it knows, finds the one block that nobody has overwritten, and "
        "computes the rest again. Its text is the same as without the interruption."
    ),
)

THRASH = Scenario(
    name="thrash",
    title="The same request is preempted again and again",
    teaches="Each time its computed tokens are lost: more requests than the memory holds are slower than few.",
    engine={
        "max_model_len": 64,
        "block_size": 4,
        "num_gpu_blocks_override": 13,
        "max_num_seqs": 8,
        "enable_prefix_caching": False,
    },
    requests=(
        ScenarioRequest("R0", "Once upon", max_tokens=8, sampling=GO_ON),
        ScenarioRequest("R1", "Tom and Lily went to the park. They saw", max_tokens=5, sampling=GO_ON),
        ScenarioRequest("R2", "Mia had a blue kite. The wind was strong and", max_tokens=10, sampling=GO_ON),
        ScenarioRequest("R3", "One day, a boy named Tim found a big", max_tokens=20, sampling=GO_ON),
        ScenarioRequest("R4", "Once upon a time there", max_tokens=14, sampling=GO_ON),
    ),
    look_at=9,
    note=(
        "R4 is preempted in iterations 1, 9 and 21, since the last one in line always is. It enters as soon as what it "
        "knows fits, and a few tokens later there is no room for what everybody adds. Fewer requests at a time "
        "(max_num_seqs) or more blocks end this; the prefix cache, off here, would soften it."
    ),
)

PRIORITY = Scenario(
    name="priority",
    title="An urgent request overtakes who waits, but not who runs",
    teaches="Priority orders the queue, and picks the victim when blocks run out; it takes nobody's place by itself.",
    engine={
        "max_model_len": 64,
        "block_size": 4,
        "num_gpu_blocks_override": 10,
        "max_num_seqs": 2,
        "scheduling_policy": "priority",
    },
    requests=(
        ScenarioRequest("R0", "Tom and Lily went to the park. They saw", max_tokens=5, priority=5, sampling=GO_ON),
        ScenarioRequest("R1", "One day, a boy named Tim found a big", max_tokens=14, priority=9, sampling=GO_ON),
        ScenarioRequest("R2", "Once upon a time", max_tokens=4, arrival_step=1, priority=5, sampling=GO_ON),
        ScenarioRequest("R3", "The cat sat on the wall and", 12, arrival_step=2, priority=0, sampling=GO_ON),
    ),
    look_at=5,
    note=(
        "A smaller number is more urgent. R3 (0) came after R2 (5), and is first in the queue at once; still it waits "
        "until R0 leaves, although R1 (9) is less urgent than anybody. Only when the blocks run out, in iteration 10, "
        "is R1 sent away for it: first in, first served would have kept R1 and sent away R3."
    ),
)

STUCK_QUEUE = Scenario(
    name="stuck-queue",
    title="Most of the memory is free, and everybody waits behind one long prompt",
    teaches="The queue is served in order: when the first in line does not fit, nobody behind it is looked at.",
    engine={"max_model_len": 256, "block_size": 4, "num_gpu_blocks_override": 65, "max_num_seqs": 8},
    requests=(
        ScenarioRequest("R0", (Piece(700, 90),), max_tokens=6, sampling=GO_ON),
        ScenarioRequest("R1", (Piece(0, 180),), max_tokens=4, arrival_step=1, sampling=GO_ON),
        ScenarioRequest("R2", "Once upon a time", max_tokens=4, arrival_step=2, sampling=GO_ON),
        ScenarioRequest("R3", "The little dog was", max_tokens=4, arrival_step=2, sampling=GO_ON),
    ),
    look_at=3,
    note=(
        "40 of 64 blocks are free. R1 needs 45 for its prompt, so it is not admitted; R2 and R3 need one or two each, "
        "and would fit, but first in, first served does not look behind R1. When R0 leaves, all three enter at once."
    ),
)
