"""Owns the scenarios about the prefix cache: what is found again, what is not, and why."""

from __future__ import annotations

from minivllm.scenarios.definition import GO_ON, Piece, Scenario, ScenarioRequest

_ENGINE = {"max_model_len": 256, "block_size": 8, "num_gpu_blocks_override": 65, "max_num_seqs": 4}

# Said before every question, as a system prompt is.
_PREAMBLE = (
    "There was a small town by the sea. In the town lived a girl named Mia. She had a blue kite and a brown dog. "
    "The dog liked to run on the beach, and the kite liked the wind. "
)

PREFIX_WARMUP = Scenario(
    name="prefix-warmup",
    title="Three questions with one preamble: the first one pays for it",
    teaches="Full blocks of a prompt that somebody computed before are shared, not computed again.",
    engine=_ENGINE,
    requests=(
        ScenarioRequest("R0", _PREAMBLE + "One day the dog", max_tokens=4, sampling=GO_ON),
        ScenarioRequest("R1", _PREAMBLE + "One night the kite", max_tokens=4, arrival_step=5, sampling=GO_ON),
        ScenarioRequest("R2", _PREAMBLE + "Mia's best friend was", max_tokens=4, arrival_step=5, sampling=GO_ON),
    ),
    look_at=5,
    note=(
        "R0 has finished; its blocks are free, and still known by what is in them. R1 and R2 take the same ones, and "
        "the worker computes only what comes after. A block is found by the hash of its tokens and all before it."
    ),
)

FULL_HIT = Scenario(
    name="full-hit",
    title="The very same prompt again: all of it is cached, and still its last block is computed",
    teaches="The last token must be computed, for its logits; since hits are whole blocks, the last block is.",
    engine=_ENGINE,
    requests=(
        ScenarioRequest("R0", (Piece(0, 32),), max_tokens=4, sampling=GO_ON),
        ScenarioRequest("R1", (Piece(0, 32),), max_tokens=4, arrival_step=5, sampling=GO_ON),
    ),
    look_at=5,
    note=(
        "The prompt is 32 tokens, 4 blocks of 8. At most 31 tokens may be found in the cache, so 3 blocks are; the "
        "fourth is computed into a new block, and the cache then knows two blocks with the same content."
    ),
)

SHORT_PREFIX = Scenario(
    name="short-prefix",
    title="Prompts that begin alike, and no hit: they share less than a block",
    teaches="Only full, equal blocks are found. The hit rate is 0 as long as prompts differ within their first block.",
    engine={**_ENGINE, "block_size": 16},
    requests=(
        ScenarioRequest("R0", "Tom and Lily went to the park. They saw a big red slide. They ran", 4, sampling=GO_ON),
        ScenarioRequest(
            "R1", "Tom and Lily went to the park. They ate a small green apple. It was", 4, 5, sampling=GO_ON
        ),
        ScenarioRequest(
            "R2", "Tom and Lily went to the park. They saw a big red slide. They sat down and", 4, 5, sampling=GO_ON
        ),
    ),
    look_at=5,
    note=(
        "A block is 16 tokens here. R1 shares nine tokens with R0 and finds nothing; R2 shares the whole first block "
        "and finds it. With a smaller block size R1 would have found something, too: try --block-size 4."
    ),
)
