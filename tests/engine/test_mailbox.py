"""What a core sent is taken once and in order, and whoever waits hears of the end."""

from __future__ import annotations

import asyncio
import threading

import pytest

from minivllm.core.messages import EngineCoreOutput, EngineCoreOutputs
from minivllm.engine.exceptions import EngineDeadError
from minivllm.engine.mailbox import Mailbox
from minivllm.engine.wire import UtilityOutput

FIRST, SECOND = (EngineCoreOutputs([EngineCoreOutput(name, [1])]) for name in ("first", "second"))


def put_soon(mailbox: Mailbox, message: EngineCoreOutputs | UtilityOutput | EngineDeadError) -> None:
    threading.Timer(0.02, mailbox.put, [message]).start()


def test_outputs_are_taken_in_their_order() -> None:
    mailbox = Mailbox()
    mailbox.put(FIRST)
    put_soon(mailbox, SECOND)
    assert [mailbox.get(), mailbox.get()] == [FIRST, SECOND]


def test_a_coroutine_is_woken_by_what_comes() -> None:
    async def take() -> list[EngineCoreOutputs]:
        put_soon(mailbox, FIRST)
        first = await asyncio.wait_for(mailbox.get_async(), 10)
        mailbox.put(SECOND)
        return [first, await mailbox.get_async()]

    mailbox = Mailbox()
    assert asyncio.run(take()) == [FIRST, SECOND]


def test_who_gives_up_waiting_takes_nothing_with_him() -> None:
    async def give_up_and_come_back() -> EngineCoreOutputs:
        waiting = asyncio.create_task(mailbox.get_async())
        await asyncio.sleep(0)
        waiting.cancel()
        mailbox.put(FIRST)
        await asyncio.sleep(0)
        return await mailbox.get_async()

    mailbox = Mailbox()
    assert asyncio.run(give_up_and_come_back()) == FIRST


def test_a_loop_that_has_ended_does_not_stop_the_next() -> None:
    async def wait_in_vain() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(mailbox.get_async(), 0.01)

    mailbox = Mailbox()
    asyncio.run(wait_in_vain())
    mailbox.put(FIRST)
    assert asyncio.run(mailbox.get_async()) == FIRST


def test_the_end_comes_after_what_was_sent_before_it_and_stays() -> None:
    mailbox = Mailbox()
    mailbox.put(FIRST)
    mailbox.put(EngineDeadError("gone"))
    assert mailbox.get() == FIRST
    for _ in range(2):
        with pytest.raises(EngineDeadError, match="gone"):
            mailbox.get()
        with pytest.raises(EngineDeadError, match="gone"):
            asyncio.run(mailbox.get_async())


def test_each_call_gets_its_own_answer() -> None:
    mailbox = Mailbox()
    (one, first), (two, second), (_, third) = mailbox.expect(), mailbox.expect(), mailbox.expect()
    mailbox.put(UtilityOutput(two, "two"))
    mailbox.put(UtilityOutput(one, failure="not today"))
    mailbox.put(EngineDeadError("gone"))
    assert second.result(0) == "two"
    with pytest.raises(RuntimeError, match="not today"):
        first.result(0)
    with pytest.raises(EngineDeadError, match="gone"):
        third.result(0)
    with pytest.raises(EngineDeadError, match="gone"):
        mailbox.expect()[1].result(0)


def test_a_call_that_was_given_up_disturbs_neither_its_answer_nor_the_end() -> None:
    mailbox = Mailbox()
    (one, first), (_, second), (_, third) = mailbox.expect(), mailbox.expect(), mailbox.expect()
    first.cancel()
    mailbox.put(UtilityOutput(one, "too late"))
    second.cancel()
    mailbox.put(EngineDeadError("gone"))
    with pytest.raises(EngineDeadError, match="gone"):
        third.result(0)
