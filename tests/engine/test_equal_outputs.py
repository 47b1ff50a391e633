"""Completions, stop strings and kinds of output do not depend on how the engine is set up: any two settings at once."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from minivllm.engine.arg_utils import EngineArgs
from minivllm.engine.llm_engine import LLMEngine
from minivllm.outputs import CompletionOutput
from minivllm.sampling_params import RequestOutputKind, SamplingParams

PLAIN: dict[str, Any] = {"max_model_len": 256, "num_gpu_blocks_override": 257, "block_size": 4}
SETTINGS: dict[str, dict[str, Any]] = {
    "async": {"async_scheduling": True},
    "rows": {"batch": "rows"},
    "chunks": {"max_num_batched_tokens": 8, "max_num_seqs": 5},
    "no cache": {"enable_prefix_caching": False},
    "preempted": {"num_gpu_blocks_override": 26, "scheduler_reserve_full_isl": False},
    "blocks of 16": {"block_size": 16},
    "interval": {"stream_interval": 3},
    "process": {"multiprocess": True},
}
PROMPTS = ["Once upon a time", "One day, a girl named Lucy went to the park with her mom. They saw a", "It was", "A"]


def run(model: Path, settings: dict[str, Any], stops: list[str], kind: RequestOutputKind) -> dict[str, Any]:
    """Every completion of a mix of requests: greedy and drawn, one and several, with a stop string and without."""
    engine = LLMEngine.from_engine_args(EngineArgs.from_kwargs(model=str(model), **{**PLAIN, **settings}))
    common: dict[str, Any] = {"ignore_eos": True, "output_kind": kind}
    for index, prompt in enumerate(PROMPTS):
        greedy = SamplingParams(temperature=0.0, max_tokens=24, stop=stops[index : index + 1], **common)
        drawn = SamplingParams(temperature=0.9, max_tokens=16, n=3, seed=index, stop=stops, **common)
        engine.add_request(f"greedy {index}", prompt, greedy)
        engine.add_request(f"drawn {index}", prompt, drawn)
    found: dict[tuple[str, int], CompletionOutput] = {}
    while engine.has_unfinished_requests():
        for output in engine.step():
            for completion in output.outputs:
                place = (output.request_id, completion.index)
                if kind is RequestOutputKind.DELTA and place in found:
                    found[place].extend(completion)
                else:
                    found[place] = completion
    assert not engine.output_processor.parent_requests
    engine.shutdown()
    return {
        f"{name}, {index}": (c.text, c.token_ids, c.finish_reason, c.stop_reason)
        for (name, index), c in sorted(found.items())
    }


@pytest.fixture(scope="module")
def stops(tiny_model: Path) -> list[str]:
    """For each prompt three characters of its own greedy text."""
    texts = run(tiny_model, {}, [], RequestOutputKind.FINAL_ONLY)
    return [texts[f"greedy {index}, 0"][0][6:9] for index in range(len(PROMPTS))]


@pytest.fixture(scope="module")
def plain(tiny_model: Path, stops: list[str]) -> dict[str, Any]:
    outputs = run(tiny_model, {}, stops, RequestOutputKind.FINAL_ONLY)
    assert {facts[2] for facts in outputs.values()} == {"stop", "length"}, "both ends are meant to occur"
    return outputs


PAIRS = [(a, b) for a, b in itertools.combinations(SETTINGS, 2) if "process" not in (a, b) or a in ("async", "rows")]


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_outputs_equal_the_plain_ones(
    tiny_model: Path, plain: dict[str, Any], stops: list[str], first: str, second: str
) -> None:
    kinds = list(RequestOutputKind)
    kind = kinds[PAIRS.index((first, second)) % len(kinds)]
    assert run(tiny_model, {**SETTINGS[first], **SETTINGS[second]}, stops, kind) == plain


@pytest.mark.parametrize("kind", RequestOutputKind)
def test_every_kind_of_output_ends_with_the_same(
    tiny_model: Path, plain: dict[str, Any], stops: list[str], kind: RequestOutputKind
) -> None:
    assert run(tiny_model, {}, stops, kind) == plain
