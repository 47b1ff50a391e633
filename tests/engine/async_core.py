"""A core in this process for `AsyncLLM`, which steps when the event loop lets it, and can be looked into."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from minivllm.core.messages import EngineCoreOutput, EngineCoreOutputs, EngineCoreRequest
from minivllm.core.request import FinishReason
from minivllm.engine.arg_utils import EngineArgs
from minivllm.engine.async_llm import AsyncLLM
from minivllm.engine.core import EngineCore
from minivllm.engine.llm_engine import LLMEngine


class InprocAsyncClient:
    """Implements `AsyncCoreClient`.

    Attributes:
        before_step: Called before every step; may raise.
        mid_step: Called after the model has run, before its output is committed.
    """

    def __init__(self, core: EngineCore) -> None:
        self.core = core
        self.before_step: Callable[[], None] = lambda: None
        self.mid_step: Callable[[], None] = lambda: None
        self._work = asyncio.Event()
        self._refused: list[EngineCoreOutputs] = []
        process_aborts = core._process_aborts_queue

        def in_the_middle() -> None:
            self.mid_step()
            process_aborts()

        core._process_aborts_queue = in_the_middle  # type: ignore[method-assign]

    async def add_request_async(self, request: EngineCoreRequest) -> None:
        try:
            self.core.add_request(request)
        except ValueError as refusal:  # told like a core in another process tells it
            refused = EngineCoreOutput(request.request_id, [], FinishReason.ERROR, error=str(refusal))
            self._refused.append(EngineCoreOutputs([refused]))
        self._work.set()

    async def abort_requests_async(self, request_ids: list[str]) -> None:
        self.core.abort_requests(request_ids)
        self._work.set()

    async def get_output_async(self) -> EngineCoreOutputs:
        while True:
            await asyncio.sleep(0)
            self.before_step()
            if self._refused:
                return self._refused.pop()
            if not self.core.has_work():
                self._work.clear()
                await self._work.wait()
            elif (outputs := self.core.step()) is not None and outputs.outputs:
                return outputs

    async def reset_prefix_cache_async(self) -> bool:
        return self.core.reset_prefix_cache()

    def shutdown(self) -> None:
        pass


def make_async_llm(model: Path, **settings: Any) -> AsyncLLM:
    """An `AsyncLLM` whose core is in this process. Needs a running event loop."""
    engine = LLMEngine.from_engine_args(EngineArgs.from_kwargs(model=str(model), **settings))
    processor = engine.input_processor
    client = InprocAsyncClient(engine.engine_core)
    return AsyncLLM(engine.vllm_config, client, engine.tokenizer, processor.vocab_size, tuple(processor.eos_token_ids))


async def assert_nothing_is_left(engine: AsyncLLM) -> None:
    """No state in the frontend, no request in the core, every block back in the pool."""
    processor = engine.output_processor
    assert not processor.request_states
    assert not processor.parent_requests
    assert not processor.external_req_ids
    core = engine.client.core  # type: ignore[attr-defined]
    for _ in range(20):
        await asyncio.sleep(0)
    while core.has_work():
        core.step()
    scheduler = core.scheduler
    assert not scheduler.requests
    assert not scheduler.running
    assert not scheduler.waiting
    assert not scheduler.ended_in_flight
    pool = scheduler.kv_cache_manager.block_pool
    assert pool.get_num_free_blocks() == pool.num_gpu_blocks - 1, "the null block is never free"
