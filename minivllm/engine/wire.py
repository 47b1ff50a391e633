"""Owns what crosses the sockets between a frontend and a core's process, and how it is written: typed, no pickle.

    frontend ── EngineCoreRequest, AbortRequests, UtilityCall ──────────────────────────────────► core
             ◄─ EngineCoreReadyResponse, EngineCoreOutputs, UtilityOutput, EngineCoreFailure ──

A message is one frame of msgpack: an array that starts with the name of its type. Upstream: vllm/v1/engine/__init__.py,
vllm/v1/serial_utils.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from minivllm.config import VllmConfig
from minivllm.core.messages import EngineCoreOutputs, EngineCoreRequest
from minivllm.sourcemap.registry import on_map


class TraceSettings(msgspec.Struct, frozen=True):
    """What a core's process is to record of itself.

    Attributes:
        path: File for its part of the log.
        level: See `minivllm.trace.events.Header`.
        pinned: Hold requests until the frontend says at which steps they come, and wait for it after every output.
        check: Check the scheduler's invariants after every step (pinned only).
        logits: Tell the likeliest tokens of every sampled position.
    """

    path: str
    level: str = "step"
    pinned: bool = False
    check: bool = False
    logits: bool = False


class CoreStart(msgspec.Struct, frozen=True):
    """What a new process is told on its standard input.

    Attributes:
        vllm_config: Settings; the number of KV blocks may be open.
        folder: Where the sockets are.
        parent_pid: Whose end is its own end.
        trace: What to record; None for nothing.
    """

    vllm_config: VllmConfig
    folder: str
    parent_pid: int
    trace: TraceSettings | None = None


class AbortRequests(msgspec.Struct, frozen=True, array_like=True, tag="abort"):
    """Give these requests up."""

    request_ids: list[str]


class UtilityCall(msgspec.Struct, frozen=True, array_like=True, tag="call"):
    """Call a method of the core between two steps. Its `UtilityOutput` has the same `call_id`."""

    call_id: int
    method: str
    args: list[Any] = []


class EngineCoreReadyResponse(msgspec.Struct, frozen=True, array_like=True, tag="ready"):
    """The model is loaded, requests may come. Upstream: EngineCoreReadyResponse.

    Attributes:
        num_gpu_blocks: KV blocks, the null block included.
        vocab_size: Of the model.
        eos_token_ids: Of the model.
        max_position_embeddings: Of the model.
        async_scheduling: Whether steps are planned ahead.
    """

    num_gpu_blocks: int
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    max_position_embeddings: int
    async_scheduling: bool = False


class UtilityOutput(msgspec.Struct, frozen=True, array_like=True, tag="result"):
    """What a `UtilityCall` brought. Upstream: UtilityOutput.

    Attributes:
        call_id: Which call.
        result: What the method returned.
        failure: Why it could not; None if it could.
    """

    call_id: int
    result: Any = None
    failure: str | None = None


class EngineCoreFailure(msgspec.Struct, frozen=True, array_like=True, tag="failure"):
    """The core could not start, or cannot go on: its process ends after this.

    Attributes:
        kinds: Names of the exception's class and of those above it.
        message: Its text.
    """

    kinds: list[str]
    message: str

    def __str__(self) -> str:
        return f"{self.kinds[0]}: {self.message}"


ToCore = EngineCoreRequest | AbortRequests | UtilityCall
FromCore = EngineCoreReadyResponse | EngineCoreOutputs | UtilityOutput | EngineCoreFailure

_encoder = msgspec.msgpack.Encoder()
_to_core = msgspec.msgpack.Decoder(ToCore)
_from_core = msgspec.msgpack.Decoder(FromCore)
_start = msgspec.msgpack.Decoder(CoreStart)


@on_map("encode a message", vllm="vllm/v1/serial_utils.py::MsgpackEncoder.encode")
def encode(message: ToCore | FromCore | CoreStart) -> bytes:
    """Write a message.

    Raises:
        ValueError: A value that has no place in a message: a number of more than 64 bits, half a character.
    """
    try:
        return _encoder.encode(message)
    except (OverflowError, TypeError) as error:
        raise ValueError(f"{type(message).__name__} cannot be sent to another process: {error}") from None


@on_map("decode a message to the core", vllm="vllm/v1/serial_utils.py::MsgpackDecoder.decode")
def decode_to_core(frame: bytes) -> ToCore:
    """Read what a frontend sent."""
    return _to_core.decode(frame)


def request_id_of(frame: bytes) -> str | None:
    """Whose request a message is that cannot be read as one; None if it is not even the outline of a request."""
    try:
        match msgspec.msgpack.decode(frame):
            case [tag, str(request_id), *_] if tag == EngineCoreRequest.__struct_config__.tag:
                return request_id
    except msgspec.DecodeError:
        pass
    return None


@on_map("decode a message from the core", vllm="vllm/v1/serial_utils.py::MsgpackDecoder.decode", process="frontend")
def decode_from_core(frame: bytes) -> FromCore:
    """Read what a core sent."""
    return _from_core.decode(frame)


def decode_start(data: bytes) -> CoreStart:
    """Read what a new process is told."""
    return _start.decode(data)


def input_address(folder: str | Path) -> str:
    """Where the core listens for requests."""
    return f"ipc://{folder}/input"


def output_address(folder: str | Path) -> str:
    """Where the frontend listens for outputs."""
    return f"ipc://{folder}/output"
