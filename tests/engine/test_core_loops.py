"""The queues of a core's process: nothing overtakes, and an abort ends what it was meant for, at once and once."""

from __future__ import annotations

import queue
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest
import zmq

from minivllm.core.messages import EngineCoreOutput, EngineCoreOutputs
from minivllm.core.scheduler_output import ModelRunnerOutput
from minivllm.engine.core_launch import make_socket_folder
from minivllm.engine.core_proc import EngineCoreProc
from minivllm.engine.wire import AbortRequests, ToCore, UtilityCall, UtilityOutput, encode, input_address
from minivllm.executor.sim import SimExecutor, fake_token_rule
from tests.core.building import core_request, make_config
from tests.engine.processes import wait_until


class Meanwhile(SimExecutor):
    """Lets something happen while a step runs."""

    def __init__(self) -> None:
        super().__init__(fake_token_rule(1000))
        self.happens: Callable[[], None] = lambda: None

    def sample_tokens(self) -> Future[ModelRunnerOutput]:
        self.happens()
        return super().sample_tokens()


class Bench:
    """A core with its queues and threads, whose busy loop is turned by hand."""

    def __init__(self, folder: str, **settings: Any) -> None:
        self.executor = Meanwhile()
        self.core = EngineCoreProc(make_config(**settings), self.executor, folder)
        self.socket = zmq.Context.instance().socket(zmq.PUSH)
        self.socket.connect(input_address(folder))
        self.num_sent = 0

    def send(self, *messages: ToCore) -> None:
        """Send, and wait until the input thread has put everything into its queue."""
        before = self.core.input_queue.qsize()
        for message in messages:
            self.socket.send(encode(message))
        wait_until(lambda: self.core.input_queue.qsize() >= before + len(messages), "messages came in")

    def turn(self) -> None:
        """Once round the busy loop."""
        self.core._process_input_queue()
        self.core._process_engine_step()


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Bench]]:
    # What the core puts out stays in its queue, where it can be looked at.
    monkeypatch.setattr(EngineCoreProc, "process_output_sockets", lambda core, socket: None)
    folders = []
    made = []

    def make(**settings: Any) -> Bench:
        folders.append(make_socket_folder())
        made.append(Bench(folders[-1], **settings))
        return made[-1]

    yield make
    for each in made:
        each.socket.close(linger=0)
        each.core._context.term()  # ends the input thread
    for folder in folders:
        shutil.rmtree(folder)


def put_out(core: EngineCoreProc) -> list[Any]:
    found = []
    while True:
        try:
            found.append(core.output_queue.get_nowait())
        except queue.Empty:
            return found


def outputs_of(core: EngineCoreProc, request_id: str) -> list[EngineCoreOutput]:
    messages = [message for message in put_out(core) if isinstance(message, EngineCoreOutputs)]
    return [output for message in messages for output in message.outputs if output.request_id == request_id]


def test_an_abort_during_a_step_keeps_its_output_back(bench: Callable[..., Bench]) -> None:
    b = bench()
    b.send(core_request("gone"), core_request("stays"))
    b.executor.happens = lambda: b.send(AbortRequests(["gone"]))
    b.turn()
    [outputs] = put_out(b.core)
    assert [output.request_id for output in outputs.outputs] == ["stays"]
    assert not b.core.aborts_queue


def test_an_abort_ends_only_the_request_before_it_and_not_the_next_of_its_name(bench: Callable[..., Bench]) -> None:
    b = bench()
    b.send(core_request("again", max_tokens=50))
    b.turn()
    b.send(AbortRequests(["again"]), core_request("again", max_tokens=2))
    put_out(b.core)
    b.turn()
    assert not b.core.aborts_queue, "the abort's twin would end the second request, too"
    b.turn()
    last = outputs_of(b.core, "again")[-1]
    assert str(last.finish_reason) == "length"


def test_so_it_is_when_both_come_during_a_step(bench: Callable[..., Bench]) -> None:
    b = bench()
    b.send(core_request("again", max_tokens=50))
    b.executor.happens = lambda: b.send(AbortRequests(["again"]), core_request("again", max_tokens=2))
    b.turn()
    b.executor.happens = lambda: None
    assert not outputs_of(b.core, "again")
    b.turn()
    b.turn()
    assert str(outputs_of(b.core, "again")[-1].finish_reason) == "length"


@pytest.mark.parametrize("async_scheduling", [False, True])
def test_an_abort_that_comes_right_behind_its_request_ends_it(
    bench: Callable[..., Bench], async_scheduling: bool
) -> None:
    b = bench(async_scheduling=async_scheduling)
    b.send(core_request("other", max_tokens=30))
    b.executor.happens = lambda: b.send(core_request("gone"), AbortRequests(["gone"]))
    b.turn()
    b.executor.happens = lambda: None
    for _ in range(4):
        b.turn()
    assert "gone" not in b.core.scheduler.requests
    assert "other" in b.core.scheduler.requests
    assert not outputs_of(b.core, "gone")


def test_a_refusal_comes_alone_and_harms_nobody(bench: Callable[..., Bench]) -> None:
    b = bench()
    b.send(core_request("good"), core_request("too long", 64), core_request("good"))
    b.socket.send(encode(core_request("empty", [])))
    wait_until(lambda: b.core.output_queue.qsize() == 1, "the input thread refused what is no request")
    b.turn()
    *refusals, step = put_out(b.core)
    assert [[output.request_id for output in refusal.outputs] for refusal in refusals] == [
        ["empty"],
        ["too long"],
        ["good"],
    ]
    assert all(str(refusal.outputs[0].finish_reason) == "error" for refusal in refusals)
    assert "has an empty prompt" in refusals[0].outputs[0].error
    assert "max_model_len 64 leaves no room" in refusals[1].outputs[0].error
    assert "is in use" in refusals[2].outputs[0].error
    assert [(output.request_id, output.error) for output in step.outputs] == [("good", None)]


def test_calls_are_answered_by_their_id_between_two_steps(bench: Callable[..., Bench]) -> None:
    b = bench()
    b.send(UtilityCall(3, "reset_prefix_cache"), core_request("runs"))
    b.turn()
    b.send(
        UtilityCall(4, "reset_prefix_cache"), UtilityCall(5, "shutdown"), UtilityCall(6, "reset_prefix_cache", [1, 2])
    )
    b.turn()
    first, _, second, unknown, wrong, _ = put_out(b.core)
    assert first == UtilityOutput(3, True)
    assert second == UtilityOutput(4, False)
    assert unknown == UtilityOutput(5, failure="the core has no method 'shutdown' to call; it has reset_prefix_cache")
    assert wrong.call_id == 6
    assert wrong.failure.startswith("reset_prefix_cache: TypeError: ")


def test_a_frame_that_is_no_message_ends_the_core(bench: Callable[..., Bench]) -> None:
    b = bench()
    b.socket.send(b"\x00")
    with pytest.raises(ValueError, match="array"):
        b.turn()
