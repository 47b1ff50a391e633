"""Owns the scenarios about one iteration's batch: who joins and leaves, and what one token budget is spent on."""

from __future__ import annotations

from minivllm.scenarios.definition import GO_ON, Piece, Scenario, ScenarioRequest

HELLO = Scenario(
    name="hello",
    title="Two prompts, the second one joins while the first is decoding",
    teaches="Requests join and leave between iterations; nobody waits for a batch to be full.",
    engine={"max_model_len": 256, "block_size": 16, "num_gpu_blocks_override": 33, "max_num_seqs": 4},
    requests=(
        ScenarioRequest("R0", "Once upon a time", max_tokens=12),
        ScenarioRequest("R1", "The little dog was", max_tokens=6, arrival_step=3),
    ),
)

CONTINUOUS_BATCHING = Scenario(
    name="continuous-batching",
    title="Five requests and three places: who leaves is replaced in the very next iteration",
    teaches="A batch is never emptied and filled again: each iteration drops who is done and takes who waits longest.",
    engine={"max_model_len": 256, "block_size": 16, "num_gpu_blocks_override": 33, "max_num_seqs": 3},
    requests=(
        ScenarioRequest("R0", "Once upon a time", max_tokens=9, sampling=GO_ON),
        ScenarioRequest("R1", "The little dog was", max_tokens=3, sampling=GO_ON),
        ScenarioRequest("R2", "One day, a boy named Tim found a", max_tokens=12, sampling=GO_ON),
        ScenarioRequest("R3", "The cat sat on the wall and", max_tokens=5, arrival_step=1, sampling=GO_ON),
        ScenarioRequest("R4", "Mia had a blue kite.", max_tokens=4, arrival_step=2, sampling=GO_ON),
    ),
    look_at=3,
    note=(
        "R1 got its last token in iteration 2; its place is R3's in iteration 3, while R0 and R2 go on as if nothing "
        "had happened. R4 waits for the next place. The timeline map shows the whole run on one screen."
    ),
)

CHUNKED = Scenario(
    name="chunked",
    title="A prompt of 200 tokens where one iteration computes 64",
    teaches="A prompt may be longer than the token budget: it is computed in chunks, and only the last one samples.",
    engine={
        "max_model_len": 512,
        "block_size": 16,
        "num_gpu_blocks_override": 65,
        "max_num_seqs": 4,
        "max_num_batched_tokens": 64,
    },
    requests=(
        ScenarioRequest("R0", "The little dog was", max_tokens=10, sampling=GO_ON),
        ScenarioRequest("R1", (Piece(0, 200),), max_tokens=4, arrival_step=1, sampling=GO_ON),
    ),
    look_at=2,
    note=(
        "The running R0 is served first, with 1 token; R1 gets the other 63. Its logits are computed and thrown away "
        "until its last prompt token is in. max_num_batched_tokens bounds one iteration, max_model_len a whole request."
    ),
)

LONG_PREFILL_INTERFERENCE = Scenario(
    name="long-prefill-interference",
    title="A long prompt arrives among people who are being answered",
    teaches="Without a chunk limit a long prompt takes the whole budget: decodes get slower, and newcomers wait.",
    engine={
        "max_model_len": 1024,
        "block_size": 16,
        "num_gpu_blocks_override": 97,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 512,
    },
    requests=(
        ScenarioRequest("R0", "Once upon a time", max_tokens=14, sampling=GO_ON),
        ScenarioRequest("R1", "The little dog was", max_tokens=14, sampling=GO_ON),
        ScenarioRequest("R2", (Piece(0, 900),), max_tokens=4, arrival_step=5, sampling=GO_ON),
        ScenarioRequest("R3", "Mia had a blue kite.", max_tokens=4, arrival_step=5, sampling=GO_ON),
    ),
    look_at=5,
    note=(
        "Before R2 came, an iteration computed 2 tokens; this one computes 512, and R0 and R1 get their next token "
        "only when all of them are done. R3 has a prompt of 7 tokens and waits, since R2 was ahead of it. A chunk "
        "limit (long_prefill_token_threshold) would leave room for it."
    ),
)

# The articles' batch needs two prompts in the prefix cache and one request deep in its decoding. W1 and W2 put the
# prefixes there; R0 is timed so that it knows 1025 tokens, 1024 of them computed, when R1, R2 and R3 come.
_MIXED_ENGINE = {
    "max_model_len": 2304,
    "block_size": 8,
    "num_gpu_blocks_override": 513,
    "max_num_seqs": 8,
    "long_prefill_token_threshold": 256,
    "batch": "rows",
}

MIXED_BATCH = Scenario(
    name="mixed-batch",
    title="One batch with a decode, a chunk of a long prompt and the end of a cached one",
    teaches="One token budget serves decodes and prompts in the same iteration; a prefix hit only moves the start.",
    engine={**_MIXED_ENGINE, "max_num_batched_tokens": 260},
    requests=(
        ScenarioRequest("W1", (Piece(0, 516),), max_tokens=1),
        ScenarioRequest("W2", (Piece(600, 604),), max_tokens=1),
        ScenarioRequest("R0", (Piece(1300, 1020),), max_tokens=12, sampling=GO_ON),
        ScenarioRequest("R1", (Piece(0, 512), Piece(2400, 1488)), max_tokens=3, arrival_step=13, sampling=GO_ON),
        ScenarioRequest("R2", (Piece(600, 600), Piece(4000, 3)), max_tokens=4, arrival_step=13, sampling=GO_ON),
        ScenarioRequest("R3", (Piece(4100, 310),), max_tokens=2, arrival_step=13, sampling=GO_ON),
    ),
    look_at=13,
    note=(
        "W1 and W2 ran before, only to put the two prefixes into the cache; the chunk limit is this scenario's "
        "long_prefill_token_threshold, 256. "
        "R2's three tokens are the end of its prompt. Three real drafts would take four query tokens: the last "
        "sampled token is fed in, too, and each of the 1 + 3 positions verifies or replaces the guess after it. "
        "See the scenario mixed-batch-drafts."
    ),
)

MIXED_BATCH_DRAFTS = Scenario(
    name="mixed-batch-drafts",
    title="The same batch, but the third request verifies three drafts",
    teaches="k drafts take 1 + k query tokens and 1 + k rows of logits; rejected drafts are computed again later.",
    engine={**_MIXED_ENGINE, "max_num_batched_tokens": 261},
    requests=(
        ScenarioRequest("W1", (Piece(0, 516),), max_tokens=1),
        ScenarioRequest("R0", (Piece(1300, 1017),), max_tokens=12, sampling=GO_ON),
        ScenarioRequest("R2", (Piece(600, 596),), max_tokens=8, drafts={13: Piece(1201, 3)}, sampling=GO_ON),
        ScenarioRequest("R1", (Piece(0, 512), Piece(2400, 1488)), max_tokens=3, arrival_step=13, sampling=GO_ON),
    ),
    look_at=13,
    note="The articles give this request 3 tokens; the engine needs 4, so the budget here is 261.",
)
