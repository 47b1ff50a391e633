"""Owns the life of a core's process: what it is told, loading, the loops, and each of its ends.

It ends when its frontend says so (SIGTERM, at once: nothing here must be put away first), when its frontend is gone,
and after an error that it tells the frontend.
Run as `python -m minivllm.engine.core_main`, with a `CoreStart` on standard input.
Upstream: vllm/v1/engine/core.py::EngineCoreProc.run_engine_core.
"""

from __future__ import annotations

import gc
import os
import shutil
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import zmq

from minivllm.config import VllmConfig
from minivllm.engine.core_proc import EngineCoreProc
from minivllm.engine.wire import (
    CoreStart,
    EngineCoreFailure,
    EngineCoreReadyResponse,
    FromCore,
    decode_start,
    encode,
    output_address,
)
from minivllm.executor.base import Executor

MakeCore = Callable[[VllmConfig, Executor, str], EngineCoreProc]

# How often the process looks whether its frontend is still there.
_PARENT_CHECK_S = 0.25
# How long the last message may hold up the end of the process.
_LINGER_MS = 1000
# What a wrong model or setting raises while loading: the frontend tells it in one line.
_EXPECTED = (ValueError, MemoryError, OSError)


def main() -> None:
    """Load and serve. Never returns."""
    start = decode_start(sys.stdin.buffer.read())
    threading.Thread(target=_end_with_parent, args=(start,), daemon=True).start()
    is_loaded = False
    try:
        with _recorded(start) as make_core:
            core, ready = _load(start, make_core)
            is_loaded = True
            # What is here by now stays: the collector need not look through it again and again between steps.
            gc.collect()
            gc.freeze()
            core.output_queue.put(ready)
            core.run_busy_loop()
    except Exception as error:
        if is_loaded or not isinstance(error, _EXPECTED):
            traceback.print_exc()
            sys.stderr.flush()
        kinds = [kind.__name__ for kind in type(error).__mro__]
        _send(start.folder, EngineCoreFailure(kinds, str(error)))
    # Threads wait in sockets, and nothing of theirs is worth waiting for.
    os._exit(1)


def _recorded(start: CoreStart) -> AbstractContextManager[MakeCore]:
    """A block in which this process is traced, if it is to be; gives what makes the core."""
    if start.trace is None:
        return nullcontext(EngineCoreProc)
    from minivllm.scenarios.core_process import recorded_core

    return recorded_core(start.trace, start.vllm_config.model_config.device)


def _load(start: CoreStart, make_core: MakeCore) -> tuple[EngineCoreProc, EngineCoreReadyResponse]:
    # Here, so that a torch that cannot be imported is told like every other reason not to start.
    from minivllm.executor.uniproc import UniProcExecutor

    vllm_config = start.vllm_config
    executor = UniProcExecutor(vllm_config)
    worker = executor.worker
    vllm_config = executor.resolved(vllm_config)
    ready = EngineCoreReadyResponse(
        executor.num_gpu_blocks,
        worker.vocab_size,
        worker.eos_token_ids,
        worker.max_position_embeddings,
        bool(vllm_config.scheduler_config.async_scheduling),
    )
    return make_core(vllm_config, executor, start.folder), ready


def _send(folder: str, message: FromCore) -> None:
    """Send one message without the core's threads: they may not be there yet, or be what failed."""
    context = zmq.Context()
    socket = context.socket(zmq.PUSH)
    socket.connect(output_address(folder))
    socket.send(encode(message))
    socket.close(linger=_LINGER_MS)
    context.term()


def _end_with_parent(start: CoreStart) -> None:
    """End this process when its parent has ended, however it ended: an orphan's parent is another process."""
    while os.getppid() == start.parent_pid:
        time.sleep(_PARENT_CHECK_S)
    shutil.rmtree(start.folder, ignore_errors=True)
    os._exit(1)


if __name__ == "__main__":
    main()
