"""Owns a step's output while its tokens are still on the device.

Upstream: vllm/v1/outputs.py::AsyncModelRunnerOutput.
"""

from __future__ import annotations

from typing import Protocol

from minivllm.core.scheduler_output import ModelRunnerOutput


class AsyncModelRunnerOutput(Protocol):
    """What a runner returns that does not wait for its device.

    Attributes:
        req_ids: The scheduled requests, in batch order.
    """

    req_ids: list[str]

    def get_output(self) -> ModelRunnerOutput:
        """Wait for the tokens, and for nothing that was launched after them. May be called again.

        Raises:
            FloatingPointError: The maximum of some request's logits is not a finite number.
        """
        ...
