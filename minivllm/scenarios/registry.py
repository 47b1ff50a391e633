"""Owns the list of the named runs, and finding one by its name."""

from __future__ import annotations

import difflib
from typing import Any

from minivllm.scenarios import batches, machinery, prefixes, pressure, texts
from minivllm.scenarios.definition import STORIES, Piece, Scenario, ScenarioRequest

__all__ = [
    "STORIES",
    "Piece",
    "Scenario",
    "ScenarioRequest",
    "UnknownScenarioError",
    "all_scenarios",
    "get_scenario",
    "prompts_scenario",
]

# In the order in which to meet them.
_SCENARIOS = (
    batches.HELLO,
    batches.CONTINUOUS_BATCHING,
    batches.CHUNKED,
    batches.MIXED_BATCH,
    batches.MIXED_BATCH_DRAFTS,
    batches.LONG_PREFILL_INTERFERENCE,
    prefixes.PREFIX_WARMUP,
    prefixes.FULL_HIT,
    prefixes.SHORT_PREFIX,
    pressure.KV_PRESSURE,
    pressure.THRASH,
    pressure.PRIORITY,
    pressure.STUCK_QUEUE,
    texts.ABORT_IN_FLIGHT,
    texts.STOP_STRINGS,
    texts.UTF8_SPLIT,
    texts.N2,
    machinery.CONDENSE,
    machinery.ASYNC_SCHEDULING,
    machinery.TWO_PROCESSES,
)


class UnknownScenarioError(ValueError):
    """There is no scenario of that name; the message names the nearest, or lists those that there are."""


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
    some = f"there are: {', '.join(names[:4])} and {len(names) - 4} more; see: minivllm scenario list"
    hint = f"did you mean {close[0]!r}?" if close else some
    raise UnknownScenarioError(f"no scenario is called {name!r}; {hint}")


def prompts_scenario(prompts: list[str], max_tokens: int, sampling: dict[str, Any]) -> Scenario:
    """An unnamed scenario: these prompts, all at once."""
    requests = tuple(
        ScenarioRequest(f"R{i}", prompt, max_tokens, sampling=sampling) for i, prompt in enumerate(prompts)
    )
    return Scenario("prompts", "Your prompts", "", {"max_num_seqs": max(8, len(prompts))}, requests)
