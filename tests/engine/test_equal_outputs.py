"""The equality matrix: what callers get does not depend on how the engine is set up. Any two features at once.

A feature is a setting of the engine. Every run serves the same mix of requests: greedy and drawn, one completion and
several, with stop strings, logprobs and prompt logprobs, in one of the three kinds of output. Tokens, texts and reasons
are equal to those of the plain engine; scores, too, but for the last digits, which the shape of a batch may change.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from minivllm.engine.arg_utils import EngineArgs
from minivllm.engine.llm_engine import LLMEngine
from minivllm.metrics_reader import Counter, Histogram
from minivllm.outputs import CompletionOutput, RequestOutput
from minivllm.sampling_params import RequestOutputKind, SamplingParams

PLAIN: dict[str, Any] = {"max_model_len": 256, "num_gpu_blocks_override": 257, "block_size": 4}
FEATURES: dict[str, dict[str, Any]] = {
    "async": {"async_scheduling": True},
    "rows": {"batch": "rows"},
    "chunks": {"max_num_batched_tokens": 8, "max_num_seqs": 5},
    "whole": {"enable_chunked_prefill": False},
    "no cache": {"enable_prefix_caching": False},
    "preempted": {"scheduler_reserve_full_isl": False},  # and few blocks: see settings_of
    "blocks of 16": {"block_size": 16},
    "interval": {"stream_interval": 3},
    "process": {"multiprocess": True},
}
# Starting a process takes seconds, so three of them are with every other feature in turn.
WITH_PROCESS = [
    ("process", "async", "rows", "chunks"),
    ("process", "no cache", "blocks of 16", "interval", "whole"),
    ("process", "preempted"),
]
IN_PROCESS = [
    pair for pair in itertools.combinations([name for name in FEATURES if name != "process"], 2)
    if pair != ("chunks", "whole")
]  # fmt: skip
CASES: list[tuple[str, ...]] = [*IN_PROCESS, *WITH_PROCESS]
PROMPTS = ["Once upon a time", "One day, a girl named Lucy went to the park with her mom. They saw a", "It was", "A"]
KINDS = list(RequestOutputKind)


def settings_of(names: tuple[str, ...]) -> dict[str, Any]:
    settings = PLAIN | {name: value for feature in names for name, value in FEATURES[feature].items()}
    if "preempted" in names:
        settings["num_gpu_blocks_override"] = 1 + 100 // settings["block_size"]
    return settings


def run(
    model: Path, settings: dict[str, Any], stops: list[str], kind: RequestOutputKind
) -> tuple[dict[str, Any], dict[str, float]]:
    """Every completion of the mix, and what the engine counted."""
    engine = LLMEngine.from_engine_args(EngineArgs.from_kwargs(model=str(model), **settings))
    common: dict[str, Any] = {"ignore_eos": True, "output_kind": kind}
    for index, prompt in enumerate(PROMPTS):
        scores = {"logprobs": index} if index else {}
        greedy = SamplingParams(temperature=0.0, max_tokens=24, stop=stops[index : index + 1], **scores, **common)
        drawn = SamplingParams(temperature=0.9, max_tokens=16, n=3, seed=index, stop=stops, **common)
        engine.add_request(f"greedy {index}", prompt, greedy)
        engine.add_request(f"drawn {index}", prompt, drawn)
    asked = SamplingParams(
        temperature=0.0, max_tokens=6, prompt_logprobs=2, logprobs=1, repetition_penalty=1.3, **common
    )
    engine.add_request("prompt", PROMPTS[1], asked)
    found: dict[tuple[str, int], CompletionOutput] = {}
    prompt_logprobs: Any = None
    while engine.has_unfinished_requests():
        for output in engine.step():
            prompt_logprobs = output.prompt_logprobs or prompt_logprobs
            collect(output, kind, found)
    assert not engine.output_processor.parent_requests
    counted = {
        metric.name.removeprefix("minivllm:"): metric.value if isinstance(metric, Counter) else metric.count
        for metric in engine.get_metrics()
        if isinstance(metric, Counter | Histogram)
    }
    engine.shutdown()
    outputs: dict[str, Any] = {
        f"{name}, {index}": (c.text, c.token_ids, c.finish_reason, c.stop_reason, told(c.logprobs))
        for (name, index), c in sorted(found.items())
    }
    return {**outputs, "scores of the prompt": (told(prompt_logprobs),)}, counted


def collect(output: RequestOutput, kind: RequestOutputKind, found: dict[tuple[str, int], CompletionOutput]) -> None:
    for completion in output.outputs:
        place = (output.request_id, completion.index)
        if kind is RequestOutputKind.DELTA and place in found:
            found[place].extend(completion)
        else:
            found[place] = completion


def told(logprobs: Any) -> Any:
    """Scores by position and token."""
    if logprobs is None:
        return None
    return {
        (position, token): entry.logprob
        for position, entries in enumerate(logprobs)
        for token, entry in (entries or {}).items()
    }


def assert_equal(outputs: dict[str, Any], plain: dict[str, Any]) -> None:
    assert outputs.keys() == plain.keys()
    for name, (*facts, scores) in outputs.items():
        assert facts == list(plain[name][:-1]), name
        assert (scores is None) == (plain[name][-1] is None), name
        assert (scores or {}) == pytest.approx(plain[name][-1] or {}, abs=1e-4), name


@pytest.fixture(scope="module")
def stops(tiny_model: Path) -> list[str]:
    """For each prompt three characters of its own greedy text."""
    texts, _ = run(tiny_model, PLAIN, [], RequestOutputKind.FINAL_ONLY)
    return [texts[f"greedy {index}, 0"][0][6:9] for index in range(len(PROMPTS))]


@pytest.fixture(scope="module")
def plain(tiny_model: Path, stops: list[str]) -> dict[str, Any]:
    outputs, _ = run(tiny_model, PLAIN, stops, RequestOutputKind.FINAL_ONLY)
    assert {facts[2] for facts in outputs.values() if len(facts) > 1} == {"stop", "length"}
    assert sum(bool(facts[-1]) for facts in outputs.values()) == 5, "four outputs and a prompt have scores"
    return outputs


def test_every_pair_of_features_that_can_be_together_is_in_some_case() -> None:
    pairs = {frozenset(pair) for pair in itertools.combinations(FEATURES, 2)} - {frozenset(("chunks", "whole"))}
    assert pairs == {frozenset(pair) for case in CASES for pair in itertools.combinations(case, 2)}


@pytest.mark.parametrize("names", CASES, ids=" and ".join)
def test_outputs_equal_the_plain_ones(
    tiny_model: Path, plain: dict[str, Any], stops: list[str], names: tuple[str, ...]
) -> None:
    outputs, counted = run(tiny_model, settings_of(names), stops, KINDS[CASES.index(names) % len(KINDS)])
    assert_equal(outputs, plain)
    # And the features did what they are for.
    assert (counted["num_preemptions"] > 0) == ("preempted" in names)
    assert (counted["prefix_cache_hits"] > 0) == ("no cache" not in names)


@pytest.mark.parametrize("kind", RequestOutputKind)
def test_every_kind_of_output_ends_with_the_same(
    tiny_model: Path, plain: dict[str, Any], stops: list[str], kind: RequestOutputKind
) -> None:
    outputs, counted = run(tiny_model, PLAIN, stops, kind)
    assert_equal(outputs, plain)
    assert counted["num_preemptions"] == 0
