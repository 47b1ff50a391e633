"""Owns the loop body: plan a step, run it, commit what came of it. Knows token ids only, no text and no sockets.

Upstream: vllm/v1/engine/core.py::EngineCore.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future

from minivllm.config import VllmConfig
from minivllm.core.async_scheduler import AsyncScheduler
from minivllm.core.block_hash import get_request_block_hasher
from minivllm.core.messages import EngineCoreOutputs, EngineCoreRequest
from minivllm.core.request import Request, RequestStatus
from minivllm.core.scheduler import Scheduler
from minivllm.core.scheduler_output import ModelRunnerOutput, SchedulerOutput
from minivllm.engine.step_stats import StepStats
from minivllm.executor.base import Executor
from minivllm.sourcemap.registry import on_map

# Steps that may be planned and not yet committed, with async scheduling: one runs, one is ready behind it.
BATCH_QUEUE_SIZE = 2


class EngineCore:
    """The scheduler and the executor, and the order of work between them.

    Args:
        vllm_config: Settings; `cache_config.num_gpu_blocks` must be set.
        executor: Runs the plans.
    """

    def __init__(self, vllm_config: VllmConfig, executor: Executor) -> None:
        self.vllm_config = vllm_config
        self.model_executor = executor
        cache_config = vllm_config.cache_config
        is_async = vllm_config.scheduler_config.async_scheduling
        scheduler_class = AsyncScheduler if is_async else Scheduler
        self.scheduler = scheduler_class(vllm_config.scheduler_config, cache_config)
        self._block_hasher = (
            get_request_block_hasher(cache_config.block_size, cache_config.hash_seed)
            if cache_config.enable_prefix_caching
            else None
        )
        # Aborts that arrive while a step runs wait here for its end.
        self.aborts_queue: deque[list[str]] = deque()
        # Submitted plans, youngest on the left, whose output is not committed yet.
        self.batch_queue: deque[tuple[SchedulerOutput, Future[ModelRunnerOutput]]] = deque()
        self.batch_queue_size = BATCH_QUEUE_SIZE if is_async else 1
        self._stats = StepStats()

    @on_map("core add request", vllm="vllm/v1/engine/core.py::EngineCore.add_request")
    def add_request(self, request: EngineCoreRequest) -> None:
        """Queue a request. Registration only: nothing is executed.

        Raises:
            RequestRefusedError: It could never run.
            ValueError: Its id is in use, or its prompt is empty.
        """
        self.scheduler.add_request(self.preprocess_add_request(request))

    @on_map("core ingest", vllm="vllm/v1/engine/core.py::EngineCore.preprocess_add_request")
    def preprocess_add_request(self, request: EngineCoreRequest) -> Request:
        """The scheduler's record of a request that came in.

        Touches nothing of the core, so that another thread can do it while a step runs.

        Raises:
            ValueError: Its prompt is empty.
        """
        return Request(
            request.request_id,
            request.prompt_token_ids,
            request.sampling_params,
            arrival_time=request.arrival_time,
            priority=request.priority,
            lora_request=request.lora_request,
            cache_salt=request.cache_salt,
            mm_features=request.mm_features,
            block_hasher=self._block_hasher,
        )

    @on_map("core abort", vllm="vllm/v1/engine/core.py::EngineCore.abort_requests")
    def abort_requests(self, request_ids: Iterable[str]) -> list[str]:
        """End requests whose caller has gone. Ids that are unknown or ended are ignored.

        Returns:
            The ids that ended now.
        """
        ended = self.scheduler.finish_requests(request_ids, RequestStatus.FINISHED_ABORTED)
        return [request.request_id for request in ended]

    def has_work(self) -> bool:
        """Whether `step` has something to do."""
        return bool(self.batch_queue) or self.scheduler.has_requests()

    def step(self) -> EngineCoreOutputs | None:
        """Advance by one step, in the way that the settings ask for.

        Returns:
            What the step brought; None if it brought nothing yet (async scheduling), or if there was nothing to do.
        """
        return self.step_with_batch_queue() if self.batch_queue_size > 1 else self.step_sync()

    @on_map("engine step", vllm="vllm/v1/engine/core.py::EngineCore.step")
    def step_sync(self) -> EngineCoreOutputs | None:
        """Plan, run, commit: one step from end to end."""
        if not self.scheduler.has_requests():
            return None
        plan = self.scheduler.schedule()
        output = self._submit(plan).result()
        self._process_aborts_queue()
        return self._stats.attach(self.scheduler.update_from_output(plan, output), self.scheduler)

    @on_map("engine step, batch queue", vllm="vllm/v1/engine/core.py::EngineCore.step_with_batch_queue")
    def step_with_batch_queue(self) -> EngineCoreOutputs | None:
        """Keep the worker busy: filling the queue of plans goes before collecting results."""
        if self.scheduler.has_requests():
            plan = self.scheduler.schedule()
            self.batch_queue.appendleft((plan, self._submit(plan)))
            has_room = len(self.batch_queue) < self.batch_queue_size
            if has_room and (plan.total_num_scheduled_tokens > 0 or self.scheduler.has_requests()):
                return None
        if not self.batch_queue:
            return None
        plan, future = self.batch_queue.pop()
        output = future.result()
        self._process_aborts_queue()
        return self._stats.attach(self.scheduler.update_from_output(plan, output), self.scheduler)

    def _submit(self, plan: SchedulerOutput) -> Future[ModelRunnerOutput]:
        """Start a plan; what happens between the two calls overlaps with the forward pass."""
        self._stats.note_plan(plan)
        executed = self.model_executor.execute_model(plan)
        has_failed = executed.done() and executed.exception() is not None
        if plan.total_num_scheduled_tokens > 0 and not has_failed:
            return self.model_executor.sample_tokens()
        # Nothing is scheduled: the worker only hears who finished, and its answer is complete. Or the forward pass
        # failed: its error is to be told, not that there is nothing to sample from.
        return executed  # type: ignore[return-value]

    def _process_aborts_queue(self) -> None:
        """Handle aborts that came while the step ran, so that their requests get no output from it."""
        while self.aborts_queue:
            self.abort_requests(self.aborts_queue.popleft())

    def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        """Forget all cached prefixes; False if requests still hold blocks. Those that run can be preempted for it."""
        return self.scheduler.reset_prefix_cache(reset_running_requests)

    def shutdown(self) -> None:
        """Release the executor."""
        self.model_executor.shutdown()
