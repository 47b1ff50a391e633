"""Owns the simplest executor: one worker, in this very process, run by plain calls.

Upstream: vllm/v1/executor/uniproc_executor.py::UniProcExecutor.
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any, TypeVar

import msgspec

from minivllm.config import VllmConfig
from minivllm.core.scheduler_output import ModelRunnerOutput, SchedulerOutput
from minivllm.sourcemap.registry import on_map
from minivllm.worker.async_output import AsyncModelRunnerOutput
from minivllm.worker.worker import Worker

T = TypeVar("T")


class UniProcExecutor:
    """Implements `minivllm.executor.base.Executor`. Its futures are done when they are returned, but for what a device
    has not sampled yet: whoever asks for that waits for the device.

    Attributes:
        worker: The worker, model loaded.
        num_gpu_blocks: KV blocks it has, the null block included.
    """

    def __init__(self, vllm_config: VllmConfig) -> None:
        self.worker = Worker(vllm_config)
        self.worker.load_model()
        self.num_gpu_blocks = self.worker.determine_num_gpu_blocks()
        self.worker.initialize_cache(self.num_gpu_blocks)

    @on_map(
        "executor: execute",
        vllm="vllm/v1/executor/uniproc_executor.py::UniProcExecutor.execute_model",
        plane="data",
    )
    def execute_model(self, scheduler_output: SchedulerOutput) -> Future[ModelRunnerOutput | None]:
        try:
            output = self.worker.execute_model(scheduler_output)
        except Exception as error:
            return _failed(error)
        return _COMPLETED_NONE_FUTURE if output is None else _done(output)

    def resolved(self, vllm_config: VllmConfig) -> VllmConfig:
        """The settings, with what they leave to the worker: the number of KV blocks, and whether to plan ahead."""
        limits = vllm_config.scheduler_config
        if limits.async_scheduling is None:
            limits = msgspec.structs.replace(limits, async_scheduling=self.worker.plans_ahead)
        cache_config = msgspec.structs.replace(vllm_config.cache_config, num_gpu_blocks=self.num_gpu_blocks)
        return msgspec.structs.replace(vllm_config, cache_config=cache_config, scheduler_config=limits)

    @on_map(
        "executor: sample",
        vllm="vllm/v1/executor/uniproc_executor.py::UniProcExecutor.sample_tokens",
        plane="data",
    )
    def sample_tokens(self) -> Future[ModelRunnerOutput]:
        try:
            output = self.worker.sample_tokens()
        except Exception as error:
            return _failed(error)
        return _done(output) if isinstance(output, ModelRunnerOutput) else LateOutput(output)

    def shutdown(self) -> None:
        """Nothing to release: the worker goes with this object."""


class LateOutput(Future[ModelRunnerOutput]):
    """The output of a step that runs on a device. No thread waits for it: asking does, so it is never `done` by itself.

    Upstream: vllm/v1/executor/uniproc_executor.py (its thread for asynchronous outputs).

    Args:
        pending: Is asked for the output each time that this is.
    """

    def __init__(self, pending: AsyncModelRunnerOutput) -> None:
        super().__init__()
        self._pending = pending

    def result(self, timeout: float | None = None) -> ModelRunnerOutput:
        """Wait for the output. Raises what made the step fail."""
        return self._pending.get_output()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for the output, and tell what made the step fail."""
        try:
            self._pending.get_output()
        except Exception as error:
            return error
        return None


def _done(value: T) -> Future[T]:
    """A finished future."""
    future: Future[T] = Future()
    future.set_result(value)
    return future


def _failed(error: Exception) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_exception(error)
    return future


# What most calls of `execute_model` give: `sample_tokens` must follow.
_COMPLETED_NONE_FUTURE: Future[ModelRunnerOutput | None] = _done(None)
