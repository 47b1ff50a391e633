"""A core in a process of its own does what a core in this process does, and costs the same after many requests."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from minivllm import LLM, SamplingParams
from minivllm.core.messages import EngineCoreOutput
from minivllm.core.request import FinishReason
from minivllm.engine.core_client import AsyncMPClient, SyncMPClient
from minivllm.engine.core_launch import make_socket_folder
from minivllm.engine.exceptions import EngineDeadError
from tests.engine.processes import (
    SMALL,
    assert_nothing_left,
    config,
    core_of,
    is_running,
    next_outputs,
    no_hang,
    pid_of,
    request,
    run_all,
    sync_client,
    tokens_of,
)

PROMPTS = ["Once upon a time", "The little dog was very happy because", "It was", "A"]
GREEDY = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)


@pytest.fixture(scope="module")
def shared(tiny_model: Path) -> Iterator[SyncMPClient]:
    """One core for all tests that leave it as they found it."""
    with sync_client(tiny_model, max_num_seqs=4, max_num_batched_tokens=64) as client:
        yield client


@pytest.fixture
def client(shared: SyncMPClient) -> Iterator[SyncMPClient]:
    with no_hang():
        yield shared
        assert run_all(shared) == {}, "a test takes what it asked for"
        assert shared.reset_prefix_cache(), "every block came back"


SEEDED = SamplingParams(temperature=1.0, seed=5, max_tokens=8, n=2)


def completions(llm: LLM) -> list[tuple[list[int], str]]:
    outputs = llm.generate(PROMPTS, GREEDY) + llm.generate("It was", SEEDED)
    return [(completion.token_ids, completion.text) for output in outputs for completion in output.outputs]


@pytest.fixture(scope="module")
def plain(tiny_model: Path) -> list[tuple[list[int], str]]:
    """In this process, in whole chunks, with nothing cached."""
    return completions(LLM(str(tiny_model), **SMALL, enable_prefix_caching=False))


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({}, id="sync"),
        pytest.param({"async_scheduling": True}, id="async"),
        pytest.param({"batch": "rows", "max_num_batched_tokens": 8, "max_num_seqs": 3}, id="rows, small chunks"),
        pytest.param({"block_size": 16, "enable_prefix_caching": False}, id="other blocks, no cache"),
        pytest.param(
            {"num_gpu_blocks_override": 20, "scheduler_reserve_full_isl": False, "max_model_len": 76}, id="preempted"
        ),
    ],
)
def test_tokens_and_texts_are_those_of_a_plain_run_in_this_process(
    tiny_model: Path, plain: list[tuple[list[int], str]], settings: dict[str, Any]
) -> None:
    llm = LLM(str(tiny_model), **{**SMALL, **settings}, multiprocess=True)
    assert isinstance(llm.llm_engine.client, SyncMPClient)
    with no_hang():
        assert completions(llm) == plain
    llm.llm_engine.shutdown()


def test_ctrl_c_ends_a_call_and_not_the_engine(tiny_model: Path) -> None:
    llm = LLM(str(tiny_model), **SMALL, multiprocess=True)
    threading.Timer(0.3, os.kill, [os.getpid(), signal.SIGINT]).start()
    with no_hang():
        with pytest.raises(KeyboardInterrupt):
            llm.generate(PROMPTS, SamplingParams(max_tokens=2000, ignore_eos=True))
        assert llm.llm_engine.reset_prefix_cache(), "nothing of the call is left over there"
        assert len(llm.generate("It was", GREEDY)[0].outputs[0].token_ids) == 24
    llm.llm_engine.shutdown()


def test_each_request_gets_the_same_outputs_one_by_one(client: SyncMPClient, tiny_model: Path) -> None:
    requests = [request(f"r{i}", 3 + 5 * i, max_tokens=1 + i % 5, arrival_time=float(i)) for i in range(9)]
    core = LLM(str(tiny_model), **SMALL, max_num_seqs=4, max_num_batched_tokens=64).llm_engine.engine_core
    for each in requests:
        core.add_request(each)
        client.add_request(each)
    expected: dict[str, list[EngineCoreOutput]] = {}
    while (step := core.step()) is not None:
        for output in step.outputs:
            expected.setdefault(output.request_id, []).append(output)
    assert run_all(client) == expected


def test_requests_run_in_the_order_in_which_they_were_sent(client: SyncMPClient) -> None:
    client.add_request(request("long", 5, max_tokens=60))
    for i in range(12):
        client.add_request(request(f"r{i}", 200, max_tokens=1, arrival_time=float(i)))
    order = [request_id for request_id in run_all(client) if request_id != "long"]
    assert order == [f"r{i}" for i in range(12)]


def test_a_refused_request_is_told_why_and_the_others_go_on(client: SyncMPClient) -> None:
    client.add_request(request("good", max_tokens=6))
    client.add_request(request("bad", 2048))
    client.add_request(request("fine", max_tokens=3))
    outputs = run_all(client)
    [refusal] = outputs["bad"]
    assert refusal.finish_reason is FinishReason.ERROR
    assert refusal.error is not None
    assert "max_model_len 2048 leaves no room" in refusal.error
    assert [len(tokens_of(outputs[name])) for name in ("good", "fine")] == [6, 3]


def test_llm_raises_the_refusal_and_goes_on(tiny_model: Path) -> None:
    llm = LLM(str(tiny_model), **{**SMALL, "num_gpu_blocks_override": 9}, multiprocess=True)
    fits, never = {"prompt_token_ids": [1] * 9}, {"prompt_token_ids": [1] * 99}
    with no_hang():
        with pytest.raises(ValueError, match="request '1' can never run: at its longest it needs 31 KV blocks"):
            llm.generate([fits, never, never], GREEDY)
        assert not llm.llm_engine.has_unfinished_requests()
        assert len(llm.generate([fits], SamplingParams(max_tokens=5, ignore_eos=True))[0].outputs[0].token_ids) == 5
        assert llm.llm_engine.reset_prefix_cache()
    llm.llm_engine.shutdown()


def test_a_value_that_cannot_be_sent_is_refused_here(client: SyncMPClient) -> None:
    with pytest.raises(ValueError, match="cannot be sent"):
        client.add_request(request("huge", [2**64]))
    client.add_request(request("after"))
    assert len(tokens_of(run_all(client)["after"])) == 4


@pytest.mark.parametrize("state", ["right behind it", "waiting", "chunk", "running", "finished", "unknown"])
def test_an_abort_in_any_state_ends_the_request_and_only_it(client: SyncMPClient, state: str) -> None:
    others = ["a", "b", "c", "d"] if state == "waiting" else ["a"]
    for other in others:
        client.add_request(request(other, max_tokens=20))
    if state != "unknown":
        max_tokens = 1 if state == "finished" else 400
        client.add_request(request("gone", 1500 if state == "chunk" else 5, max_tokens=max_tokens))
    before: list[EngineCoreOutput] = []
    if state in ("running", "finished"):
        while not any(output.request_id == "gone" for output in before):
            before += next_outputs(client)
    elif state in ("chunk", "waiting"):
        before += next_outputs(client)
    client.abort_requests(["gone"])
    client.abort_requests(["gone", "never there"])
    after = run_all(client)
    assert all(output.finish_reason is None for output in after.get("gone", []))
    for other in others:
        earlier = [output for output in before if output.request_id == other]
        assert len(tokens_of(earlier + after[other])) == 20


def test_a_call_is_answered_while_requests_run_and_its_failure_is_told(client: SyncMPClient) -> None:
    client.add_request(request("runs", max_tokens=300))
    client.get_output()
    assert client.reset_prefix_cache() is False
    with pytest.raises(RuntimeError, match="the core has no method 'step' to call"):
        client._call("step").result()
    client.abort_requests(["runs"])
    assert client.reset_prefix_cache() is True


def test_without_a_request_there_is_nothing_to_wait_for(client: SyncMPClient) -> None:
    assert client.get_output() is None


def test_many_requests_leave_no_thread_file_or_process(client: SyncMPClient) -> None:
    def census() -> tuple[int, ...]:
        core = f"/proc/{pid_of(client)}"
        children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
        return (
            threading.active_count(),
            len(children),
            len(os.listdir("/proc/self/fd")),
            len(os.listdir(f"{core}/task")),
            len(os.listdir(f"{core}/fd")),
        )

    client.add_request(request("first"))
    run_all(client)
    before = census()
    for i in range(50):
        client.add_request(request(f"r{i}", max_tokens=2))
    assert len(run_all(client)) == 50
    assert census() == before


def test_only_this_user_can_reach_the_sockets(shared: SyncMPClient) -> None:
    folder = Path(core_of(shared).folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert sorted(file.name for file in folder.iterdir()) == ["input", "output"]


def test_two_engines_stand_side_by_side(client: SyncMPClient, tiny_model: Path) -> None:
    with sync_client(tiny_model) as other:
        assert core_of(other).folder != core_of(client).folder
        for each in (client, other):
            each.add_request(request("same id", max_tokens=5))
        assert tokens_of(run_all(client)["same id"]) == tokens_of(run_all(other)["same id"])
        other.shutdown()
        client.add_request(request("after"))
        assert len(tokens_of(run_all(client)["after"])) == 4


def test_shutdown_twice_is_shutdown_and_nobody_waits_for_ever(tiny_model: Path) -> None:
    with sync_client(tiny_model) as client:
        client.add_request(request("runs", max_tokens=2000))
        threading.Timer(0.1, client.shutdown).start()
        with pytest.raises(EngineDeadError, match="the engine is shut down"):
            run_all(client)
        client.shutdown()
        with pytest.raises(EngineDeadError, match="the engine is shut down"):
            client.add_request(request("late"))
        client.abort_requests(["runs"])
        assert str(client.dead_error) == "the engine is shut down"


def test_a_forgotten_client_takes_its_core_along(tiny_model: Path) -> None:
    client = SyncMPClient(config(tiny_model))
    pid, folder = pid_of(client), core_of(client).folder
    del client
    assert_nothing_left(pid, folder)


def test_the_fork_of_a_frontend_does_not_end_its_core(shared: SyncMPClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getpid", lambda: -1)
    core_of(shared).close()
    monkeypatch.undo()
    assert is_running(pid_of(shared))
    assert shared.dead_error is None


def test_on_an_event_loop_it_is_the_same(tiny_model: Path, client: SyncMPClient) -> None:
    async def run_async() -> list[int]:
        await asyncio.gather(*(remote.add_request_async(request(f"r{i}", max_tokens=6)) for i in range(3)))
        await remote.add_request_async(request("gone", max_tokens=1000))
        tokens, num_finished = [], 0
        while num_finished < 3:
            for output in (await remote.get_output_async()).outputs:
                tokens += output.new_token_ids if output.request_id == "r1" else []
                num_finished += output.finish_reason is not None
        assert not await remote.reset_prefix_cache_async()
        await remote.abort_requests_async(["gone"])
        assert await remote.reset_prefix_cache_async()
        return tokens

    remote = AsyncMPClient(config(tiny_model))
    pid, folder = pid_of(remote), core_of(remote).folder
    first = asyncio.run(run_async())
    while remote._mailbox._outputs:  # what the aborted request brought before
        asyncio.run(remote.get_output_async())
    assert asyncio.run(run_async()) == first, "a second event loop takes over from the first"
    remote.shutdown()
    assert_nothing_left(pid, folder)
    client.add_request(request("r1", max_tokens=6))
    assert tokens_of(run_all(client)["r1"]) == first


FRONTEND_WITHOUT_TORCH = """
import sys
from minivllm import LLM, SamplingParams
from minivllm.engine.async_llm import AsyncLLM

