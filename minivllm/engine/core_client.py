"""Owns how a frontend talks to an engine core, wherever that core runs: one interface, as calls or as messages.

Upstream: vllm/v1/engine/core_client.py.
"""

from __future__ import annotations

import asyncio
import weakref
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Protocol

import msgspec

from minivllm.config import VllmConfig
from minivllm.core.messages import EngineCoreOutputs, EngineCoreRequest
from minivllm.engine.core import EngineCore
from minivllm.engine.core_launch import CoreEngineProcManager
from minivllm.engine.exceptions import EngineDeadError
from minivllm.engine.mailbox import Mailbox
from minivllm.engine.wire import AbortRequests, TraceSettings, UtilityCall
from minivllm.sourcemap.registry import on_map


class EngineCoreClient(Protocol):
    """What a frontend that drives the engine itself needs of a core."""

    def add_request(self, request: EngineCoreRequest) -> None:
        """Hand over a request.

        A core in this process refuses a request at once, with a ValueError. One in another process answers with an
        `EngineCoreOutput` whose `error` says why, in a message of its own.
        """
        ...

    def abort_requests(self, request_ids: list[str]) -> None:
        """Give up requests; ids that are unknown or done are ignored."""
        ...

    def get_output(self) -> EngineCoreOutputs | None:
        """What came next. In this process: runs one step, None if it brought nothing. Else: waits for a message."""
        ...

    def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        """Forget all cached prefixes; False if requests still hold blocks. Those that run can be preempted for it."""
        ...

    def shutdown(self) -> None:
        """Release the core. Idempotent."""
        ...


class InprocClient:
    """The core in this very process: plain calls, so that a debugger sees one stack.

    Attributes:
        engine_core: The core.
    """

    def __init__(self, engine_core: EngineCore) -> None:
        self.engine_core = engine_core

    def add_request(self, request: EngineCoreRequest) -> None:
        self.engine_core.add_request(request)

    def abort_requests(self, request_ids: list[str]) -> None:
        self.engine_core.abort_requests(request_ids)

    def get_output(self) -> EngineCoreOutputs | None:
        return self.engine_core.step()

    def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        return self.engine_core.reset_prefix_cache(reset_running_requests)

    def shutdown(self) -> None:
        self.engine_core.shutdown()


class MPClient:
    """The core in a process of its own. Upstream: MPClient.

    Args:
        vllm_config: Settings; the core's process fills in the number of KV blocks.
        trace: What the core's process is to record of itself; None for nothing.

    Attributes:
        vllm_config: The settings, the number of KV blocks included.
        vocab_size: Of the model.
        eos_token_ids: Of the model.

    Raises:
        ModelError: There is no such model, or its files are damaged or not supported.
        ValueError: Settings that contradict the model or this machine.
        EngineDeadError: The process ended, or did not get ready in time.
    """

    def __init__(self, vllm_config: VllmConfig, trace: TraceSettings | None = None) -> None:
        self._mailbox = Mailbox()
        self._core = CoreEngineProcManager(vllm_config, self._mailbox.put, trace)
        # Also when this object is forgotten, and when the interpreter ends.
        self._finalizer = weakref.finalize(self, self._core.close)
        ready = self._core.ready
        cache_config = msgspec.structs.replace(vllm_config.cache_config, num_gpu_blocks=ready.num_gpu_blocks)
        limits = msgspec.structs.replace(vllm_config.scheduler_config, async_scheduling=ready.async_scheduling)
        self.vllm_config = msgspec.structs.replace(vllm_config, cache_config=cache_config, scheduler_config=limits)
        self.vocab_size = ready.vocab_size
        self.eos_token_ids = ready.eos_token_ids

    @property
    def dead_error(self) -> EngineDeadError | None:
        """Why the core is gone; None while it lives."""
        return self._mailbox.dead_error

    def shutdown(self) -> None:
        """End the core's process. Idempotent."""
        self._finalizer()

    def _abort(self, request_ids: list[str]) -> None:
        if request_ids:
            with suppress(EngineDeadError):  # a core that is gone runs nobody's request
                self._core.send(AbortRequests(request_ids))

    def _call(self, method: str, *args: object) -> Future[Any]:
        call_id, future = self._mailbox.expect()
        self._core.send(UtilityCall(call_id, method, list(args)))
        return future


class SyncMPClient(MPClient):
    """Implements `EngineCoreClient` for a core in its own process; for one thread."""

    def __init__(self, vllm_config: VllmConfig, trace: TraceSettings | None = None) -> None:
        super().__init__(vllm_config, trace)
        # Who still waits for output: without anybody, waiting for a message would never end.
        self._request_ids: set[str] = set()

    @on_map("send a request", vllm="vllm/v1/engine/core_client.py::SyncMPClient.add_request", process="frontend")
    def add_request(self, request: EngineCoreRequest) -> None:
        self._core.send(request)
        self._request_ids.add(request.request_id)

    def abort_requests(self, request_ids: list[str]) -> None:
        self._request_ids.difference_update(request_ids)
        self._abort(request_ids)

    @on_map("wait for outputs", vllm="vllm/v1/engine/core_client.py::SyncMPClient.get_output", process="frontend")
    def get_output(self) -> EngineCoreOutputs | None:
        """Wait for the next message; None if no request is on its way. Raises EngineDeadError if the core is gone."""
        if not self._request_ids:
            return None
        outputs = self._mailbox.get()
        self._request_ids.difference_update(o.request_id for o in outputs.outputs if o.finish_reason is not None)
        return outputs

    def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        return bool(self._call("reset_prefix_cache", reset_running_requests).result())


class AsyncMPClient(MPClient):
    """The core in a process of its own, for callers on an event loop."""

    @on_map(
        "send a request (async)",
        vllm="vllm/v1/engine/core_client.py::AsyncMPClient.add_request_async",
        process="frontend",
    )
    async def add_request_async(self, request: EngineCoreRequest) -> None:
        """Hand over a request. A refusal comes as an `EngineCoreOutput` whose `error` says why.

        Raises:
            EngineDeadError: The core is gone.
            ValueError: A value that cannot be sent.
        """
        self._core.send(request)

    async def abort_requests_async(self, request_ids: list[str]) -> None:
        """Give up requests; ids that are unknown or done are ignored, and so is a core that is gone."""
        self._abort(request_ids)

    @on_map(
        "wait for outputs (async)",
        vllm="vllm/v1/engine/core_client.py::AsyncMPClient.get_output_async",
        process="frontend",
    )
    async def get_output_async(self) -> EngineCoreOutputs:
        """Wait for what comes next; one caller at a time.

        Raises:
            EngineDeadError: The core is gone.
        """
        return await self._mailbox.get_async()

    async def reset_prefix_cache_async(self, reset_running_requests: bool = False) -> bool:
        """Forget all cached prefixes; False if requests still hold blocks. Those that run can be preempted for it."""
        return bool(await asyncio.wrap_future(self._call("reset_prefix_cache", reset_running_requests)))
