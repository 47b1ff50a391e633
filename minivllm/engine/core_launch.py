"""Owns a core's process from the frontend's side, and everything that must go with it: folder, sockets, listener.

A new interpreter runs `minivllm.engine.core_main`; nothing is forked, and the caller's script is not imported again.
Upstream: vllm/v1/engine/utils.py::CoreEngineProcManager, launch_core_engines.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import zmq

from minivllm.config import VllmConfig
from minivllm.core.messages import EngineCoreOutputs
from minivllm.engine.exceptions import EngineDeadError
from minivllm.engine.wire import (
    CoreStart,
    EngineCoreFailure,
    EngineCoreReadyResponse,
    FromCore,
    ToCore,
    TraceSettings,
    UtilityOutput,
    decode_from_core,
    encode,
    input_address,
    output_address,
)
from minivllm.models.errors import ModelError, ModelNotHereError

# How long loading may take.
READY_TIMEOUT_S = 600.0
# How long the process may take to end by itself when it is asked to.
_END_TIMEOUT_S = 2.0
# How long a silence may be before the listener looks whether the process lives.
_SILENCE_MS = 100

# What a wrong model or setting raises: the caller gets it as if it had happened here.
_ERRORS: dict[str, type[Exception]] = {
    error.__name__: error for error in (ModelError, ModelNotHereError, ValueError, MemoryError, OSError)
}

Deliver = Callable[[EngineCoreOutputs | UtilityOutput | EngineDeadError], None]


class CoreEngineProcManager:
    """One core's process, ready when this object is there.

    Args:
        vllm_config: Settings; the number of KV blocks may be open.
        deliver: Gets what the core sends, in the order of sending, and at last the reason why nothing more comes.
            Called by the listener thread; must not hold whoever owns this object.
        trace: What the process is to record of itself; None for nothing.

    Attributes:
        folder: Where the sockets are; gone with the process.
        process: The process.
        ready: What it said when it was ready.

    Raises:
        ModelError, ValueError, MemoryError, OSError: What loading raised in the process.
        EngineDeadError: The process ended, or did not get ready in time.
    """

    def __init__(self, vllm_config: VllmConfig, deliver: Deliver, trace: TraceSettings | None = None) -> None:
        self._deliver = deliver
        self._owner_pid = os.getpid()
        self._lock = threading.Lock()
        self._dead_error: EngineDeadError | None = None
        self._is_closing = False
        self._listener = threading.Thread(target=self._listen, name="process_outputs_socket", daemon=True)
        self.process: subprocess.Popen[bytes] | None = None
        self._context = zmq.Context()
        self._input = self._context.socket(zmq.PUSH)
        self._output = self._context.socket(zmq.PULL)
        self.folder = ""
        try:
            self.folder = make_socket_folder()
            self._output.bind(output_address(self.folder))
            with _sigint_blocked():
                self.process = spawn(CoreStart(vllm_config, self.folder, os.getpid(), trace))
            self.ready = self._wait_until_ready()
            # Not earlier: it has its address by now. From here on sending never waits.
            self._input.set_hwm(0)
            self._input.connect(input_address(self.folder))
        except BaseException:
            self._release()
            raise
        self._listener.start()

    def send(self, message: ToCore) -> None:
        """Send a message; those of one thread arrive in their order.

        Raises:
            EngineDeadError: The core is gone.
            ValueError: See `minivllm.engine.wire.encode`.
        """
        frame = encode(message)
        with self._lock:
            if self._dead_error is not None:
                raise self._dead_error
            self._input.send(frame)

    def close(self) -> None:
        """End the process, and leave nothing of it behind. Idempotent."""
        if os.getpid() != self._owner_pid:
            return  # a fork of the frontend: the core is not its own
        self._is_closing = True
        assert self.process is not None, "it is there when the constructor is done"
        with _undisturbed():
            end(self.process)
            if threading.current_thread() is not self._listener:
                self._listener.join()

    # ---- start ----------------------------------------------------------------------------------------------------

    def _wait_until_ready(self) -> EngineCoreReadyResponse:
        deadline = time.monotonic() + READY_TIMEOUT_S
        while time.monotonic() < deadline:
            message = self._receive()
            if isinstance(message, EngineCoreReadyResponse):
                return message
            if isinstance(message, EngineCoreFailure):
                raise start_error(message)
        raise EngineDeadError(f"the engine core was not ready after {READY_TIMEOUT_S:g} s, and was ended")

    # ---- the listener ---------------------------------------------------------------------------------------------

    def _listen(self) -> None:
        """Deliver what comes until the process ends."""
        try:
            while True:
                message = self._receive()
                if isinstance(message, EngineCoreFailure):
                    raise EngineDeadError(f"the engine core failed: {message}")
                if message is not None:
                    assert not isinstance(message, EngineCoreReadyResponse), "a core gets ready once"
                    self._deliver(message)
        except Exception as error:
            dead_error = self._why_dead(error)
            with self._lock:
                self._dead_error = dead_error
            # In this order: whoever hears of the end may trust that nothing is left.
            try:
                self._release()
            finally:
                self._deliver(dead_error)

    def _why_dead(self, error: Exception) -> EngineDeadError:
        if self._is_closing:
            return EngineDeadError("the engine is shut down")
        if isinstance(error, EngineDeadError):
            return error
        return EngineDeadError(f"the engine core cannot be understood: {type(error).__name__}: {error}")

    def _receive(self) -> FromCore | None:
        """The next message; None after some silence. Raises EngineDeadError if the process has ended."""
        if not self._output.poll(_SILENCE_MS):
            assert self.process is not None, "who listens has started it"
            code = self.process.poll()
            if code is None:
                return None
            if not self._output.poll(_SILENCE_MS):  # its last words come before its end
                raise EngineDeadError(_how_it_ended(code))
        return decode_from_core(self._output.recv())

    def _release(self) -> None:
        if self.process is not None:
            end(self.process)
        with self._lock:
            self._input.close(linger=0)
        self._output.close(linger=0)
        self._context.term()
        shutil.rmtree(self.folder, ignore_errors=True)


def make_socket_folder() -> str:
    """A new folder that only this user can enter, with a path that is short enough for a socket in it."""
    parent = tempfile.gettempdir()
    example = os.path.join(parent, "minivllm-12345678", "output")
    if len(os.fsencode(example)) > zmq.IPC_PATH_MAX_LEN:
        parent = "/tmp"
    try:
        return tempfile.mkdtemp(prefix="minivllm-", dir=parent)
    except OSError as error:
        raise ValueError(
            f"{parent}: no folder for the engine's sockets can be made ({error.strerror}); "
            f"set TMPDIR to a writable folder with a path of at most {zmq.IPC_PATH_MAX_LEN - 25} bytes"
        ) from None


def spawn(start: CoreStart) -> subprocess.Popen[bytes]:
    """Start an interpreter that looks for modules where this one does, and tell it what to do."""
    paths = os.pathsep.join(path or os.getcwd() for path in sys.path)
    command = [sys.executable, "-P", "-m", "minivllm.engine.core_main"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, env=os.environ | {"PYTHONPATH": paths})
    assert process.stdin is not None, "it was asked for"
    with suppress(BrokenPipeError):  # it has ended already, which is noticed where one waits for it
        process.stdin.write(encode(start))
        process.stdin.close()
    return process


@contextmanager
def _sigint_blocked() -> Iterator[None]:
    """A process that is started in this block keeps the signal blocked: Ctrl-C reaches every process of a terminal,
    and is the frontend's alone to handle."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Let Ctrl-C not stop what ends a process: it takes two seconds at most, and half ended it would be left behind."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process, by force if it does not end by itself. Idempotent."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(_END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def start_error(failure: EngineCoreFailure) -> Exception:
    for kind in failure.kinds:
        if kind in _ERRORS:
            return _ERRORS[kind](failure.message)
    return EngineDeadError(f"the engine core could not start: {failure}")


def _how_it_ended(code: int) -> str:
    if code >= 0:
        return f"the engine core's process has ended with exit code {code}"
    why = "; if nobody did that, the machine may have run out of memory" if -code == signal.SIGKILL else ""
    return f"the engine core's process was ended by {signal.Signals(-code).name}{why}"
