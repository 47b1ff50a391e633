"""Owns what one asynchronous caller has not fetched yet: at most one output, into which later ones are merged.

A slow caller gets fewer and larger outputs. It keeps nobody waiting, and holds no memory of the model.

Upstream: vllm/v1/engine/output_processor.py::RequestOutputCollector.
"""

from __future__ import annotations

import asyncio

from minivllm.outputs import RequestOutput
from minivllm.sampling_params import RequestOutputKind
from minivllm.sourcemap.registry import on_map


class RequestOutputCollector:
    """The mailbox of one request.

    Args:
        output_kind: Whether later outputs continue the pending one, or stand in its place.
        request_id: The request, as the engine knows it.
    """

    def __init__(self, output_kind: RequestOutputKind, request_id: str) -> None:
        self.aggregate = output_kind is RequestOutputKind.DELTA
        self.request_id = request_id
        self.output: RequestOutput | None = None
        self.error: Exception | None = None
        self._ready = asyncio.Event()

    @on_map(
        "collect output",
        vllm="vllm/v1/engine/output_processor.py::RequestOutputCollector.put",
        process="frontend",
    )
    def put(self, output: RequestOutput) -> None:
        """Add an output; never waits."""
        if self.output is None:
            self.output = output
        else:
            self.output.add(output, self.aggregate)
        self._ready.set()

    def put_error(self, error: Exception) -> None:
        """Raise an error at the caller, after what is pending."""
        self.error = error
        self._ready.set()

    @on_map(
        "fetch output",
        vllm="vllm/v1/engine/output_processor.py::RequestOutputCollector.get",
        process="frontend",
    )
    async def get(self) -> RequestOutput:
        """Fetch what is pending; wait if nothing is.

        Raises:
            Exception: What was put as an error.
        """
        while (output := self.get_nowait()) is None:
            await self._ready.wait()
        return output

    def get_nowait(self) -> RequestOutput | None:
        """Fetch what is pending, if anything is. Raises what was put as an error, after that."""
        output, self.output = self.output, None
        if output is None and self.error is not None:
            raise self.error
        self._ready.clear()
        return output
