"""Owns timing the kernels: against the floor that their bytes and operations set on this very GPU.

    floor = max(bytes / bandwidth, operations / rate)         both measured first, on large tensors

Copies of the work are recorded in one graph and replayed, so that neither launches nor a cache flatter or spoil it.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch

from minivllm.bench.kernel_cases import Case, Run

_REPLAYS = 5
_ROUNDS = 5


@dataclass(frozen=True, slots=True)
class Ceilings:
    """What this GPU can do.

    Attributes:
        bytes_per_second: Read and written, whichever way is the fastest.
        flops_per_second: Of a product of large bfloat16 matrices.
    """

    bytes_per_second: float
    flops_per_second: float


@dataclass(frozen=True, slots=True)
class CaseResult:
    """Times in microseconds.

    Attributes:
        kernel, size: What was run.
        us: Median over the rounds.
        spread_us: Slowest less fastest round.
        floor_us: What bytes and operations need at least.
        share_of_floor: floor_us / us.
        tera_per_second: Terabytes a second, or tera-operations where those set the floor.
        unit: "TB/s" or "TFLOP/s".
        torch_us: PyTorch's own operations on the same data; None where there are none, or they failed.
    """

    kernel: str
    size: str
    us: float
    spread_us: float
    floor_us: float
    share_of_floor: float
    tera_per_second: float
    unit: str
    torch_us: float | None


def measure_ceilings(device: torch.device) -> Ceilings:
    """Read and copy 2 GiB, and multiply two matrices of 8192 x 8192, random: on zeros a GPU is faster than on data.

    The best of three passes over memory counts: a copy that the driver makes is slower than a kernel's on an H200 (2.7
    against 4.2 TB/s), and what only reads is the fastest.
    """
    source = torch.randint(0, 2**31 - 1, (2**29,), dtype=torch.int32, device=device)
    target = torch.empty_like(source)
    highest = torch.empty((), dtype=torch.int32, device=device)
    num_bytes = source.numel() * source.itemsize
    passes: list[tuple[int, Run]] = [
        (2 * num_bytes, lambda: target.copy_(source)),
        (2 * num_bytes, lambda: torch.bitwise_not(source, out=target)),
        (num_bytes, lambda: torch.amax(source, 0, out=highest)),
    ]
    rates = [moved / time_runs([run])[0] * 1e6 for moved, run in passes]
    left, right = (torch.randn(8192, 8192, device=device, dtype=torch.bfloat16) for _ in range(2))
    product = torch.empty_like(left)
    matmul_us, _ = time_runs([lambda: torch.mm(left, right, out=product)])
    return Ceilings(max(rates), 2 * 8192**3 / matmul_us * 1e6)


def run_cases(cases: Iterable[Case], ceilings: Ceilings) -> Iterator[CaseResult]:
    """Time case after case; each frees its memory before the next."""
    for case in cases:
        yield run_case(case, ceilings)
        torch.cuda.empty_cache()


def run_case(case: Case, ceilings: Ceilings) -> CaseResult:
    us, spread = time_runs([case.make() for _ in range(case.copies)])
    torch_us = None
    if case.make_torch is not None:
        torch.cuda.empty_cache()
        torch_us = round(time_runs([case.make_torch() for _ in range(case.copies)])[0], 2)
    bytes_us = case.num_bytes / ceilings.bytes_per_second * 1e6
    flops_us = case.flops / ceilings.flops_per_second * 1e6
    is_arithmetic = flops_us > bytes_us
    work = case.flops if is_arithmetic else case.num_bytes
    return CaseResult(
        kernel=case.kernel,
        size=case.size,
        us=round(us, 2),
        spread_us=round(spread, 2),
        floor_us=round(max(bytes_us, flops_us), 2),
        share_of_floor=round(max(bytes_us, flops_us) / us, 3),
        tera_per_second=round(work / us / 1e6, 3),
        unit="TFLOP/s" if is_arithmetic else "TB/s",
        torch_us=torch_us,
    )


def time_runs(runs: list[Run]) -> tuple[float, float]:
    """Microseconds of one run, the median over rounds, and their spread. One graph holds all runs."""
    for run in runs:
        run()  # compiles, and lets libraries make their handles, before anything is recorded
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for run in runs:
            run()
    graph.replay()
    times = []
    for _ in range(_ROUNDS):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(_REPLAYS):
            graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3 / _REPLAYS / len(runs))
    return statistics.median(times), max(times) - min(times)
