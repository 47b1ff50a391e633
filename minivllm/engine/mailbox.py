"""Owns what a core's process has sent, until somebody takes it: outputs in their order, and the results of calls.

One thread delivers. Who takes may be a thread or a coroutine, and hears of the core's end in any case.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
from collections import deque
from concurrent.futures import Future
from typing import Any

from minivllm.core.messages import EngineCoreOutputs
from minivllm.engine.exceptions import EngineDeadError
from minivllm.engine.wire import UtilityOutput


class Mailbox:
    """Outputs that nobody has taken yet, and calls that are not answered yet.

    Attributes:
        dead_error: Why nothing will come any more; None while the core lives.
    """

    def __init__(self) -> None:
        self.dead_error: EngineDeadError | None = None
        self._outputs: deque[EngineCoreOutputs] = deque()
        self._calls: dict[int, Future[Any]] = {}
        self._call_ids = itertools.count()
        self._changed = threading.Condition()
        self._waiter: asyncio.Future[None] | None = None

    # ---- from the thread that listens -----------------------------------------------------------------------------

    def put(self, message: EngineCoreOutputs | UtilityOutput | EngineDeadError) -> None:
        """Deliver what came."""
        with self._changed:
            if isinstance(message, EngineCoreOutputs):
                self._outputs.append(message)
            elif isinstance(message, UtilityOutput):
                failure = RuntimeError(message.failure) if message.failure is not None else None
                _settle(self._calls.pop(message.call_id), message.result, failure)
            else:
                self.dead_error = message
                for call in self._calls.values():
                    _settle(call, None, message)
                self._calls.clear()
            self._changed.notify_all()
            waiter, self._waiter = self._waiter, None
        if waiter is not None:
            with contextlib.suppress(RuntimeError):  # its loop has ended
                waiter.get_loop().call_soon_threadsafe(_wake, waiter)

    # ---- from whoever waits ---------------------------------------------------------------------------------------

    def get(self) -> EngineCoreOutputs:
        """Wait for the next outputs. Raises EngineDeadError when there will be none."""
        with self._changed:
            self._changed.wait_for(lambda: self._outputs or self.dead_error)
            return self._take()

    async def get_async(self) -> EngineCoreOutputs:
        """The same in a coroutine; one at a time."""
        while True:
            with self._changed:
                if self._outputs or self.dead_error:
                    return self._take()
                waiter = self._waiter = asyncio.get_running_loop().create_future()
            await waiter

    def _take(self) -> EngineCoreOutputs:
        if self._outputs:
            return self._outputs.popleft()
        assert self.dead_error is not None, "who waits is woken by outputs, or by the end of the core"
        raise self.dead_error

    def expect(self) -> tuple[int, Future[Any]]:
        """The id of a new call, and the future that its answer will settle."""
        with self._changed:
            call_id = next(self._call_ids)
            future: Future[Any] = Future()
            if self.dead_error is not None:
                future.set_exception(self.dead_error)
            else:
                self._calls[call_id] = future
            return call_id, future


def _settle(call: Future[Any], result: Any, failure: Exception | None) -> None:
    if not call.set_running_or_notify_cancel():
        return  # its caller has given up
    if failure is not None:
        call.set_exception(failure)
    else:
        call.set_result(result)


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
