"""Owns the simplest executor: one worker, in this very process, run by plain calls.

Upstream: vllm/v1/executor/uniproc_executor.py::UniProcExecutor.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from minivllm.config import VllmConfig
from minivllm.core.scheduler_output import ModelRunnerOutput, SchedulerOutput
from minivllm.sourcemap.registry import on_map
from minivllm.worker.worker import Worker

T = TypeVar("T")


class UniProcExecutor:
    """Implements `minivllm.executor.base.Executor`. Its futures are done when they are returned.

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
        return _done(lambda: self.worker.execute_model(scheduler_output))

    @on_map(
        "executor: sample",
        vllm="vllm/v1/executor/uniproc_executor.py::UniProcExecutor.sample_tokens",
        plane="data",
    )
    def sample_tokens(self) -> Future[ModelRunnerOutput]:
        return _done(self.worker.sample_tokens)

    def shutdown(self) -> None:
        """Nothing to release: the worker goes with this object."""


def _done(call: Callable[[], T]) -> Future[T]:
    """A finished future with the call's result or its exception."""
    future: Future[T] = Future()
    try:
        future.set_result(call())
    except Exception as error:
        future.set_exception(error)
    return future
