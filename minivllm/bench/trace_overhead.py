"""Owns what the trace costs: the same run with and without a log, without a model and with one.

Times are of this process' CPU, and the best of several runs counts: what else the machine does only ever adds time.
"""

from __future__ import annotations

import gc
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
from minivllm.trace.events import EventLog, Header
from minivllm.trace.recorder import Recorder

_VOCAB = 1000
_BLOCK_SIZE = 16

# Simulated: how many requests decode at once, the tokens of each prompt and of each output.
SIMULATED = ((8, 128, 256), (64, 128, 256), (256, 128, 256))
# With a model: tokens of the prompt and of the output.
DECODED = (32, 192)
# Ahead of a device: requests that decode at once, tokens of their prompts and outputs.
AHEAD = (256, 128, 160)
# How much longer than the host's part of a step the device's is there: so long that all can be written meanwhile.
_DEVICE_PER_HOST = 6.0
# Steps of a turn, and those at its beginning that do not count.
_TURN = 12
_SKIPPED = 4


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


def measure_simulate(num_requests: int, prompt_len: int, output_len: int, repeats: int = 3) -> dict[str, Any]:
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


def measure_decode(model: str, prompt_len: int, output_len: int, repeats: int = 3) -> list[dict[str, Any]]:
    """A decode step of a real model without a log, and with one of each level. Milliseconds, the median step.

    On one core, in time of that core. The levels take turns of a few steps within each run, so whatever else slows the
    machine down slows all of them down. Putting probes on and off is not timed, nor are the first steps after it:
    Python has to learn again what the functions call.
    """
    import torch

    from minivllm.engine.arg_utils import EngineArgs
    from minivllm.engine.llm_engine import LLMEngine

    torch.set_num_threads(1)
    settings = {"model": model, "max_model_len": prompt_len + output_len, "max_num_seqs": 1}
    engine = LLMEngine.from_engine_args(EngineArgs.from_kwargs(**settings))
    params = SamplingParams(temperature=0.0, max_tokens=output_len, ignore_eos=True)
    times: dict[str, list[float]] = {"off": [], "step": [], "function": []}
    with tempfile.TemporaryDirectory() as folder:
        recorders = {level: _recorder(engine, level, Path(folder) / level) for level in ("step", "function")}
        for run in range(repeats):
            prompt = [(7 * run + k) % 500 + 5 for k in range(prompt_len)]
            engine.add_request(str(run), {"prompt_token_ids": prompt}, params)
            engine.step()
            while engine.has_unfinished_requests():
                for level, values in times.items():
                    values += _timed_turn(engine, recorders.get(level))[_SKIPPED:]
        for recorder in recorders.values():
            recorder.log.close()
        sizes = {
            level: (Path(folder) / level).stat().st_size / (recorder.log.step + 1)
            for level, recorder in recorders.items()
        }
    engine.shutdown()
    base = statistics.median(times["off"])
    return [
        {
            "model": Path(model).name,
            "level": level,
            "steps": len(values),
            "decode_step_ms": round(statistics.median(values) * 1e3, 3),
            "overhead": round(statistics.median(values) / base - 1, 4),
            "log_bytes_per_step": round(sizes.get(level, 0)),
        }
        for level, values in times.items()
    ]


def measure_ahead(num_requests: int, prompt_len: int, output_len: int, repeats: int = 3) -> list[dict[str, Any]]:
    """A step that is planned ahead of a device, without a log and with one of level "step".

    The device is `pretended_gpu`; the levels take turns as in `measure_decode`. Microseconds, the median step: what the
    host works, what of that it writes while it would wait for the device anyhow, and the rest, which is in the way of
    the next step wherever the device is done first.
    """
    from minivllm.bench.pretended_gpu import PretendedGPU, add_requests, make_engine

    gpu = PretendedGPU(0.0)
    engine = make_engine(gpu, num_requests, prompt_len + output_len + 2 * _BLOCK_SIZE)
    hosts: dict[str, list[float]] = {"off": [], "step": []}
    with tempfile.TemporaryDirectory() as folder:
        log = _TimedLog(Header(level="step"), Path(folder) / "log")
        recorder = Recorder(log, device="cuda", clock=gpu)
        gc.freeze()  # as `LLM.generate` does
        for run in range(repeats + 1):
            add_requests(engine, f"R{run}", num_requests, prompt_len, output_len)
            for _ in range(num_requests * (prompt_len + _BLOCK_SIZE) // 16384 + 2):  # prompts
                engine.step()
            while engine.has_unfinished_requests():
                for level in ("off", "step") if run else ("off",):
                    hosts[level] += _timed_turn(engine, recorder if level == "step" else None)[_SKIPPED:]
            if run == 0:  # only to learn what the host needs
                gpu.step_seconds = _DEVICE_PER_HOST * statistics.median(hosts["off"])
                hosts["off"].clear()
        gc.unfreeze()
        log.close()
        size = (Path(folder) / "log").stat().st_size / (log.step + 1)
    engine.shutdown()
    host_us = {level: statistics.median(of) * 1e6 for level, of in hosts.items()}
    beside_us = {"off": 0.0, "step": statistics.median(log.flush_times) * 1e6}
    return [
        {
            "level": level,
            "steps": len(hosts[level]),
            "host_us": round(host_us[level], 1),
            "beside_device_us": round(beside_us[level], 1),
            "in_the_way_us": round(host_us[level] - beside_us[level], 1),
            "overhead": round((host_us[level] - beside_us[level]) / host_us["off"] - 1, 4),
            "log_bytes_per_step": round(size if level == "step" else 0),
        }
        for level in hosts
    ]


class _TimedLog(EventLog):
    """A log that notes how long it has written each time that it was asked to."""

    def __init__(self, header: Header, path: Path) -> None:
        super().__init__(header, path)
        self.flush_times: list[float] = []

    def flush(self, is_over: Callable[[], bool] = lambda: False) -> None:
        start = time.thread_time()
        super().flush(is_over)
        self.flush_times.append(time.thread_time() - start)


def _recorder(engine: Any, level: Any, path: Path) -> Recorder:
    return Recorder(EventLog(Header(level=level), path), tokenizer=engine.tokenizer)


def _timed_turn(engine: Any, recorder: Recorder | None) -> list[float]:
    """Seconds of each of the next steps."""
    if recorder is None:
        return _step_times(engine, engine.step)
    scheduler = engine.engine_core.scheduler
    recorder.blocks.watch(scheduler.kv_cache_manager)

    def step() -> None:
        recorder.log.step += 1
        engine.step()
        recorder.end_step(scheduler)

    with recorder.installation():
        return _step_times(engine, step)


def _step_times(engine: Any, step: Callable[[], object]) -> list[float]:
    times: list[float] = []
    while engine.has_unfinished_requests() and len(times) < _TURN:
        start = time.thread_time()
        step()
        times.append(time.thread_time() - start)
    return times
