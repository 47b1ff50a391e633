"""Whoever dies, and whenever: the other side hears of it soon, and no process and no socket is left."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from minivllm import LLM, SamplingParams
from minivllm.config import ModelConfig, VllmConfig
from minivllm.engine import core_launch
from minivllm.engine.core_client import AsyncMPClient, SyncMPClient
from minivllm.engine.exceptions import EngineDeadError
from minivllm.engine.wire import EngineCoreFailure
from minivllm.models.errors import ModelError, ModelNotHereError
from tests.engine.processes import (
    SMALL,
    assert_nothing_left,
    config,
    core_of,
    is_running,
    no_hang,
    pid_of,
    request,
    run_all,
    sync_client,
    wait_until,
)

Spawned = list[tuple[int, str]]
FOREVER = 2000


@pytest.fixture
def spawned(monkeypatch: pytest.MonkeyPatch) -> Spawned:
    """Process ids and folders of all cores that a test starts."""
    cores: Spawned = []
    spawn = core_launch.spawn

    def remembering(start: Any) -> subprocess.Popen[bytes]:
        process = spawn(start)
        cores.append((process.pid, start.folder))
        return process

    monkeypatch.setattr(core_launch, "spawn", remembering)
    return cores


# ---- a core that cannot start ---------------------------------------------------------------------------------------


def truncate(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])


def forget_a_key(folder: Path) -> None:
    file = folder / "config.json"
    file.write_text(file.read_text().replace('"hidden_size": 32', '"hidden_size": 34'))


@pytest.mark.parametrize(
    ("damage", "settings"),
    [
        pytest.param(truncate, {}, id="truncated weights"),
        pytest.param(forget_a_key, {}, id="configuration of another model"),
        pytest.param(None, {"num_gpu_blocks_override": None, "kv_cache_memory_bytes": 5000}, id="too little memory"),
        pytest.param(None, {"device": "cuda"}, id="no GPU"),
    ],
)
def test_what_is_wrong_is_told_as_by_a_core_in_this_process(
    tiny_model: Path,
    tmp_path: Path,
    spawned: Spawned,
    damage: Callable[[Path], None] | None,
    settings: dict[str, Any],
    capfd: pytest.CaptureFixture[str],
) -> None:
    if settings.get("device") == "cuda" and torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    model = tmp_path / "model"
    model.mkdir()
    for file in tiny_model.iterdir():
        (model / file.name).write_bytes(file.read_bytes())
    if damage is not None:
        damage(model)
    settings = {"model": str(model), **SMALL, **settings}
    with pytest.raises(ValueError) as here:  # noqa: PT011
        LLM(**settings)
    capfd.readouterr()
    with no_hang(), pytest.raises(type(here.value)) as there:
        LLM(**settings, multiprocess=True)
    assert str(there.value) == str(here.value)
    assert capfd.readouterr().err == "", "one line is enough, and the caller has it"
    [core] = spawned
    assert_nothing_left(*core)


def test_an_unknown_model_starts_no_process(spawned: Spawned) -> None:
    with pytest.raises(ModelError, match="no model 'gpt-17'"):
        LLM("gpt-17", multiprocess=True)
    assert not spawned


def test_a_model_that_goes_away_meanwhile_is_an_error_of_the_model(tmp_path: Path, spawned: Spawned) -> None:
    model = tmp_path / "gone"
    with no_hang(), pytest.raises(ModelError, match=re.escape(f"no model '{model}'")):
        SyncMPClient(VllmConfig(model_config=ModelConfig(model=str(model))))
    assert_nothing_left(*spawned[0])


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ModelNotHereError("pull it"), "ModelNotHereError('pull it')"),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "why"), "ValueError(\"'utf-8' codec can't decode byte 0xff"),
        (PermissionError(13, "Permission denied", "model"), "OSError(\"[Errno 13] Permission denied: 'model'\")"),
        (KeyError("x"), "EngineDeadError(\"the engine core could not start: KeyError: 'x'\")"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_loading_raises_keeps_its_kind_if_a_caller_can_know_it(error: Exception, told: str) -> None:
    kinds = [kind.__name__ for kind in type(error).__mro__]
    assert repr(core_launch.start_error(EngineCoreFailure(kinds, str(error)))).startswith(told)


def test_a_core_that_does_not_get_ready_is_ended(
    tiny_model: Path, spawned: Spawned, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core_launch, "READY_TIMEOUT_S", 0.01)
    with no_hang(), pytest.raises(EngineDeadError, match=r"was not ready after 0\.01 s, and was ended"):
        SyncMPClient(config(tiny_model))
    assert_nothing_left(*spawned[0])


def test_ctrl_c_while_a_core_starts_leaves_nothing(tiny_model: Path, spawned: Spawned) -> None:
    def interrupt() -> None:
        wait_until(lambda: bool(spawned), "there is a process")
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    with no_hang(), pytest.raises(KeyboardInterrupt):
        SyncMPClient(config(tiny_model))
    assert_nothing_left(*spawned[0])


# ---- a core that dies -----------------------------------------------------------------------------------------------


def in_the_middle_of_a_step(client: SyncMPClient) -> None:
    client.add_request(request("long", 2000, max_tokens=40))
    time.sleep(0.02)


def in_the_middle_of_a_stream(client: SyncMPClient) -> None:
    client.add_request(request("long", max_tokens=FOREVER))
    for _ in range(5):
        client.get_output()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV], ids=lambda number: number.name)
def test_a_core_that_is_killed_while_it_starts(tiny_model: Path, spawned: Spawned, number: signal.Signals) -> None:
    def kill() -> None:
        wait_until(lambda: bool(spawned), "there is a process")
        os.kill(spawned[0][0], number)

    killer = threading.Thread(target=kill)
    killer.start()
    with no_hang(), pytest.raises(EngineDeadError, match=f"process was ended by {number.name}"):
        SyncMPClient(config(tiny_model))
    killer.join()
    assert_nothing_left(*spawned[0])


@pytest.mark.parametrize(
    "state",
    [
        pytest.param(lambda client: None, id="idle"),
        pytest.param(in_the_middle_of_a_step, id="mid-step"),
        pytest.param(in_the_middle_of_a_stream, id="mid-stream"),
    ],
)
def test_whoever_waits_for_a_core_that_is_killed_hears_of_it(
    tiny_model: Path, state: Callable[[SyncMPClient], None], record_property: Callable[[str, object], None]
) -> None:
    with sync_client(tiny_model) as client:
        state(client)
        os.kill(pid_of(client), signal.SIGKILL)
        took = wait_until(lambda: client.dead_error is not None, "the end of the core is known")
        record_property("seconds until it was known", took)
        assert_nothing_left(pid_of(client), core_of(client).folder)
        with pytest.raises(EngineDeadError, match="ended by SIGKILL"):
            client.add_request(request("late"))
        if client._request_ids:
            with pytest.raises(EngineDeadError, match="ended by SIGKILL"):
                run_all(client)
        with pytest.raises(EngineDeadError, match="ended by SIGKILL"):
            client.reset_prefix_cache()
        client.abort_requests(["long"])


def test_a_caller_that_is_blocked_is_woken(tiny_model: Path) -> None:
    with sync_client(tiny_model, max_num_seqs=1) as client:
        os.kill(pid_of(client), signal.SIGSTOP)  # nothing will ever come
        client.add_request(request("waits"))
        threading.Timer(0.1, os.kill, [pid_of(client), signal.SIGKILL]).start()
        with pytest.raises(EngineDeadError, match="ended by SIGKILL"):
            client.get_output()


def test_callers_on_an_event_loop_are_woken(tiny_model: Path) -> None:
    async def outputs_for_ever() -> None:
        # What the core had already sent still arrives after it is stopped, at no known time.
        while True:
            await client.get_output_async()

    async def wait_and_kill() -> None:
        await client.add_request_async(request("long", max_tokens=FOREVER))
        for _ in range(3):
            await client.get_output_async()
        os.kill(pid_of(client), signal.SIGSTOP)
        waiting = [asyncio.create_task(call) for call in (outputs_for_ever(), client.reset_prefix_cache_async())]
        await asyncio.sleep(0.1)
        os.kill(pid_of(client), signal.SIGKILL)
        for each in await asyncio.gather(*waiting, return_exceptions=True):
            assert isinstance(each, EngineDeadError)
            assert "ended by SIGKILL" in str(each)

    client = AsyncMPClient(config(tiny_model))
    with no_hang():
        asyncio.run(wait_and_kill())
    assert_nothing_left(pid_of(client), core_of(client).folder)
    client.shutdown()


def test_a_core_that_fails_says_why(tiny_model: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with sync_client(tiny_model) as client:
        client.add_request(request("beyond the vocabulary", [10**6]))
        with pytest.raises(EngineDeadError, match="the engine core failed: IndexError: index out of range"):
            run_all(client)
        assert_nothing_left(pid_of(client), core_of(client).folder)
    assert "Traceback" in capfd.readouterr().err


def test_ctrl_c_is_the_frontends_alone(tiny_model: Path) -> None:
    with sync_client(tiny_model) as client:
        client.add_request(request("runs", max_tokens=50))
        os.kill(pid_of(client), signal.SIGINT)
        assert len(run_all(client)["runs"]) == 50


def test_llm_after_the_death_of_its_core(tiny_model: Path) -> None:
    llm = LLM(str(tiny_model), **SMALL, multiprocess=True)
    client = llm.llm_engine.client
    assert isinstance(client, SyncMPClient)
    threading.Timer(0.2, os.kill, [pid_of(client), signal.SIGKILL]).start()
    for _ in range(2):
        with no_hang(), pytest.raises(EngineDeadError, match="ended by SIGKILL"):
            llm.generate("It was", SamplingParams(max_tokens=FOREVER, ignore_eos=True))
        assert not llm.llm_engine.has_unfinished_requests()


# ---- a frontend that dies -------------------------------------------------------------------------------------------

FRONTEND = """
import sys, time
from pathlib import Path
from minivllm.config import ModelConfig, VllmConfig
from minivllm.engine import core_launch
from tests.engine.processes import config, core_of, request
from minivllm.engine.core_client import SyncMPClient

