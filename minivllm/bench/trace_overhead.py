"""Owns what the trace costs: the same run with and without a log, without a model and with one.

Times are of this process' CPU, and the best of several runs counts: what else the machine does only ever adds time.
"""

from __future__ import annotations

import math
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from minivllm.config import CacheConfig, ModelConfig, SchedulerConfig, VllmConfig
from minivllm.core.messages import EngineCoreRequest
from minivllm.engine.core import EngineCore
from minivllm.executor.sim import SimExecutor, fake_token_rule
from minivllm.sampling_params import SamplingParams
from minivllm.scenarios.driver import Arrival
from minivllm.scenarios.simulate import simulate_to_log
from minivllm.scenarios.workload import Workload

_VOCAB = 1000
_BLOCK_SIZE = 16

# How many requests decode at once.
SIMULATED = (8, 64, 256)


def simulated_workload(num_requests: int, prompt_len: int, output_len: int) -> Workload:
    """Requests that arrive at once and decode to the end, in a cache that has room for all."""
    rng = random.Random(0)
    total = prompt_len + output_len
    params = SamplingParams(temperature=0.0, max_tokens=output_len, ignore_eos=True)
    config = VllmConfig(
        model_config=ModelConfig(model="simulated"),
        scheduler_config=SchedulerConfig(
            max_num_seqs=num_requests, max_num_batched_tokens=8192, max_model_len=max(512, total)
        ),
        cache_config=CacheConfig(
            block_size=_BLOCK_SIZE,
            num_gpu_blocks=num_requests * (total // _BLOCK_SIZE + 2) + 8,
            hash_seed=b"bench",
        ),
    )
    arrivals = [
        Arrival(0, EngineCoreRequest(f"R{i}", [rng.randrange(_VOCAB) for _ in range(prompt_len)], params, float(i)))
        for i in range(num_requests)
    ]
    return Workload("trace-overhead", config, _VOCAB, arrivals, 100_000)


def measure_simulate(
    num_requests: int = 64, prompt_len: int = 128, output_len: int = 256, repeats: int = 3
) -> dict[str, Any]:
    """The scheduler alone, and `simulate` with its log written to a file. Microseconds a step."""
    workload = simulated_workload(num_requests, prompt_len, output_len)
    alone, logged, steps = math.inf, math.inf, 0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.jsonl"
        for _ in range(repeats):  # in turns: a machine that becomes slower makes both slower
            alone = min(alone, _cpu_seconds(lambda: _scheduler_alone(workload)))
            logged = min(logged, _cpu_seconds(lambda: simulate_to_log(workload, path)))
        steps = simulate_to_log(workload, path)[1].steps
        size = path.stat().st_size
    return {
        "requests": num_requests,
        "prompt_len": prompt_len,
        "output_len": output_len,
        "steps": steps,
        "without_us": round(alone / steps * 1e6, 1),
        "with_us": round(logged / steps * 1e6, 1),
        "ratio": round(logged / alone, 3),
        "log_bytes_per_step": round(size / steps),
    }


def _scheduler_alone(workload: Workload) -> None:
    core = EngineCore(workload.vllm_config, SimExecutor(fake_token_rule(_VOCAB)))
    for arrival in workload.arrivals:
        core.add_request(arrival.request)
    while core.has_work():
        core.step()


def _cpu_seconds(run: Callable[[], object]) -> float:
    start = time.process_time()
    run()
    return time.process_time() - start


def measure_decode(
    model: str, num_requests: int = 1, prompt_len: int = 32, output_len: int = 48, repeats: int = 3
) -> list[dict[str, Any]]:
    """A decode step of a real model without a log, and with one of each level. Milliseconds, the median step.

    On one core, in time of that core, and in turns: what else runs on the machine must not decide.
    """
    import torch

    from minivllm.engine.arg_utils import EngineArgs
    from minivllm.engine.llm_engine import LLMEngine
    from minivllm.trace.events import EventLog, Header
    from minivllm.trace.recorder import Recorder

    torch.set_num_threads(1)
    engine = LLMEngine.from_engine_args(
        EngineArgs.from_kwargs(model=model, max_model_len=256, max_num_seqs=num_requests, enable_prefix_caching=False)
    )
    params = SamplingParams(temperature=0.0, max_tokens=output_len, ignore_eos=True)
    prompts = [[(7 * i + k) % 500 + 5 for k in range(prompt_len)] for i in range(num_requests)]

    def run(level: str | None, path: Path) -> list[float]:
        for i, prompt in enumerate(prompts):
            engine.add_request(f"{level}-{i}", {"prompt_token_ids": prompt}, params)
        if level is None:
            return _step_times(engine.has_unfinished_requests, engine.step)
        log = EventLog(Header(level=level), path)  # type: ignore[arg-type]
        recorder = Recorder(log, tokenizer=engine.tokenizer)
        recorder.blocks.watch(engine.engine_core.scheduler.kv_cache_manager)

        def step() -> None:
            log.step += 1
            engine.step()
            recorder.end_step(engine.engine_core.scheduler)

        with recorder.installation():
            times = _step_times(engine.has_unfinished_requests, step)
        log.close()
        return times

    medians: dict[str | None, list[float]] = {None: [], "step": [], "function": []}
    sizes: dict[str | None, int] = {None: 0}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(repeats):
            for level, values in medians.items():
                path = Path(folder) / f"{level}.jsonl"
                values.append(statistics.median(run(level, path)[1:]))
                if level is not None:
                    sizes[level] = path.stat().st_size
    engine.shutdown()
    base = min(medians[None])
    return [
        {
            "model": model,
            "level": level or "off",
            "requests": num_requests,
            "decode_step_ms": round(min(values) * 1e3, 3),
            "overhead": round(min(values) / base - 1, 4),
            "log_bytes_per_step": round(sizes[level] / output_len),
        }
        for level, values in medians.items()
    ]


def _step_times(has_more: Callable[[], bool], step: Callable[[], object]) -> list[float]:
    times = []
    while has_more():
        start = time.thread_time()
        step()
        times.append(time.thread_time() - start)
    return times
