"""Owns the interface between the engine core and whatever runs a plan.

Upstream: vllm/v1/executor/abstract.py::Executor.
"""

from __future__ import annotations

from concurrent.futures import Future
from typing import Protocol

from minivllm.core.scheduler_output import ModelRunnerOutput, SchedulerOutput


class Executor(Protocol):
    """Runs plans in the order in which they are submitted.

    A step is two calls, so that the core can work (build a grammar mask) while the forward pass runs:
    `execute_model` starts it, `sample_tokens` finishes it. A future that is returned is not a result: waiting for
    `Future.result()` is the only synchronisation.
    """

    def execute_model(self, scheduler_output: SchedulerOutput) -> Future[ModelRunnerOutput | None]:
        """Start the forward pass of a plan. The future yields None if `sample_tokens` must follow, or the finished
        (empty) output if the plan schedules nothing."""
        ...

    def sample_tokens(self) -> Future[ModelRunnerOutput]:
        """Sample from the logits of the plan that `execute_model` ran last."""
        ...

    def shutdown(self) -> None:
        """Release what the executor holds. Idempotent."""
        ...
