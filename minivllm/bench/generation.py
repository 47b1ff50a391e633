"""Owns timing whole generations, ours beside other engines: each in a process of its own."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from minivllm.bench.breakdown import breakdown
from minivllm.bench.machine import Ceilings
from minivllm.bench.step_observer import ObservedStep
from minivllm.bench.workloads import Workload

_SCRIPT = Path(__file__).with_name("generation_script.py")
_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # in one process it may use every core
}
# Draws a workload; another repeat has other tokens.
Draw = Callable[[int], Workload]
_WARM_UP = 99


class Engine:
    """One engine with its model loaded, waiting for work.

    Args:
        name: "minivllm", "vllm" or "transformers".
        python: The interpreter that has it.
        arguments: Of the engine, `model` and `dtype` among them.

    Raises:
        ValueError: It could not be started.
    """

    def __init__(self, name: str, python: Path, arguments: dict[str, Any]) -> None:
        self.name, self.dtype, self._python = name, arguments["dtype"], python
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed with the process); a pipe would fill up
        bin_first = os.pathsep.join((str(python.parent), os.environ.get("PATH", "")))
        try:
            self._process = subprocess.Popen(
                [str(python), str(_SCRIPT), name, json.dumps(arguments)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                text=True,
                env={**os.environ, **_ENVIRONMENT, "PATH": bin_first},
            )
        except OSError as error:
            raise ValueError(f"{python}: cannot be run: {error.strerror}") from None
        self.facts = self._answer()

    def generate(
        self, workload: Workload, observe: bool = False, trace: tuple[str, str] | None = None
    ) -> dict[str, Any]:
        """Seconds from the first prompt to the last token, and what else the engine tells.

        Args:
            workload: What is served.
            observe: Tell the steps, too. Only minivllm can.
            trace: Path and level of a log of the run. Only minivllm can.
        """
        requests = workload.requests
        job = {
            "prompts": [request.prompt for request in requests],
            "output_lens": [request.output_len for request in requests],
            "temperature": workload.temperature,
            "arrivals": [request.arrival for request in requests] if requests[-1].arrival else None,
            "observe": observe,
            "trace": trace,
        }
        assert self._process.stdin is not None, "the process was started with a pipe"
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()
        self._errors.close()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None, "the process was started with a pipe"
        line = self._process.stdout.readline()
        if not line:
            self._process.wait()
            self._errors.seek(0)
            reason = (self._errors.read().strip().splitlines() or ["no message"])[-1]
            raise ValueError(f"{self.name} could not be run with {self._python}: {reason}")
        answer: dict[str, Any] = json.loads(line)
        return answer


@dataclass(slots=True)
class Job:
    """What is measured.

    Attributes:
        bench: "throughput", or "latency": the time to the first token apart from that of each further one.
        draws: Of each workload, its batches for instance.
        repeats: Measured runs of each.
        ceilings: What the machine does at best, by precision.
        shapes: The model's shape, by precision (`minivllm.scenarios.model_shape`).
        vocab_size: Of the model.
        on_run: Is told of each run that has ended: its output tokens.
        trace: Path and level of a log of one more run; None for none.
    """

    bench: str
    draws: list[Draw]
    repeats: int
    ceilings: dict[str, Ceilings]
    shapes: dict[str, dict[str, Any]]
    vocab_size: int
    on_run: Callable[[int], None] = field(default=lambda tokens: None)
    trace: tuple[str, str] | None = None

    def draw(self, draw: Draw, repeat: int) -> Workload:
        return draw(repeat).in_vocabulary(self.vocab_size)


def runs_of(job: Job, num_engines: int) -> int:
    """How often `on_run` will be told."""
    per_repeat = 1 if job.bench == "throughput" else 2
    return num_engines * len(job.draws) * (1 + per_repeat * job.repeats) + len(job.draws)


def measure_in_turns(job: Job, engines: list[Engine]) -> list[dict[str, Any]]:
    """Let engines that are all loaded take turns, so that a machine which becomes slower makes all slower."""
    results = []
    for draw in job.draws:
        for engine in engines:
            _warm_up(job, engine, draw)
        rounds = [[_measure_once(job, engine, draw, repeat) for engine in engines] for repeat in range(job.repeats)]
        for k, engine in enumerate(engines):
            results.append(_result(job, engine, draw, [figures[k] for figures in rounds]))
    return results


def measure_one_by_one(job: Job, starts: list[Callable[[], Engine]]) -> list[dict[str, Any]]:
    """Start an engine, measure all of it, end it: two do not fit into one GPU's memory."""
    results = []
    for start in starts:
        engine = start()
        try:
            results += measure_in_turns(job, [engine])
        finally:
            engine.close()
    return results


