"""`AsyncLLM` and its core's process together: whoever leaves frees blocks over there, and a death reaches everyone."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from minivllm import LLM, SamplingParams
from minivllm.core.messages import EngineCoreRequest
from minivllm.engine.arg_utils import EngineArgs
from minivllm.engine.async_llm import AsyncLLM
from minivllm.engine.core_client import AsyncMPClient
from minivllm.engine.exceptions import EngineDeadError
from minivllm.outputs import RequestOutput
from tests.engine.processes import SMALL, assert_nothing_left, core_of, no_hang, pid_of

PROMPTS = ["Once upon a time", "It was", "The little dog was very happy because"]
GREEDY = SamplingParams(temperature=0.0, max_tokens=16, ignore_eos=True)
LONG = SamplingParams(temperature=0.0, max_tokens=2000, ignore_eos=True)


@pytest.fixture
def engine(tiny_model: Path) -> Iterator[AsyncLLM]:
    engine = AsyncLLM.from_engine_args(EngineArgs.from_kwargs(model=str(tiny_model), **SMALL))
    client = engine.client
    assert isinstance(client, AsyncMPClient)
    with no_hang():
        yield engine
    engine.shutdown()
    assert_nothing_left(pid_of(client), core_of(client).folder)


async def last(engine: AsyncLLM, prompt: str, params: SamplingParams, request_id: str) -> RequestOutput:
    outputs = [output async for output in engine.generate(prompt, params, request_id)]
    return outputs[-1]


def test_callers_get_what_llm_gives_and_those_that_leave_free_their_blocks(engine: AsyncLLM, tiny_model: Path) -> None:
    async def run() -> list[RequestOutput]:
        leaves = asyncio.create_task(last(engine, "A", LONG, "leaves"))
        outputs = await asyncio.gather(*(last(engine, prompt, GREEDY, prompt) for prompt in PROMPTS))
        assert not await engine.reset_prefix_cache(), "one request holds blocks"
        leaves.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaves
        assert await engine.reset_prefix_cache(), "its blocks came back"
        return outputs

    outputs = asyncio.run(run())
    expected = LLM(str(tiny_model), **SMALL).generate(PROMPTS, GREEDY)
    assert [o.outputs[0].text for o in outputs] == [o.outputs[0].text for o in expected]
    assert [o.outputs[0].token_ids for o in outputs] == [o.outputs[0].token_ids for o in expected]


def test_a_stop_string_ends_the_request_in_the_core_too(engine: AsyncLLM) -> None:
    async def run() -> None:
        text = (await last(engine, PROMPTS[0], GREEDY, "whole")).outputs[0].text
        stop = text[3:5]
        params = SamplingParams(temperature=0.0, max_tokens=2000, ignore_eos=True, stop=stop)
        stopped = (await last(engine, PROMPTS[0], params, "stopped")).outputs[0]
        assert (stopped.finish_reason, stopped.stop_reason) == ("stop", stop)
        assert stopped.text == text[: text.index(stop)]
        # The abort is on its way before this call, and nothing overtakes.
        assert await engine.reset_prefix_cache()

    asyncio.run(run())


def test_a_request_that_cannot_be_understood_harms_nobody(engine: AsyncLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    process_inputs = engine.input_processor.process_inputs

    def with_wrong_field(request_id: str, *args: Any, **kwargs: Any) -> EngineCoreRequest:
        request = process_inputs(request_id, *args, **kwargs)
        return msgspec.structs.replace(request, cache_salt=5) if request_id == "wrong" else request

    monkeypatch.setattr(engine.input_processor, "process_inputs", with_wrong_field)

    async def run() -> list[RequestOutput | BaseException]:
        asked = (last(engine, "It was", GREEDY, request_id) for request_id in ("first", "wrong", "last"))
        return await asyncio.gather(*asked, return_exceptions=True)

    first, wrong, other = asyncio.run(run())
    assert isinstance(wrong, ValueError)
    assert "cannot be understood: Expected `str | null`, got `int`" in str(wrong)
    assert isinstance(first, RequestOutput)
    assert isinstance(other, RequestOutput)
    assert first.outputs[0].token_ids == other.outputs[0].token_ids


def test_a_death_reaches_every_caller(engine: AsyncLLM) -> None:
    async def run() -> None:
        callers = [asyncio.create_task(last(engine, prompt, LONG, prompt)) for prompt in PROMPTS]
        started = engine.generate("A", LONG, "the first")
        await anext(started)
        assert isinstance(engine.client, AsyncMPClient)
        os.kill(pid_of(engine.client), signal.SIGKILL)
        for each in await asyncio.gather(*callers, return_exceptions=True):
            assert isinstance(each, EngineDeadError)
        with pytest.raises(EngineDeadError, match="ended by SIGKILL"):
            async for _ in started:
                pass
        with pytest.raises(EngineDeadError, match="ended by SIGKILL"):
            await last(engine, "A", GREEDY, "late")

    asyncio.run(run())
