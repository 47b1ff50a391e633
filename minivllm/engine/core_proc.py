"""Owns the engine core as a process sees it: three loops, so that neither sockets nor decoding ever wait for a step.

    input thread     process_input_sockets     socket ─► decode, make the Request ─► input queue (aborts: both queues)
    main thread      run_busy_loop             input queue ─► step ─► output queue
    output thread    process_output_sockets    output queue ─► encode ─► socket

No text and no tensors here. Upstream: vllm/v1/engine/core.py::EngineCoreProc.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable

import msgspec
import zmq

from minivllm.config import VllmConfig
from minivllm.core.messages import EngineCoreOutput, EngineCoreOutputs
from minivllm.core.request import FinishReason, Request
from minivllm.engine.core import EngineCore
from minivllm.engine.wire import (
    AbortRequests,
    FromCore,
    UtilityCall,
    UtilityOutput,
    decode_to_core,
    encode,
    input_address,
    output_address,
    request_id_of,
)
from minivllm.executor.base import Executor
from minivllm.sourcemap.registry import on_map

# Methods of the core that a frontend may call by name.
UTILITY_METHODS = ("reset_prefix_cache",)

# What the input thread hands to the busy loop; an exception is its own end, to be the process's, too.
_Input = Request | AbortRequests | UtilityCall | Exception


class EngineCoreProc(EngineCore):
    """An engine core with queues before and behind it, and a thread at each of them.

    Args:
        vllm_config: Settings; `cache_config.num_gpu_blocks` must be set.
        executor: Runs the plans.
        folder: Where the sockets are.

    Attributes:
        input_queue: Requests, aborts and calls in the order in which they came.
        output_queue: What is to be sent.
    """

    def __init__(self, vllm_config: VllmConfig, executor: Executor, folder: str) -> None:
        super().__init__(vllm_config, executor)
        self.input_queue: queue.SimpleQueue[_Input] = queue.SimpleQueue()
        self.output_queue: queue.SimpleQueue[FromCore] = queue.SimpleQueue()
        self._context = zmq.Context()
        # The frontend connects when it hears that the core is ready: by then this socket has its address.
        input_socket = self._context.socket(zmq.PULL)
        input_socket.bind(input_address(folder))
        output_socket = self._context.socket(zmq.PUSH)
        output_socket.connect(output_address(folder))
        self._start(self.process_input_sockets, input_socket)
        self._start(self.process_output_sockets, output_socket)

    def _start(self, loop: Callable[[zmq.Socket[bytes]], None], socket: zmq.Socket[bytes]) -> None:
        """Run a loop in a thread. If it fails, the busy loop fails with its error."""

        def run() -> None:
            with socket:
                try:
                    loop(socket)
                except Exception as error:
                    self.input_queue.put(error)

        threading.Thread(target=run, name=loop.__name__, daemon=True).start()

    # ---- the three loops ------------------------------------------------------------------------------------------

    @on_map("input thread", vllm="vllm/v1/engine/core.py::EngineCoreProc.process_input_sockets")
    def process_input_sockets(self, socket: zmq.Socket[bytes]) -> None:
        """Take what a frontend sends, for ever. What a request needs before it can be queued is done here."""
        while True:
            frame = socket.recv()
            try:
                message = decode_to_core(frame)
            except msgspec.ValidationError as error:
                if (request_id := request_id_of(frame)) is None:
                    raise
                # One caller's parameter of a wrong type is no reason to end everybody's engine.
                self._refuse(request_id, ValueError(f"the request cannot be understood: {error}"))
                continue
            if isinstance(message, AbortRequests):
                # The step that runs looks into this queue at its end. First this one: see _handle_client_request.
                self.aborts_queue.append(message.request_ids)
                self.input_queue.put(message)
            elif isinstance(message, UtilityCall):
                self.input_queue.put(message)
            else:
                try:
                    request = self.preprocess_add_request(message)
                except ValueError as error:
                    self._refuse(message.request_id, error)
                else:
                    _ = request.block_hashes  # hashed by this thread, beside the step that runs
                    self.input_queue.put(request)

    @on_map("busy loop", vllm="vllm/v1/engine/core.py::EngineCoreProc.run_busy_loop")
    def run_busy_loop(self) -> None:
        """Take what came, step, put out what the step brought, for ever."""
        while True:
            self._process_input_queue()
            self._process_engine_step()

    @on_map("output thread", vllm="vllm/v1/engine/core.py::EngineCoreProc.process_output_sockets")
    def process_output_sockets(self, socket: zmq.Socket[bytes]) -> None:
        """Send what the core puts out, in its order, for ever."""
        while True:
            socket.send(encode(self.output_queue.get()))

    # ---- the parts of the busy loop -------------------------------------------------------------------------------

    def _process_input_queue(self) -> None:
        """Handle all that came; wait for something only if there is nothing to run."""
        while not self.has_work():
            self._handle_client_request(self.input_queue.get())
        while not self.input_queue.empty():
            self._handle_client_request(self.input_queue.get())

    def _process_engine_step(self) -> None:
        outputs = self.step()
        if outputs is not None and outputs.outputs:
            self.output_queue.put(outputs)
            # Give the interpreter to the output thread, which would wait for a pause in the next step otherwise.
            time.sleep(0)

    @on_map("dispatch", vllm="vllm/v1/engine/core.py::EngineCoreProc._handle_client_request")
    def _handle_client_request(self, message: _Input) -> None:
        if isinstance(message, Request):
            try:
                self.scheduler.add_request(message)
            except ValueError as error:
                self._refuse(message.request_id, error)
        elif isinstance(message, AbortRequests):
            # Unless a step has taken it, its twin is the oldest of the aborts queue. Left there, it would also end
            # a later request of the same id.
            if self.aborts_queue and self.aborts_queue[0] is message.request_ids:
                self.aborts_queue.popleft()
            self.abort_requests(message.request_ids)
        elif isinstance(message, UtilityCall):
            self.output_queue.put(self._call(message))
        else:
            raise message

    def _refuse(self, request_id: str, error: ValueError) -> None:
        """Tell the frontend, in a message of its own, that a request will not run."""
        refusal = EngineCoreOutput(request_id, [], FinishReason.ERROR, error=str(error))
        self.output_queue.put(EngineCoreOutputs([refusal]))

    def _call(self, call: UtilityCall) -> UtilityOutput:
        if call.method not in UTILITY_METHODS:
            known = ", ".join(UTILITY_METHODS)
            return UtilityOutput(
                call.call_id, failure=f"the core has no method {call.method!r} to call; it has {known}"
            )
        try:
            return UtilityOutput(call.call_id, getattr(self, call.method)(*call.args))
        except Exception as error:
            return UtilityOutput(call.call_id, failure=f"{call.method}: {type(error).__name__}: {error}")