spawn = core_launch.spawn

def telling(start):
    process = spawn(start)
    print(process.pid, start.folder, flush=True)
    return process

core_launch.spawn = telling
client = SyncMPClient(config(Path(sys.argv[1])))
print("idle", flush=True)
client.add_request(request("long", max_tokens=2000))
client.get_output()
print("busy", flush=True)
if sys.argv[2] == "leaves":
    sys.exit(3)
while True:
    client.get_output()
"""


@pytest.mark.parametrize("state", ["starts", "idle", "busy", "leaves"])
def test_a_core_ends_with_its_frontend(tiny_model: Path, state: str) -> None:
    # As it comes from a pipe, without a guard: the core's process does not run its frontend's script.
    command = [sys.executable, "-", str(tiny_model), state]
    frontend = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=Path.cwd())
    assert frontend.stdin is not None
    assert frontend.stdout is not None
    with no_hang():
        frontend.stdin.write(FRONTEND)
        frontend.stdin.close()
        pid, folder = frontend.stdout.readline().split()
        while state in ("idle", "busy") and frontend.stdout.readline().strip() != state:
            pass
        if state != "leaves":
            assert is_running(int(pid))
            frontend.kill()
        assert frontend.wait() == (3 if state == "leaves" else -signal.SIGKILL)
    wait_until(lambda: not is_running(int(pid)) and not os.path.exists(folder), "the core is gone, too")
    frontend.stdout.close()


def test_ctrl_c_does_not_stop_what_ends_a_core() -> None:
    before = signal.getsignal(signal.SIGINT)
    with core_launch._undisturbed():
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
