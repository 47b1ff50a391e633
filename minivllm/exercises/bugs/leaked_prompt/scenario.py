"""Two prompts that end inside a smiley, and a model that completes it."""

from __future__ import annotations

from minivllm.scenarios.definition import GO_ON, Piece, Scenario, ScenarioRequest

# The bytes of a smiley as tokens of the built-in model.
_SMILE = (176, 257, 251, 228)


def _says(*tokens: int) -> dict[str, object]:
    """The model says these tokens in this order, each once."""
    bias = {token: 100.0 - 25.0 * place for place, token in enumerate(tokens)}
    return {"logit_bias": bias, "repetition_penalty": 1000.0, **GO_ON}


SCENARIO = Scenario(
    name="half-a-character",
    title="A prompt of token ids ends inside a character",
    teaches="The prompt is context, and never output.",
    engine={"max_model_len": 64, "block_size": 8, "num_gpu_blocks_override": 33, "max_num_seqs": 4},
    requests=(
        ScenarioRequest("R0", (Piece(0, 9), *_SMILE[:3]), max_tokens=5, sampling=_says(_SMILE[3])),
        ScenarioRequest("R1", (Piece(20, 9), *_SMILE[:2]), max_tokens=5, sampling=_says(*_SMILE[2:])),
        ScenarioRequest("R2", (Piece(40, 9),), max_tokens=5, sampling=GO_ON),
    ),
)
