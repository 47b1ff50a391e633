"""Many callers, one engine: each gets its own text at its own pace, and whoever leaves takes everything along."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from minivllm.core.admission import RequestRefusedError
from minivllm.core.request import RequestStatus
from minivllm.engine.async_llm import AsyncLLM
from minivllm.engine.exceptions import EngineDeadError
from minivllm.outputs import RequestOutput
from minivllm.sampling_params import RequestOutputKind, SamplingParams
from tests.engine.async_core import assert_nothing_is_left, make_async_llm

SMALL = {"max_model_len": 256, "num_gpu_blocks_override": 129, "block_size": 4}
GREEDY = {"temperature": 0.0, "max_tokens": 12, "ignore_eos": True}
DELTA, CUMULATIVE, FINAL = RequestOutputKind.DELTA, RequestOutputKind.CUMULATIVE, RequestOutputKind.FINAL_ONLY
Step = Callable[[AsyncLLM], Awaitable[None]]


@asynccontextmanager
async def engine_of(model: Path, **settings: Any) -> AsyncIterator[AsyncLLM]:
    engine = make_async_llm(model, **{**SMALL, **settings})
    yield engine
    await assert_nothing_is_left(engine)
    engine.shutdown()


async def outputs_of(
    engine: AsyncLLM, request_id: str, prompt: Any = "Once upon a time", pause: int = 0, **params: Any
) -> list[RequestOutput]:
    """All outputs of a request whose caller looks away for so many turns after each."""
    outputs = []
    async for output in engine.generate(prompt, SamplingParams(**{**GREEDY, **params}), request_id):
        outputs.append(output)
        for _ in range(pause):
            await asyncio.sleep(0)
    return outputs


def joined(outputs: list[RequestOutput], index: int = 0) -> tuple[str, list[int], str | None]:
    mine = [c for output in outputs for c in output.outputs if c.index == index]
    return "".join(c.text for c in mine), [i for c in mine for i in c.token_ids], mine[-1].finish_reason


@pytest.mark.parametrize("settings", [{}, {"async_scheduling": True}, {"batch": "rows"}, {"max_num_seqs": 2}], ids=str)
def test_slow_and_fast_callers_get_the_same_text(tiny_model: Path, settings: dict[str, Any]) -> None:
    async def main() -> None:
        async with engine_of(tiny_model, **settings) as engine:
            [final] = await outputs_of(engine, "alone", output_kind=FINAL)
            expected = (final.outputs[0].text, final.outputs[0].token_ids, "length")
            fast, slow, whole, slow_whole = await asyncio.gather(
                outputs_of(engine, "fast", output_kind=DELTA),
                outputs_of(engine, "slow", output_kind=DELTA, pause=40),
                outputs_of(engine, "whole"),
                outputs_of(engine, "slow whole", pause=40),
            )
            assert joined(fast) == joined(slow) == expected
            assert joined(whole[-1:]) == joined(slow_whole[-1:]) == expected
            assert len(slow) < len(fast) == 12, "what was not fetched in time is merged"
            assert len(slow_whole) < len(whole) == 12
            assert [output.finished for output in slow] == [False] * (len(slow) - 1) + [True]
            assert {output.request_id for output in slow} == {"slow"}

    asyncio.run(main())


@pytest.mark.parametrize("pause", [0, 40])
@pytest.mark.parametrize("kind", [DELTA, CUMULATIVE, FINAL])
def test_completions_of_one_prompt_never_overwrite_each_other(
    tiny_model: Path, kind: RequestOutputKind, pause: int
) -> None:
    async def main() -> None:
        params = {"temperature": 1.0, "seed": 5, "max_tokens": 9}
        async with engine_of(tiny_model) as engine:
            alone = [(await outputs_of(engine, "one", **{**params, "seed": 5 + i}))[-1].outputs[0] for i in range(3)]
            outputs = await outputs_of(engine, "three", pause=pause, n=3, output_kind=kind, **params)
            assert [output.finished for output in outputs] == [False] * (len(outputs) - 1) + [True]
            for index in range(3):
                expected = (alone[index].text, alone[index].token_ids, "length")
                if kind is DELTA:
                    assert joined(outputs, index) == expected
                else:
                    last = [c for output in outputs for c in output.outputs if c.index == index][-1]
                    assert (last.text, last.token_ids, last.finish_reason) == expected
            if kind is FINAL:
                assert [completion.index for completion in outputs[0].outputs] == [0, 1, 2]

    asyncio.run(main())


def test_a_stop_string_ends_the_request_in_the_core_too(tiny_model: Path) -> None:
    async def main() -> None:
        async with engine_of(tiny_model) as engine:
            [full] = await outputs_of(engine, "full", max_tokens=30, output_kind=FINAL)
            stop = full.outputs[0].text[8:11]
            text = full.outputs[0].text[: full.outputs[0].text.index(stop)]
            outputs = await outputs_of(engine, "r", max_tokens=200, stop=stop, output_kind=DELTA)
            assert joined(outputs)[0] == text
            assert outputs[-1].outputs[0].stop_reason == stop
            core = engine.client.core  # type: ignore[attr-defined]
            assert not core.scheduler.requests, "200 tokens are not computed"

    asyncio.run(main())


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(2000):
        if condition():
            return
        await asyncio.sleep(0)
    pytest.fail("it never came to that")


def status_of(engine: AsyncLLM, external: str) -> RequestStatus | None:
    core = engine.client.core  # type: ignore[attr-defined]
    ids = engine.output_processor.external_req_ids.get(external, [])
    return core.scheduler.requests[ids[0]].status if ids and ids[0] in core.scheduler.requests else None


@pytest.mark.parametrize("way", ["abort", "cancel", "close"])
@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("state", ["waiting", "running", "mid-step", "preempted", "finished"])
def test_an_abort_leaves_nothing_from_any_state(tiny_model: Path, state: str, way: str, n: int, is_async: bool) -> None:
    settings: dict[str, Any] = {"async_scheduling": is_async}
    if state == "waiting":
        settings["max_num_seqs"] = 1
    if state == "preempted":
        settings |= {"num_gpu_blocks_override": 24, "scheduler_reserve_full_isl": False}
    params = SamplingParams(**{**GREEDY, "temperature": 1.0, "seed": 1, "n": n, "max_tokens": 60})

    async def main() -> None:
        async with engine_of(tiny_model, **settings) as engine:
            client: Any = engine.client
            others = [asyncio.create_task(outputs_of(engine, f"other {i}", max_tokens=50)) for i in range(2)]
            await until(lambda: status_of(engine, "other 0") is RequestStatus.RUNNING)
            seen: list[RequestOutput] = []
            generator = engine.generate("It was", params, "victim")

            async def consume() -> None:
                async for output in generator:
                    seen.append(output)

            task = asyncio.create_task(consume())
            wanted = {"waiting": RequestStatus.WAITING, "preempted": RequestStatus.PREEMPTED}.get(state)
            if state == "finished":
                await task
            elif wanted is not None:
                await until(lambda: status_of(engine, "victim") is wanted)
            else:
                await until(lambda: bool(seen))
            if state == "mid-step":
                happened = asyncio.Event()

                def abort_now() -> None:
                    if not happened.is_set():
                        happened.set()
                        ended = engine.output_processor.abort_requests(["victim"])
                        client.core.aborts_queue.append(ended)

                client.mid_step = abort_now
                await happened.wait()
            elif way == "abort":
                await engine.abort("victim")
                await engine.abort("victim")
            elif way == "cancel":
                task.cancel()
            if way == "close" and state not in ("finished", "mid-step"):
                task.cancel()  # a generator that is being iterated cannot be closed from outside
            count = len(seen)
            [ended] = await asyncio.gather(task, return_exceptions=True)
            await generator.aclose()
            if state == "finished":
                assert seen[-1].finished
            elif way == "abort" or state == "mid-step":
                assert ended is None
                assert seen[-1].finished
                assert len(seen) <= count + 1, "one last output, and none after it"
                assert seen[-1].outputs[-1].finish_reason == "abort"
            else:
                assert isinstance(ended, asyncio.CancelledError)
            assert "victim" not in engine.output_processor.external_req_ids
            assert all(task[-1].finished for task in await asyncio.gather(*others)), "the others go on"

    asyncio.run(main())


def test_a_loop_that_is_left_in_the_middle_aborts_its_request(tiny_model: Path) -> None:
    async def main() -> None:
        async with engine_of(tiny_model) as engine:
            async for _ in engine.generate("It was", SamplingParams(**{**GREEDY, "max_tokens": 200}), "r"):
                break
            await until(lambda: not engine.output_processor.request_states)

    asyncio.run(main())


def test_equal_ids_of_callers_do_not_collide_and_are_aborted_together(tiny_model: Path) -> None:
    async def main() -> None:
        async with engine_of(tiny_model) as engine:
            first, second = await asyncio.gather(*(outputs_of(engine, "same") for _ in range(2)))
            assert joined(first[-1:]) == joined(second[-1:])
            tasks = [asyncio.create_task(outputs_of(engine, "same", max_tokens=200)) for _ in range(2)]
            await until(lambda: len(engine.output_processor.external_req_ids["same"]) == 2)
            await engine.abort("same")
            for outputs in await asyncio.gather(*tasks):
                assert outputs[-1].outputs[0].finish_reason == "abort"

    asyncio.run(main())


def test_a_request_that_cannot_be_served_harms_nobody(tiny_model: Path) -> None:
    async def main() -> None:
        async with engine_of(tiny_model, num_gpu_blocks_override=9) as engine:
            bad: list[tuple[Any, type[Exception], str]] = [
                ("", ValueError, "the prompt is empty"),
                ({"text": "a"}, ValueError, "a prompt has no 'text'"),
                (7, ValueError, "a prompt is text or"),
                ({"prompt_token_ids": [7] * 200}, RequestRefusedError, "request 'r' can never run"),
            ]
            good = asyncio.create_task(outputs_of(engine, "good"))
            for prompt, kind, message in bad:
                with pytest.raises(kind, match=message):
                    await outputs_of(engine, "r", prompt)
            assert joined((await good)[-1:])[2] == "length"

    asyncio.run(main())


def test_an_error_reaches_everyone_who_waits_and_everyone_who_comes(tiny_model: Path) -> None:
    async def main() -> None:
        async with engine_of(tiny_model) as engine:
            client: Any = engine.client
            tasks = [asyncio.create_task(outputs_of(engine, str(i), max_tokens=200)) for i in range(3)]
            await until(lambda: len(engine.output_processor.request_states) == 3)

            def die() -> None:
                raise EngineDeadError("the core's process was killed")

            client.before_step = die
            for ended in await asyncio.gather(*tasks, return_exceptions=True):
                assert isinstance(ended, EngineDeadError)
            with pytest.raises(EngineDeadError, match="was killed"):
                await outputs_of(engine, "late")
            client.core.abort_requests(list(client.core.scheduler.requests))  # its process is gone: so are they

    asyncio.run(main())


def test_shutdown_ends_those_who_wait(tiny_model: Path) -> None:
    async def main() -> None:
        engine = make_async_llm(tiny_model, **SMALL)
        task = asyncio.create_task(outputs_of(engine, "r", max_tokens=200))
        await until(lambda: bool(engine.output_processor.request_states))
        engine.shutdown()
        engine.shutdown()
        with pytest.raises(EngineDeadError, match="shut down"):
            await task

    asyncio.run(main())
