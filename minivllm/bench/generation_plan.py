"""Owns what a generation benchmark does from end to end: the machine's limits, the engines, their runs, the floor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from minivllm.bench.generation import (
    Draw,
    Engine,
    Job,
    measure_in_turns,
    measure_one_by_one,
    our_python,
    runs_of,
    start_all,
)
from minivllm.bench.machine import Ceilings, measure
from minivllm.bench.shapes import model_arguments

_MOST_SEQS = 1024
# What a step may hold on a GPU: enough to keep it busy with prompts. It is vLLM's on such GPUs, too.
_GPU_BATCHED_TOKENS = 16_384


@dataclass(slots=True)
class Plan:
    """What is asked for.

    Attributes:
        bench: "throughput" or "latency".
        model: A shape's name, or a model at hand.
        draws: The workloads.
        dtypes: Precisions; None takes the device's usual one.
        repeats: Measured runs of each.
        engine_arguments: Further ones of our engine.
        rates: Gigabytes and tera-operations a second of this machine; None is measured.
        peers: Pythons of other engines.
        trace: Path and level of a log of one more run of ours; None for none.
    """

    bench: str
    model: str
    draws: list[Draw]
    dtypes: list[str] | None
    repeats: int
    engine_arguments: dict[str, Any]
    rates: tuple[float | None, float | None]
    peers: dict[str, Path | None]
    trace: tuple[str, str] | None = None

    @property
    def arguments(self) -> dict[str, Any]:
        return model_arguments(self.model)

    @property
    def device(self) -> str:
        asked: str = self.engine_arguments.get("device", "auto")
        return ("cuda" if torch.cuda.is_available() else "cpu") if asked == "auto" else asked

    @property
    def precisions(self) -> list[str]:
        return self.dtypes or ["bfloat16" if self.device == "cuda" else "float32"]

    @property
    def num_runs(self) -> int:
        """Runs of all engines, for whoever shows how far it is."""
        engines = len(self.precisions) * (1 + sum(python is not None for python in self.peers.values()))
        return runs_of(Job(self.bench, self.draws, self.repeats, {}, {}, 0), engines)


def run_plan(plan: Plan, on_run: Callable[[int], None]) -> tuple[list[dict[str, Any]], list[dict[str, Any]], str]:
    """Measure.

    Returns:
        A result of each engine, precision and workload; the floor of each of ours; the GPU's name, "" without one.

    Raises:
        ValueError: An engine could not be started.
    """
    device, dtypes = plan.device, plan.precisions
    vocab_size, shapes = _facts(plan.arguments | plan.engine_arguments, dtypes, device)
    ceilings = {dtype: _ceilings(plan.rates, device, dtype) for dtype in dtypes}
    job = Job(plan.bench, plan.draws, plan.repeats, ceilings, shapes, vocab_size, on_run, plan.trace)
    engines = _engines(plan, device)
    if device == "cuda":
        results = measure_one_by_one(job, [lambda engine=engine: Engine(*engine) for engine in engines])  # type: ignore[misc]
    else:
        started = start_all(engines)
        try:
            results = measure_in_turns(job, started)
        finally:
            for engine in started:
                engine.close()
    floors = [_floor(plan.bench, result, ceilings[result["dtype"]]) for result in results if "breakdown" in result]
    return results, floors, torch.cuda.get_device_name() if device == "cuda" else ""


def _engines(plan: Plan, device: str) -> list[tuple[str, Path, dict[str, Any]]]:
    drawn = [draw(0) for draw in plan.draws]
    settings: dict[str, Any] = {
        "max_model_len": max(workload.longest for workload in drawn),
        "max_num_seqs": min(_MOST_SEQS, max(len(workload.requests) for workload in drawn)),
        "enable_prefix_caching": all(workload.prefix_caching for workload in drawn),
    }
    if device == "cuda":
        settings |= {"max_num_batched_tokens": _GPU_BATCHED_TOKENS, "gpu_memory_utilization": 0.9}
    engines = []
    for dtype in plan.precisions:
        arguments = {**plan.arguments, "dtype": dtype, **settings}
        engines.append(("minivllm", our_python(), arguments | plan.engine_arguments))
        for name, python in plan.peers.items():
            if python is not None:
                engines.append((name, python, arguments | ({"enforce_eager": True} if device == "cpu" else {})))
    return engines


def _facts(arguments: dict[str, Any], dtypes: list[str], device: str) -> tuple[int, dict[str, dict[str, Any]]]:
    """The size of the vocabulary, and the model's shape in each precision. Raises ValueError for a wrong argument."""
    from minivllm.engine.arg_utils import EngineArgs
    from minivllm.scenarios.model_shape import model_shape

    shapes = {}
    for dtype in dtypes:
        try:
            args = EngineArgs.from_kwargs(**{**arguments, "dtype": dtype})
        except TypeError as error:
            raise ValueError(str(error)) from None
        shapes[dtype] = model_shape(args.resolve_engine_config(), device)
    return shapes[dtypes[0]]["vocab_size"], shapes


def _ceilings(rates: tuple[float | None, float | None], device: str, dtype: str) -> Ceilings:
    bandwidth, tflops = rates
    if bandwidth is not None and tflops is not None:
        return Ceilings(bandwidth * 1e9, tflops * 1e12, are_given=True)
    return measure(device, dtype)


def _floor(bench: str, result: dict[str, Any], ceilings: Ceilings) -> dict[str, Any]:
    """What the machine allows, in the figure of the benchmark."""
    told = result["breakdown"]
    floor: dict[str, Any] = {
        "dtype": result["dtype"],
        "workload": result["workload"],
        "requests": result["requests"],
        "read_gb_per_s": ceilings.bytes_per_second / 1e9,
        "multiply_gflops": ceilings.flops_per_second / 1e9,
        "are_given": ceilings.are_given,
    }
    if bench == "throughput":
        return floor | {"seconds": told["floor_s"], "output_tokens_per_s": result["output_tokens"] / told["floor_s"]}
    step_ms = told["kinds"]["decode"]["floor_s"] / told["kinds"]["decode"]["steps"] * 1e3
    return floor | {"decode_step_ms": step_ms, "decode_tokens_per_s": result["requests"] / step_ms * 1e3}