def _warm_up(job: Job, engine: Engine, draw: Draw) -> None:
    """Whatever is compiled, captured or read for the first time. On a GPU a whole run: each size has its kernels."""
    workload = job.draw(draw, _WARM_UP)
    if engine.facts["device"] == "cpu":
        workload = workload.first(4).cut(256, 8)
    engine.generate(workload)
    job.on_run(workload.output_tokens)


def _measure_once(job: Job, engine: Engine, draw: Draw, repeat: int) -> dict[str, float]:
    workload = job.draw(draw, repeat)
    if job.bench == "throughput":
        answer = engine.generate(workload)
        job.on_run(workload.output_tokens)
        seconds = answer["seconds"]
        figures = {
            "seconds": seconds,
            "output_tokens_per_s": workload.output_tokens / seconds,
            "input_tokens_per_s": workload.input_tokens / seconds,
        }
        return figures | _felt(workload, answer)
    first = engine.generate(workload.only_first_token())["seconds"]
    job.on_run(0)
    # Other tokens, or the prompts would be found in the prefix cache.
    whole = engine.generate(job.draw(draw, repeat + 1000))["seconds"]
    job.on_run(workload.output_tokens)
    step = (whole - first) / (workload.requests[0].output_len - 1)
    batch = len(workload.requests)
    return {"decode_step_ms": step * 1e3, "decode_tokens_per_s": batch / step, "time_to_first_token_ms": first * 1e3}


def _felt(workload: Workload, answer: dict[str, Any]) -> dict[str, float]:
    """What callers felt of requests that came one after the other."""
    if "first_s" not in answer:
        return {}
    waits, gaps = [], []
    for request, first, last in zip(workload.requests, answer["first_s"], answer["last_s"], strict=True):
        waits.append((first - request.arrival) * 1e3)
        if request.output_len > 1:
            gaps.append((last - first) / (request.output_len - 1) * 1e3)
    felt = {"time_to_first_token_ms": statistics.median(waits), "slowest_first_token_ms": max(waits)}
    return felt | ({"time_per_output_token_ms": statistics.median(gaps)} if gaps else {})


def _result(job: Job, engine: Engine, draw: Draw, figures: list[dict[str, float]]) -> dict[str, Any]:
    workload = job.draw(draw, 0)
    result: dict[str, Any] = {"engine": engine.name, "dtype": engine.dtype, **engine.facts, **workload.described()}
    result |= {name: _spread([figure[name] for figure in figures]) for name in figures[0]}
    if engine.facts["can_be_watched"]:
        result["breakdown"] = _observed(job, engine, job.draw(draw, _WARM_UP + 1))
        job.on_run(workload.output_tokens)
        decode = result["breakdown"]["kinds"].get("decode")
        if job.trace is not None:
            result["trace"] = _traced(job, engine, draw, figures)
        if decode is not None:
            result |= {"host_ms": _spread([decode["host_ms"]]), "decode_step_ms": _spread([decode["step_ms"]])} | result
    return result


def _observed(job: Job, engine: Engine, workload: Workload) -> dict[str, Any]:
    """One more run, with clocks around the engine's calls. It is not among the measured ones."""
    answer = engine.generate(workload, observe=True)
    steps = [ObservedStep(**step) for step in answer["steps"]]
    machine = job.ceilings[engine.dtype]
    shape = job.shapes[engine.dtype]
    told = breakdown(steps, answer["seconds"], shape, machine.bytes_per_second, machine.flops_per_second)
    return {**told, "memory": answer["memory"]}


def _traced(job: Job, engine: Engine, draw: Draw, figures: list[dict[str, float]]) -> dict[str, Any]:
    """One more run with the trace on, and how much longer it took than the median of those without."""
    answer = engine.generate(job.draw(draw, _WARM_UP + 2), trace=job.trace)
    told: dict[str, Any] = {**answer["trace"], "seconds": answer["seconds"]}
    if "seconds" in figures[0]:
        told["overhead"] = answer["seconds"] / statistics.median(figure["seconds"] for figure in figures) - 1
    return told


def _spread(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def start_all(engines: list[tuple[str, Path, dict[str, Any]]]) -> list[Engine]:
    """Start engines, all of them or none.

    Raises:
        ValueError: One could not be started.
    """
    started: list[Engine] = []
    try:
        for name, python, arguments in engines:
            started.append(Engine(name, python, arguments))
    except BaseException:
        for engine in started:
            engine.close()
        raise
    return started


def our_python() -> Path:
    """The interpreter that runs this."""
    return Path(sys.executable)
