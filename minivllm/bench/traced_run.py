"""Owns one run of a benchmark with the trace on: what that costs, and a log of it to ask questions of.

The log tells of steps: `explain roofline`, `explain graph` and `map hot` read it. It begins in an engine that has
served before and whose callers it does not know, so the whole life of a request or of a block is not in it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

from minivllm.scenarios.run import make_header
from minivllm.trace.events import EventLog, Level
from minivllm.trace.recorder import Recorder

T = TypeVar("T")


def run_traced(llm: Any, path: Path, level: Level, serve: Callable[[], T]) -> tuple[T, dict[str, Any]]:
    """Serve once while everything is recorded.

    Args:
        llm: A `minivllm.LLM` whose core is in this process, idle.
        path: The log.
        level: How much is recorded.
        serve: Serves all requests.

    Returns:
        What `serve` returned, and facts of the log: its path, steps, events and bytes, and the seconds that it took to
        put it on and to finish it, which are not in the run.
    """
    engine = llm.llm_engine
    core = engine.engine_core
    worker = core.model_executor.worker
    start = time.perf_counter()
    no_scenario: Any = SimpleNamespace(name="prompts")
    header = make_header(engine.vllm_config, no_scenario, level, worker.device.type, worker.kv_cache_sizing)
    log = EventLog(header, path)
    recorder = Recorder(log, tokenizer=engine.tokenizer, device=worker.device.type)
    recorder.blocks.watch(core.scheduler.kv_cache_manager)
    step = engine.step

    def traced_step() -> Any:
        log.step += 1
        result = step()
        recorder.end_step(core.scheduler)
        return result

    try:
        with recorder.installation() as installed:
            engine.step = traced_step
            before = time.perf_counter()
            result = serve()
            after = time.perf_counter()
    finally:
        del engine.step
        log.close()
    around = before - start + time.perf_counter() - after
    facts = {"path": str(path), "steps": log.step + 1, "events": log.num_events, "bytes": path.stat().st_size}
    return result, {**facts, "around_s": around, "failures": installed.failures}
