"""Owns the scenarios about how the engine is built: the worker's rows, planning ahead, processes."""

from __future__ import annotations

from minivllm.scenarios.definition import GO_ON, Scenario, ScenarioRequest

_ENGINE = {"max_model_len": 256, "block_size": 8, "num_gpu_blocks_override": 65, "max_num_seqs": 4}

CONDENSE = Scenario(
    name="condense",
    title="The first row becomes empty, and the last one moves into it",
    teaches="A row is a place in this step's arrays, not a name: a request may have another one in the next iteration.",
    engine={**_ENGINE, "batch": "rows"},
    requests=(
        ScenarioRequest("R0", "Once upon a time", max_tokens=3, sampling=GO_ON),
        ScenarioRequest("R1", "The little dog was", max_tokens=6, sampling=GO_ON),
        ScenarioRequest("R2", "The cat sat on the wall and", max_tokens=8, sampling=GO_ON),
        ScenarioRequest("R3", "Mia had a blue kite.", max_tokens=4, arrival_step=6, sampling=GO_ON),
    ),
    look_at=3,
    note=(
        "R0 had row 0 and is done, so R2, last in the batch, moves there with everything that the worker keeps of it; "
        "its KV blocks stay where they are. A request is known by its id, never by its row. R3 comes in iteration 6, "
        "just when R1's row is free: it takes that row, and nobody has to move."
    ),
)

# The token "." of the built-in model. R1 says it as its 13th and not before, whatever the model would say: the scenario
# needs a stop that nobody can count beforehand, in an iteration that is known here.
_FULL_STOP = 17
_STOPS_AT_13 = {"stop_token_ids": (_FULL_STOP,), "min_tokens": 12, "logit_bias": {_FULL_STOP: 100.0}}

ASYNC_SCHEDULING = Scenario(
    name="async-scheduling",
    title="An iteration is planned before the tokens of the one before it are known",
    teaches="A plan counts a token that it does not know yet; who stops with that token was planned in vain.",
    engine={**_ENGINE, "async_scheduling": True},
    requests=(
        ScenarioRequest("R0", "Once upon a time", max_tokens=12, sampling=GO_ON),
        ScenarioRequest("R1", "The little dog was", max_tokens=20, sampling=_STOPS_AT_13),
    ),
    look_at=13,
    note=(
        "When iteration 13 was planned, the token of iteration 12 was still a placeholder (vLLM's worker writes -1 "
        "into its place, and puts the sampled token there on the device). It turned out to be R1's stop token, so what "
        "iteration 13 computes for R1 is thrown away. R0's limit can be counted: it is not planned once too often."
    ),
)

TWO_PROCESSES = Scenario(
    name="two-processes",
    title="The engine core in a process of its own",
    teaches="Text stays with the frontend; ids and plans cross to the core as messages, and tokens come back.",
    engine={**_ENGINE, "multiprocess": True},
    requests=(
        ScenarioRequest("R0", "Once upon a time", max_tokens=8, sampling=GO_ON),
        ScenarioRequest("R1", "The little dog was", max_tokens=5, arrival_step=2, sampling=GO_ON),
    ),
    look_at=2,
    note=(
        "The frontend tokenizes and detokenizes; the core plans and computes. Between them lie two queues: requests go "
        "one way, tokens the other, both as bytes. The process map shows each message, its size and its time."
    ),
    clock="wall",
)
