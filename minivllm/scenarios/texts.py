"""Owns the scenarios about what a caller sees: text that is held back, a caller who leaves, several answers."""

from __future__ import annotations

from minivllm.scenarios.definition import GO_ON, Scenario, ScenarioRequest

_ENGINE = {"max_model_len": 256, "block_size": 8, "num_gpu_blocks_override": 65, "max_num_seqs": 4}

ABORT_IN_FLIGHT = Scenario(
    name="abort-in-flight",
    title="A caller hangs up while the model computes the next token",
    teaches="The step is not undone: its token is thrown away, and the blocks are free for the next iteration.",
    engine={**_ENGINE, "max_num_seqs": 2},
    requests=(
        ScenarioRequest("R0", "Once upon a time", max_tokens=12, sampling=GO_ON),
        ScenarioRequest("R1", "The little dog was", 40, abort_step=4, abort_phase="mid", sampling=GO_ON),
        ScenarioRequest("R2", "The cat sat on the wall and", max_tokens=4, arrival_step=2, sampling=GO_ON),
    ),
    look_at=4,
    note=(
        "R1's caller leaves after the model has run and before its output is committed: R0 gets its token, R1's is "
        "dropped. R1's place and blocks are free from then on, and R2 has the place in iteration 5."
    ),
)

STOP_STRINGS = Scenario(
    name="stop-strings",
    title="Text is held back because it may be the beginning of a stop string",
    teaches="A stop string may span tokens, so the last characters wait until it is clear that they are not one.",
    engine=_ENGINE,
    requests=(
        ScenarioRequest("R0", "One day, Lily", max_tokens=40, sampling={"stop": ("room. She knew",), **GO_ON}),
        ScenarioRequest("R1", "One day, Lily", max_tokens=12, sampling=GO_ON),
    ),
    look_at=9,
    note=(
        'Both say the same. R0 stops at "room. She knew", 14 characters, so its caller always lacks the last 13: the '
        "stop string may begin there. When it is complete, it is cut off with all that follows, and the core is told "
        "to drop the request. R1, without a stop string, is sent every character at once."
    ),
)

# 🙂 is four bytes, and each of them one token; the biases make the model say them in this order, and the penalty lets
# it say each only once.
_SMILE = {176: 100.0, 257: 75.0, 251: 50.0, 228: 25.0}

UTF8_SPLIT = Scenario(
    name="utf8-split",
    title="A character made of four tokens",
    teaches="A token may be a part of a character: its text is held back until the character is whole.",
    engine=_ENGINE,
    requests=(
        ScenarioRequest(
            "R0",
            "Lily drew a happy face:",
            max_tokens=8,
            sampling={"logit_bias": _SMILE, "repetition_penalty": 1000.0, **GO_ON},
        ),
        ScenarioRequest("R1", "从前有一座山", max_tokens=4, sampling={"min_tokens": 4}),
    ),
    look_at=3,
    note=(
        "The built-in model never saw this character; biases on the four byte tokens make it say them in order. Three "
        "iterations bring tokens and no text; the fourth completes the character. R1's six characters are 18 tokens."
    ),
)

N2 = Scenario(
    name="n2",
    title="One prompt, two answers",
    teaches="n = 2 makes two requests of one: the second finds the first one's prompt blocks in the same iteration.",
    engine=_ENGINE,
    requests=(
        ScenarioRequest(
            "R0",
            "Tom and Lily went to the park. They saw a big red slide. Tom said:",
            max_tokens=8,
            sampling={"n": 2, "temperature": 1.0, "seed": 7, **GO_ON},
        ),
    ),
    look_at=0,
    note=(
        "The core knows only the children 0_R0 and 1_R0, and not that they belong together. The prompt's full blocks "
        "have two owners; the last, partly filled one is each child's own, since they write different tokens into it."
    ),
)
