"""Owns what the tests of the core's process share: settings, requests, and a look at what is left of a process."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from minivllm.config import VllmConfig
from minivllm.core.messages import EngineCoreOutput, EngineCoreRequest
from minivllm.engine.arg_utils import EngineArgs
from minivllm.engine.core_client import MPClient, SyncMPClient
from minivllm.engine.core_launch import CoreEngineProcManager
from minivllm.sampling_params import SamplingParams

SMALL = {"max_model_len": 2048, "num_gpu_blocks_override": 600, "block_size": 4}
# Far more than anything here needs: what takes so long hangs.
PATIENCE_S = 60


def config(model: Path, **settings: Any) -> VllmConfig:
    return EngineArgs.from_kwargs(model=str(model), **{**SMALL, **settings}).resolve_engine_config()


def request(request_id: str, prompt: list[int] | int = 5, max_tokens: int = 4, **fields: Any) -> EngineCoreRequest:
    """`prompt` is tokens, or their number; the request runs to max_tokens."""
    tokens = [sum(request_id.encode()) % 500 + i % 7 for i in range(prompt)] if isinstance(prompt, int) else prompt
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
    return EngineCoreRequest(request_id, tokens, params, **fields)


def run_all(client: Any) -> dict[str, list[EngineCoreOutput]]:
    """Everything that comes until nobody waits any more, by request."""
    outputs: dict[str, list[EngineCoreOutput]] = {}
    while (step := client.get_output()) is not None:
        for output in step.outputs:
            outputs.setdefault(output.request_id, []).append(output)
    return outputs


def next_outputs(client: SyncMPClient) -> list[EngineCoreOutput]:
    step = client.get_output()
    assert step is not None, "a request is on its way"
    return step.outputs


def tokens_of(outputs: list[EngineCoreOutput]) -> list[int]:
    return [token for output in outputs for token in output.new_token_ids]


def core_of(client: MPClient) -> CoreEngineProcManager:
    return client._core


def pid_of(client: MPClient) -> int:
    process = core_of(client).process
    assert process is not None
    return process.pid


def is_running(pid: int) -> bool:
    """Whether a process runs; a zombie, whose parent has not looked yet, does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def wait_until(condition: Callable[[], bool], what: str) -> float:
    """Wait for something to become true. Returns how long it took."""
    start = time.monotonic()
    while not condition():
        assert time.monotonic() - start < PATIENCE_S, f"{PATIENCE_S} s and still not: {what}"
        time.sleep(0.01)
    return time.monotonic() - start


@contextmanager
def no_hang(seconds: int = PATIENCE_S) -> Iterator[None]:
    """Whatever blocks in this block fails."""

    def on_alarm(signum: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"nothing happened for {seconds} s")

    before = signal.signal(signal.SIGALRM, on_alarm)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def sync_client(model: Path, **settings: Any) -> Iterator[SyncMPClient]:
    """A client whose core has left nothing behind at the end of the block."""
    client = SyncMPClient(config(model, **settings))
    pid, folder = pid_of(client), core_of(client).folder
    try:
        with no_hang():
            yield client
    finally:
        client.shutdown()
    assert_nothing_left(pid, folder)


def assert_nothing_left(pid: int, folder: str) -> None:
    assert not is_running(pid), "the core's process is still there"
    assert not os.path.exists(folder), "the sockets' folder is still there"
