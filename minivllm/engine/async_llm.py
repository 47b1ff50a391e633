"""Owns the engine for callers on an event loop: each awaits its own outputs, one task fetches everybody's.

What ends a request early, whoever does it, goes the same way: its state here is dropped at once, and the core is told.
So a caller that leaves, or is slow, keeps no blocks.

Upstream: vllm/v1/engine/async_llm.py::AsyncLLM.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from minivllm.config import VllmConfig
from minivllm.core.messages import EngineCoreOutputs, EngineCoreRequest
from minivllm.engine.arg_utils import EngineArgs
from minivllm.engine.exceptions import EngineDeadError
from minivllm.engine.input_processor import InputProcessor, Prompt, assign_request_id, prompt_text
from minivllm.engine.output_collector import RequestOutputCollector
from minivllm.engine.output_processor import OutputProcessor
from minivllm.outputs import RequestOutput
from minivllm.sampling_params import SamplingParams
from minivllm.sourcemap.registry import on_map
from minivllm.tokenizer import Tokenizer

if TYPE_CHECKING:
    from minivllm.metrics import EngineMetrics
    from minivllm.metrics_reader import Metric

# Outputs that are processed before other tasks get their turn: one step may bring hundreds.
_CHUNK_SIZE = 128


class AsyncCoreClient(Protocol):
    """What `AsyncLLM` needs of a core: `AsyncMPClient`, or a core in this process in tests."""

    async def add_request_async(self, request: EngineCoreRequest) -> None: ...

    async def abort_requests_async(self, request_ids: list[str]) -> None: ...

    async def get_output_async(self) -> EngineCoreOutputs: ...

    async def reset_prefix_cache_async(self, reset_running_requests: bool = False) -> bool: ...

    def shutdown(self) -> None: ...


class AsyncLLM:
    """Generates for many callers at once.

    Args:
        vllm_config: Settings, the number of KV blocks included.
        client: The way to the core.
        tokenizer: The model's tokenizer, if it has one.
        vocab_size: Of the model.
        eos_token_ids: Of the model.
        metrics: Gets what happens to requests; None keeps no metrics.

    Example:
        engine = AsyncLLM.from_engine_args(EngineArgs(model="stories-5m"))
        async for output in engine.generate("Once upon a time", SamplingParams(), "my-id"):
            print(output.outputs[0].text)
        engine.shutdown()
    """

    def __init__(
        self,
        vllm_config: VllmConfig,
        client: AsyncCoreClient,
        tokenizer: Tokenizer | None,
        vocab_size: int,
        eos_token_ids: tuple[int, ...],
        metrics: EngineMetrics | None = None,
    ) -> None:
        self.vllm_config = vllm_config
        self.client = client
        self.tokenizer = tokenizer
        self.input_processor = InputProcessor(vllm_config, tokenizer, vocab_size, eos_token_ids)
        self.metrics = metrics
        if metrics is not None:
            metrics.record_cache_config(vllm_config.cache_config)
        self.output_processor = OutputProcessor(tokenizer, vllm_config.stream_interval, metrics)
        self.output_handler: asyncio.Task[None] | None = None
        self.dead_error: EngineDeadError | None = None
        self._arrivals = itertools.count()
        self._aborts: set[asyncio.Task[None]] = set()

    @classmethod
    def from_engine_args(cls, args: EngineArgs) -> AsyncLLM:
        """Check the settings, and start the core in a process of its own.

        Raises:
            ModelError: There is no such model, or its files are damaged or not supported.
            ValueError: Settings that contradict each other, the model or this machine.
            EngineDeadError: The core's process ended while it started.
        """
        from minivllm.engine.core_client import AsyncMPClient
        from minivllm.metrics import make_metrics
        from minivllm.models.model_zoo import find_model
        from minivllm.tokenizer import load_tokenizer

        vllm_config = args.resolve_engine_config()
        metrics = None if args.disable_log_stats else make_metrics(vllm_config, args.served_model_name)
        own = Path(args.tokenizer) if args.tokenizer else find_model(args.model).path
        tokenizer = None if args.skip_tokenizer_init else load_tokenizer(own)
        client = AsyncMPClient(vllm_config)
        return cls(client.vllm_config, client, tokenizer, client.vocab_size, client.eos_token_ids, metrics)

    @on_map("generate", vllm="vllm/v1/engine/async_llm.py::AsyncLLM.generate", process="frontend")
    async def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams,
        request_id: str,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Yield a request's outputs as they come; several at once, merged, for a caller that is slow.

        Closing the generator, or cancelling the task that iterates it, aborts the request.

        Args:
            prompt: Text, or tokens.
            sampling_params: How to sample; `output_kind` says what each output holds.
            request_id: Comes back with every output, and can be given to `abort`.
            priority: Lower runs first under the priority policy.
            cache_salt: Keeps its cached prefixes apart from those of other salts.

        Raises:
            ValueError: A prompt or a parameter that cannot be served.
            EngineDeadError: The core is gone.
        """
        queue = await self.add_request(request_id, prompt, sampling_params, priority=priority, cache_salt=cache_salt)
        try:
            finished = False
            while not finished:
                output = queue.get_nowait() or await queue.get()
                finished = output.finished
                yield output
        finally:
            # Nothing to do if it is done, or if an error has ended it.
            await self._abort([queue.request_id], internal=True)

    @on_map("add request (async)", vllm="vllm/v1/engine/async_llm.py::AsyncLLM.add_request", process="frontend")
    async def add_request(
        self,
        request_id: str,
        prompt: Prompt,
        params: SamplingParams,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
    ) -> RequestOutputCollector:
        """Check a request, make its mailbox, and hand it to the core; for several completions one request each."""
        if self.dead_error is not None:
            raise self.dead_error
        self._run_output_handler()
        request = self.input_processor.process_inputs(
            request_id,
            prompt,
            params,
            arrival_time=float(next(self._arrivals)),
            priority=priority,
            cache_salt=cache_salt,
        )
        request = assign_request_id(request)
        queue = RequestOutputCollector(params.output_kind, request.request_id)
        children = self.output_processor.add_request(request, prompt_text(prompt), request_id, queue)
        try:
            for child in children:
                await self.client.add_request_async(child)
        except BaseException:
            await self._abort([request.request_id], internal=True)
            raise
        return queue

    @on_map("abort (async)", vllm="vllm/v1/engine/async_llm.py::AsyncLLM.abort", process="frontend")
    async def abort(self, request_id: str | Iterable[str]) -> None:
        """Give up requests by the ids that callers gave. Whoever waits for one gets a last output, "abort"."""
        await self._abort([request_id] if isinstance(request_id, str) else request_id, internal=False)

    async def _abort(self, request_ids: Iterable[str], internal: bool) -> None:
        ended = self.output_processor.abort_requests(request_ids, internal)
        if not ended:
            return
        # A task of its own, for a caller that is cancelled once more must not keep the core from hearing of it.
        task = asyncio.create_task(self.client.abort_requests_async(ended))
        self._aborts.add(task)
        task.add_done_callback(self._aborts.discard)
        await asyncio.shield(task)

    def _run_output_handler(self) -> None:
        """Start the task that fetches outputs, with the first request: there is an event loop then."""
        if self.output_handler is None or self.output_handler.done():
            self.output_handler = asyncio.create_task(self._handle_outputs())

    @on_map(
        "output handler",
        vllm="vllm/v1/engine/async_llm.py::AsyncLLM._run_output_handler",
        process="frontend",
    )
    async def _handle_outputs(self) -> None:
        try:
            while True:
                message = await self.client.get_output_async()
                timestamp = self.output_processor.update_scheduler_stats(message.scheduler_stats)
                outputs = message.outputs
                for start in range(0, len(outputs), _CHUNK_SIZE):
                    if start:
                        await asyncio.sleep(0)
                    processed = self.output_processor.process_outputs(outputs[start : start + _CHUNK_SIZE], timestamp)
                    if processed.reqs_to_abort:
                        await self.client.abort_requests_async(processed.reqs_to_abort)
        except Exception as error:
            self._die(error)

    def _die(self, error: Exception) -> None:
        """Nobody fetches outputs any more: everyone who waits hears why, and nobody is let in."""
        if not isinstance(error, EngineDeadError):
            error = EngineDeadError(f"outputs could not be processed: {error!r}")
        self.dead_error = error
        self.output_processor.propagate_error(error)

    async def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        """Forget all cached prefixes; False if requests still hold blocks. Those that run can be preempted for it."""
        return await self.client.reset_prefix_cache_async(reset_running_requests)

    async def check_health(self) -> None:
        """Raise the EngineDeadError that ended the engine, if one has."""
        if self.dead_error is not None:
            raise self.dead_error

    def get_metrics(self) -> list[Metric]:
        """Every metric as it is now. Raises ValueError if none are kept (`disable_log_stats`)."""
        if self.metrics is None:
            raise ValueError("no metrics are kept: disable_log_stats is True")
        from minivllm.metrics_reader import get_metrics_snapshot

        return get_metrics_snapshot(self.metrics.registry)

    def get_tokenizer(self) -> Tokenizer:
        """The model's tokenizer. Raises ValueError if it has none."""
        if self.tokenizer is None:
            raise ValueError("this model has no tokenizer")
        return self.tokenizer

    def shutdown(self) -> None:
        """End the core. Whoever still waits gets an EngineDeadError. Idempotent."""
        if self.dead_error is None:
            self._die(EngineDeadError("the engine was shut down"))
        handler, self.output_handler = self.output_handler, None
        if handler is not None and not handler.get_loop().is_closed():
            handler.cancel()
        self.client.shutdown()
