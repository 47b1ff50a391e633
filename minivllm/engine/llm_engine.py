"""Owns the engine whose caller drives it: the frontend's parts, and a core in this process or in one of its own.

Upstream: vllm/v1/engine/llm_engine.py::LLMEngine.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import TYPE_CHECKING

from minivllm.config import VllmConfig
from minivllm.engine.arg_utils import EngineArgs
from minivllm.engine.core import EngineCore
from minivllm.engine.core_client import EngineCoreClient, InprocClient, SyncMPClient
from minivllm.engine.input_processor import InputProcessor, Prompt, assign_request_id, prompt_text
from minivllm.engine.output_processor import OutputProcessor
from minivllm.outputs import RequestOutput
from minivllm.sampling_params import SamplingParams
from minivllm.sourcemap.registry import on_map
from minivllm.tokenizer import Tokenizer

if TYPE_CHECKING:
    from minivllm.metrics import EngineMetrics
    from minivllm.metrics_reader import Metric


class LLMEngine:
    """Add requests, then call `step` until nobody is left.

    Args:
        vllm_config: Settings, the number of KV blocks included.
        client: The way to the core.
        tokenizer: The model's tokenizer, if it has one.
        vocab_size: Of the model.
        eos_token_ids: Of the model.
        metrics: Gets what happens to requests; None keeps no metrics.
    """

    def __init__(
        self,
        vllm_config: VllmConfig,
        client: EngineCoreClient,
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
        self._arrivals = itertools.count()

    @classmethod
    def from_engine_args(cls, args: EngineArgs) -> LLMEngine:
        """Find the model, check the settings against it, load it, and size its KV cache.

        Raises:
            ModelError: There is no such model, or its files are damaged or not supported.
            ValueError: Settings that contradict each other, the model or this machine.
            EngineDeadError: The core's process (`multiprocess`) ended while it started.
        """
        from minivllm.metrics import make_metrics
        from minivllm.models.model_zoo import find_model
        from minivllm.tokenizer import load_tokenizer

        vllm_config = args.resolve_engine_config()
        metrics = None if args.disable_log_stats else make_metrics(vllm_config, args.served_model_name)
        own = Path(args.tokenizer) if args.tokenizer else find_model(args.model).path
        tokenizer = None if args.skip_tokenizer_init else load_tokenizer(own)
        if args.multiprocess:
            client = SyncMPClient(vllm_config)
            return cls(client.vllm_config, client, tokenizer, client.vocab_size, client.eos_token_ids, metrics)
        # The data plane needs torch, which takes a second to import: only a process that runs the model pays for it.
        from minivllm.executor.uniproc import UniProcExecutor

        executor = UniProcExecutor(vllm_config)
        vllm_config = executor.resolved(vllm_config)
        core, worker = EngineCore(vllm_config, executor), executor.worker
        return cls(vllm_config, InprocClient(core), tokenizer, worker.vocab_size, worker.eos_token_ids, metrics)

    @property
    def engine_core(self) -> EngineCore:
        """The core itself, if it is in this process. Raises AttributeError if it has a process of its own."""
        if not isinstance(self.client, InprocClient):
            raise AttributeError("the engine core has a process of its own: its state can be seen in-process only")
        return self.client.engine_core

    @on_map("engine add request", vllm="vllm/v1/engine/llm_engine.py::LLMEngine.add_request", process="frontend")
    def add_request(
        self,
        request_id: str,
        prompt: Prompt,
        params: SamplingParams,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
    ) -> None:
        """Check a request and queue it; for several completions, queue one request each.

        Args:
            request_id: Comes back with every output, and aborts the request. Inside, a suffix makes it unique.
            prompt: Text, or tokens.
            params: How to sample.
            priority: Lower runs first under the priority policy.
            cache_salt: Keeps its cached prefixes apart from those of other salts.

        Raises:
            ValueError: See `InputProcessor.process_inputs`; or it could never run with these settings.
        """
        request = self.input_processor.process_inputs(
            request_id,
            prompt,
            params,
            # Only the order counts, and a counter repeats where a clock would not.
            arrival_time=float(next(self._arrivals)),
            priority=priority,
            cache_salt=cache_salt,
        )
        request = assign_request_id(request)
        children = self.output_processor.add_request(request, prompt_text(prompt), request_id)
        try:
            for child in children:
                self.client.add_request(child)
        except ValueError as refusal:
            # The other children must not stay behind, and the caller knows the request by another name.
            self._abort([request.request_id], internal=True)
            raise type(refusal)(str(refusal).replace(repr(child.request_id), repr(request_id))) from None

    def abort_request(self, request_ids: list[str]) -> None:
        """Give up requests; ids that are unknown or done are ignored."""
        self._abort(request_ids, internal=False)

    def _abort(self, request_ids: list[str], internal: bool) -> None:
        self.client.abort_requests(self.output_processor.abort_requests(request_ids, internal))

    def has_unfinished_requests(self) -> bool:
        return bool(self.output_processor.request_states)

    def get_num_unfinished_requests(self) -> int:
        """Requests that go on; each completion of several counts."""
        return len(self.output_processor.request_states)

    @on_map("frontend step", vllm="vllm/v1/engine/llm_engine.py::LLMEngine.step", process="frontend")
    def step(self) -> list[RequestOutput]:
        """Advance by one step, and return what callers are to be told.

        Raises:
            ValueError: A core in a process of its own refused a request, which is forgotten; the others go on.
            EngineDeadError: The core is gone.
        """
        outputs = self.client.get_output()
        if outputs is None:
            return []
        timestamp = self.output_processor.update_scheduler_stats(outputs.scheduler_stats)
        processed = self.output_processor.process_outputs(outputs.outputs, timestamp)
        if processed.reqs_to_abort:
            self.client.abort_requests(processed.reqs_to_abort)
        return processed.request_outputs

    def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        """Forget all cached prefixes; False if requests still hold blocks.

        Args:
            reset_running_requests: Preempt those that run, so that nobody holds any; what they had put out stays.
        """
        return self.client.reset_prefix_cache(reset_running_requests)

    def get_metrics(self) -> list[Metric]:
        """Every metric as it is now. Raises ValueError if none are kept (`disable_log_stats`)."""
        if self.metrics is None:
            raise ValueError("no metrics are kept: disable_log_stats is True (the default of LLM)")
        from minivllm.metrics_reader import get_metrics_snapshot

        return get_metrics_snapshot(self.metrics.registry)

    def get_tokenizer(self) -> Tokenizer:
        """The model's tokenizer. Raises ValueError if it has none."""
        if self.tokenizer is None:
            raise ValueError("this model has no tokenizer")
        return self.tokenizer

    def shutdown(self) -> None:
        """Release the model. Idempotent."""
        self.client.shutdown()