llm = LLM(sys.argv[1], max_model_len=256, multiprocess=True)
[output] = llm.generate("Once upon a time", SamplingParams(max_tokens=4, ignore_eos=True))
print(len(output.outputs[0].token_ids), [name for name in ("torch", "numpy") if name in sys.modules])
"""


def test_a_frontend_imports_no_torch(tiny_model: Path) -> None:
    # From a pipe and without a guard: the core's process must not run this again.
    command = [sys.executable, "-", str(tiny_model)]
    done = subprocess.run(command, input=FRONTEND_WITHOUT_TORCH, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("4 []\n", "")


@pytest.mark.parametrize(
    ("parent", "expected"),
    [("/tmp", "/tmp"), ("/tmp/" + "x" * 90, "/tmp")],
    ids=["short", "too long for a socket"],
)
def test_the_sockets_have_a_short_private_path(monkeypatch: pytest.MonkeyPatch, parent: str, expected: str) -> None:
    monkeypatch.setattr(tempfile, "tempdir", parent)
    folder = Path(make_socket_folder())
    try:
        assert folder.parent == Path(expected)
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    finally:
        folder.rmdir()


def test_without_a_place_for_sockets_the_remedy_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/tmp/not there")
    with pytest.raises(ValueError, match=r"/tmp/not there: no folder for .* sockets can be made .*set TMPDIR"):
        make_socket_folder()
