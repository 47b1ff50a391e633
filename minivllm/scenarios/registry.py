"""Owns the named runs: what each is for, its settings, its requests. Definitions only; `run.py` runs them.

Prompts are cut from one text (stories.txt) to exact numbers of tokens, so that the numbers of a lesson come out with
any model that has its own tokenizer.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

_HERE = Path(__file__).parent
STORIES = _HERE / "stories.txt"
LOGS = _HERE / "logs"


class UnknownScenarioError(ValueError):
    """There is no scenario of that name; the message lists those that there are."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Part of a prompt: `count` tokens of the story text, from token `start` on."""

    start: int
    count: int


@dataclass(frozen=True, slots=True)
class ScenarioRequest:
    """One request.

    Attributes:
        id: Its id.
        prompt: Text, or pieces of the story text.
        max_tokens: Output limit.
        arrival_step: Iteration before which it arrives.
        abort_step, abort_phase: When its caller gives up, if ever.
        drafts: Draft tokens by iteration, as pieces of the story text.
        sampling: Other sampling parameters.
    """

    id: str
    prompt: str | tuple[Piece, ...]
    max_tokens: int
    arrival_step: int = 0
    priority: int = 0
    abort_step: int | None = None
    abort_phase: Literal["before", "mid"] = "before"
    drafts: dict[int, Piece] = field(default_factory=dict)
    sampling: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Scenario:
    """A named run that repeats exactly.

    Attributes:
        name: For the command line.
        title: In one line, what happens.
        teaches: What to see in it.
        engine: Engine arguments (see EngineArgs).
        requests: Who comes when.
        look_at: The iteration to look at first; None shows all.
        note: Said under that iteration's map.
    """

    name: str
    title: str
    teaches: str
    engine: dict[str, Any]
    requests: tuple[ScenarioRequest, ...]
    look_at: int | None = None
    note: str = ""

    @property
    def log_path(self) -> Path:
        """The recorded run that ships with the package."""
        return LOGS / f"{self.name}.jsonl.gz"


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
# An early end-of-sequence token would move everyone behind it to other iterations.
_GO_ON = {"ignore_eos": True}

_SCENARIOS = (
    Scenario(
        name="hello",
        title="Two prompts, the second one joins while the first is decoding",
        teaches="Requests join and leave between iterations; nobody waits for a batch to be full.",
        engine={"max_model_len": 256, "block_size": 16, "num_gpu_blocks_override": 33, "max_num_seqs": 4},
        requests=(
            ScenarioRequest("R0", "Once upon a time", max_tokens=12),
            ScenarioRequest("R1", "The little dog was", max_tokens=6, arrival_step=3),
        ),
    ),
    Scenario(
        name="mixed-batch",
        title="One batch with a decode, a chunk of a long prompt and the end of a cached one",
        teaches="One token budget serves decodes and prompts in the same iteration; a prefix hit only moves the start.",
        engine={**_MIXED_ENGINE, "max_num_batched_tokens": 260},
        requests=(
            ScenarioRequest("W1", (Piece(0, 516),), max_tokens=1),
            ScenarioRequest("W2", (Piece(600, 604),), max_tokens=1),
            ScenarioRequest("R0", (Piece(1300, 1020),), max_tokens=12, sampling=_GO_ON),
            ScenarioRequest("R1", (Piece(0, 512), Piece(2400, 1488)), max_tokens=3, arrival_step=13),
            ScenarioRequest("R2", (Piece(600, 600), Piece(4000, 3)), max_tokens=4, arrival_step=13),
            ScenarioRequest("R3", (Piece(4100, 310),), max_tokens=2, arrival_step=13),
        ),
        look_at=13,
        note=(
            "W1 and W2 ran before, only to put the two prefixes into the cache; the chunk limit is this scenario's "
            "long_prefill_token_threshold, 256. "
            "R2's three tokens are the end of its prompt. Three real drafts would take four query tokens: the last "
            "sampled token is fed in, too, and each of the 1 + 3 positions verifies or replaces the guess after it. "
            "See the scenario mixed-batch-drafts."
        ),
    ),
    Scenario(
        name="mixed-batch-drafts",
        title="The same batch, but the third request verifies three drafts",
        teaches="k drafts take 1 + k query tokens and 1 + k rows of logits; rejected drafts are computed again later.",
        engine={**_MIXED_ENGINE, "max_num_batched_tokens": 261},
        requests=(
            ScenarioRequest("W1", (Piece(0, 516),), max_tokens=1),
            ScenarioRequest("R0", (Piece(1300, 1017),), max_tokens=12, sampling=_GO_ON),
            ScenarioRequest("R2", (Piece(600, 596),), max_tokens=8, drafts={13: Piece(1201, 3)}, sampling=_GO_ON),
            ScenarioRequest("R1", (Piece(0, 512), Piece(2400, 1488)), max_tokens=3, arrival_step=13),
        ),
        look_at=13,
        note="The articles give this request 3 tokens; the engine needs 4, so the budget here is 261.",
    ),
)


def all_scenarios() -> list[Scenario]:
    """Every scenario, in the order in which to meet them."""
    return list(_SCENARIOS)


def get_scenario(name: str) -> Scenario:
    """A scenario by name. Raises UnknownScenarioError."""
    for scenario in _SCENARIOS:
        if scenario.name == name:
            return scenario
    names = [scenario.name for scenario in _SCENARIOS]
    close = difflib.get_close_matches(name, names, 1)
    hint = f"did you mean {close[0]!r}?" if close else f"there are: {', '.join(names)}"
    raise UnknownScenarioError(f"no scenario is called {name!r}; {hint}")


def prompts_scenario(prompts: list[str], max_tokens: int, sampling: dict[str, Any]) -> Scenario:
    """An unnamed scenario: these prompts, all at once."""
    requests = tuple(
        ScenarioRequest(f"R{i}", prompt, max_tokens, sampling=sampling) for i, prompt in enumerate(prompts)
    )
    return Scenario("prompts", "Your prompts", "", {"max_num_seqs": max(8, len(prompts))}, requests)
