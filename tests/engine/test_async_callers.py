"""Any mix of callers, patient, slow, leaving and aborted ones: nobody's text depends on the others."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from minivllm import LLM
from minivllm.engine.async_llm import AsyncLLM
from minivllm.outputs import CompletionOutput
from minivllm.sampling_params import RequestOutputKind, SamplingParams
from tests.engine.async_core import assert_nothing_is_left, make_async_llm

TIGHT: dict[str, Any] = {"max_model_len": 128, "num_gpu_blocks_override": 24, "block_size": 4, "max_num_seqs": 3}
PROMPTS = ["Once upon a time", "It was", "A"]


@dataclass(frozen=True)
class Caller:
    """What one caller asks for, and how it behaves.

    Attributes:
        leaves_after: Outputs after which it leaves, or has itself aborted; None stays to the end.
        is_aborted: Which of the two.
    """

    prompt: int
    kind: RequestOutputKind
    n: int
    stop: bool
    comes_at: int
    pause: int
    leaves_after: int | None
    is_aborted: bool

    def params(self, stop: str, **more: Any) -> SamplingParams:
        return SamplingParams(
            temperature=0.9, seed=self.prompt, n=self.n, max_tokens=14, ignore_eos=True, stop=[stop] * self.stop, **more
        )


callers = st.builds(
    Caller,
    prompt=st.integers(0, 2),
    kind=st.sampled_from(RequestOutputKind),
    n=st.sampled_from([1, 1, 2, 3]),
    stop=st.booleans(),
    comes_at=st.integers(0, 30),
    pause=st.sampled_from([0, 0, 3, 25]),
    leaves_after=st.sampled_from([None, None, 0, 1, 4]),
    is_aborted=st.booleans(),
)
Facts = dict[tuple[int, int, bool, int], CompletionOutput]


@pytest.fixture(scope="module")
def stop(tiny_model: Path) -> str:
    """A stop string that some of the outputs meet."""
    params = SamplingParams(temperature=0.9, seed=0, max_tokens=14, ignore_eos=True)
    return LLM(model=str(tiny_model)).generate(PROMPTS[0], params)[0].outputs[0].text[5:7]


@pytest.fixture(scope="module")
def alone(tiny_model: Path, stop: str) -> Facts:
    """Each request without any other."""
    llm = LLM(model=str(tiny_model), max_model_len=128)
    found: Facts = {}
    for prompt in range(3):
        for n in (1, 2, 3):
            for with_stop in (False, True):
                caller = Caller(prompt, RequestOutputKind.FINAL_ONLY, n, with_stop, 0, 0, None, False)
                [output] = llm.generate(PROMPTS[prompt], caller.params(stop))
                found.update({(prompt, n, with_stop, c.index): c for c in output.outputs})
    assert {completion.finish_reason for completion in found.values()} == {"stop", "length"}
    return found


async def call(engine: AsyncLLM, name: str, caller: Caller, stop: str) -> dict[int, CompletionOutput]:
    """What a caller has when it is done."""
    for _ in range(caller.comes_at):
        await asyncio.sleep(0)
    seen: dict[int, CompletionOutput] = {}
    count = 0
    generator = engine.generate(PROMPTS[caller.prompt], caller.params(stop, output_kind=caller.kind), name)
    async for output in generator:
        for completion in output.outputs:
            if caller.kind is RequestOutputKind.DELTA and completion.index in seen:
                seen[completion.index].extend(completion)
            else:
                seen[completion.index] = completion
        if caller.leaves_after is not None and count >= caller.leaves_after:
            if not caller.is_aborted:
                break
            await engine.abort(name)
        count += 1
        for _ in range(caller.pause):
            await asyncio.sleep(0)
    await generator.aclose()
    return seen


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(callers, min_size=1, max_size=6), st.booleans(), st.sampled_from([1, 3]))
def test_nobodys_text_depends_on_the_others(
    tiny_model: Path, alone: Facts, stop: str, mix: list[Caller], is_async: bool, stream_interval: int
) -> None:
    async def main() -> None:
        engine = make_async_llm(tiny_model, **TIGHT, async_scheduling=is_async, stream_interval=stream_interval)
        found = await asyncio.gather(*(call(engine, str(i), caller, stop) for i, caller in enumerate(mix)))
        await assert_nothing_is_left(engine)
        for caller, seen in zip(mix, found, strict=True):
            if caller.leaves_after is None:
                assert set(seen) == set(range(caller.n))
            for index, completion in seen.items():
                whole = alone[caller.prompt, caller.n, caller.stop, index]
                if completion.finish_reason in ("stop", "length"):
                    assert completion == whole
                else:
                    assert caller.leaves_after is not None, "who stays gets everything"
                    assert whole.token_ids[: len(completion.token_ids)] == completion.token_ids
                    assert completion.finish_reason == "abort" or whole.text.startswith(completion.text)

    asyncio.run(main())
