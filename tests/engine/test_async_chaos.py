"""Many callers at once who leave, are cancelled, abort each other, sleep, or ask for nonsense: whoever stays is served.

Afterwards nothing is left of anybody: no state in the frontend, no request in the scheduler, no block in use.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from minivllm.engine.arg_utils import EngineArgs
from minivllm.engine.async_llm import AsyncLLM
from minivllm.sampling_params import RequestOutputKind, SamplingParams
from tests.engine.async_core import assert_nothing_is_left, make_async_llm

SMALL: dict[str, Any] = {"max_model_len": 256, "num_gpu_blocks_override": 41, "block_size": 4, "max_num_seqs": 6}
PROMPTS = [
    "Once upon a time",
    "It was",
    "A",
    "Lucy 😀 日本",
    "One day, a girl named Lucy went to the park with her mom.",
]
KINDS = list(RequestOutputKind)
GREEDY: dict[str, Any] = {"temperature": 0.0, "ignore_eos": True}


class Chaos:
    """Callers with a common fate: what each of them does is drawn from one seed."""

    def __init__(self, engine: AsyncLLM, seed: int, whole: dict[str, list[int]]) -> None:
        self.engine = engine
        self.random = random.Random(seed)
        self.whole = whole
        self.ended: list[str] = []

    async def caller(self, name: str) -> None:
        rng = self.random
        await asyncio.sleep(rng.random() * 0.02)
        what = rng.choice(["stay", "stay", "leave", "abort", "nonsense", "several", "slow", "stop"])
        prompt, kind = rng.choice(PROMPTS), rng.choice(KINDS)
        params = SamplingParams(**GREEDY, max_tokens=rng.randint(1, 40), output_kind=kind)
        if what == "several":
            params = SamplingParams(temperature=1.0, n=rng.randint(2, 5), max_tokens=9, output_kind=kind, stop="e")
        if what == "stop":
            params.stop = rng.choice([["e"], ["a", "th"], [" "]])
        if what == "nonsense":
            with pytest.raises(ValueError, match=r"token id|max_model_len"):
                await self.drain(name, rng.choice([[10**9], [1] * 256]), params)
            return
        tokens = await self.drain(name, prompt, params, what)
        if what in ("stay", "slow"):
            assert tokens == self.whole[prompt][: params.max_tokens or 0], (name, kind)
            self.ended.append(name)

    async def drain(self, name: str, prompt: Any, params: SamplingParams, what: str = "stay") -> list[int]:
        rng, tokens, count = self.random, [], 0
        async for output in self.engine.generate(prompt, params, name):
            count += 1
            [*_, last] = output.outputs
            tokens = [*tokens, *last.token_ids] if params.output_kind is RequestOutputKind.DELTA else last.token_ids
            if what == "leave" and count == 2:
                break
            if what == "abort" and count == 2:
                await self.engine.abort(name)
            if what == "slow":
                await asyncio.sleep(rng.random() * 0.03)
        return tokens

    async def run(self, num_callers: int) -> None:
        tasks = [asyncio.create_task(self.caller(str(index))) for index in range(num_callers)]
        victims = self.random.sample(tasks, num_callers // 5)
        for victim in victims:
            await asyncio.sleep(self.random.random() * 0.05)
            victim.cancel()
        results = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 120)
        for task, result in zip(tasks, results, strict=True):
            assert result is None or (task in victims and isinstance(result, asyncio.CancelledError)), result


async def whole_outputs(engine: AsyncLLM) -> dict[str, list[int]]:
    """What each prompt gives when it is alone."""
    whole = {}
    for prompt in PROMPTS:
        async for output in engine.generate(prompt, SamplingParams(**GREEDY, max_tokens=40), prompt):
            whole[prompt] = output.outputs[0].token_ids
    return whole


def assert_frontend_is_empty(engine: AsyncLLM) -> None:
    processor = engine.output_processor
    assert not processor.request_states
    assert not processor.parent_requests
    assert not processor.external_req_ids
    assert engine.dead_error is None


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("settings", [{}, {"async_scheduling": True, "batch": "rows"}], ids=["plain", "async, rows"])
def test_whoever_stays_is_served_and_nothing_is_left(tiny_model: Path, seed: int, settings: dict[str, Any]) -> None:
    async def main() -> None:
        engine = make_async_llm(tiny_model, **SMALL, scheduler_reserve_full_isl=False, **settings)
        chaos = Chaos(engine, seed, await whole_outputs(engine))
        await chaos.run(40)
        assert chaos.ended
        await assert_nothing_is_left(engine)
        engine.shutdown()

    asyncio.run(main())


def test_the_same_with_a_core_of_its_own(tiny_model: Path) -> None:
    async def main() -> None:
        engine = AsyncLLM.from_engine_args(EngineArgs(model=str(tiny_model), **SMALL))
        whole = await whole_outputs(engine)
        for seed in range(2):
            await Chaos(engine, seed, whole).run(40)
            assert_frontend_is_empty(engine)
        # Everything was given back: a cached prefix can only be forgotten when nobody holds a block.
        assert await engine.reset_prefix_cache()
        assert await whole_outputs(engine) == whole
        await engine.check_health()
        engine.shutdown()

    asyncio.run(main())
