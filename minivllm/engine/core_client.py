"""Owns how a frontend talks to an engine core, wherever that core runs: one interface, as calls or as messages.

Upstream: vllm/v1/engine/core_client.py.
"""

from __future__ import annotations

from typing import Protocol

from minivllm.config import VllmConfig
from minivllm.core.messages import EngineCoreOutputs, EngineCoreRequest
from minivllm.engine.core import EngineCore
from minivllm.engine.exceptions import EngineDeadError
from minivllm.sourcemap.registry import on_map


@on_map("core client", vllm="vllm/v1/engine/core_client.py::EngineCoreClient", process="frontend")
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

    def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes; False if requests still hold blocks."""
        ...

    def shutdown(self) -> None:
        """Release the core. Idempotent."""
        ...


@on_map("in-process client", vllm="vllm/v1/engine/core_client.py::InprocClient", process="frontend")
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

    def reset_prefix_cache(self) -> bool:
        return self.engine_core.reset_prefix_cache()

    def shutdown(self) -> None:
        self.engine_core.shutdown()


class AsyncMPClient:
    """The core in a process of its own, for callers on an event loop.

    Args:
        vllm_config: Settings; the core's process fills in the number of KV blocks.

    Attributes:
        vllm_config: The settings, the number of KV blocks included.
        vocab_size: Of the model.
        eos_token_ids: Of the model.

    Raises:
        ModelError: There is no such model, or its files are damaged or not supported.
        ValueError: Settings that contradict the model or this machine.
        EngineDeadError: The process ended, or did not get ready in time.
    """

    vllm_config: VllmConfig
    vocab_size: int
    eos_token_ids: tuple[int, ...]

    def __init__(self, vllm_config: VllmConfig) -> None:
        raise NotImplementedError("the engine core's own process")

    @property
    def dead_error(self) -> EngineDeadError | None:
        """Why the core is gone; None while it lives."""
        raise NotImplementedError

    async def add_request_async(self, request: EngineCoreRequest) -> None:
        """Hand over a request. A refusal comes as an `EngineCoreOutput` whose `error` says why.

        Raises:
            EngineDeadError: The core is gone.
        """
        raise NotImplementedError

    async def abort_requests_async(self, request_ids: list[str]) -> None:
        """Give up requests; ids that are unknown or done are ignored, and so is a core that is gone."""
        raise NotImplementedError

    async def get_output_async(self) -> EngineCoreOutputs:
        """Wait for what comes next; one caller at a time.

        Raises:
            EngineDeadError: The core is gone.
        """
        raise NotImplementedError

    async def reset_prefix_cache_async(self) -> bool:
        """Forget all cached prefixes; False if requests still hold blocks."""
        raise NotImplementedError

    def shutdown(self) -> None:
        """End the core's process. Idempotent."""
        raise NotImplementedError
