"""Owns finding better tilings: each kernel on its sizes, in all settings that are worth a try, against the one it has.

    python -m minivllm.bench.tuning --warm 0/14 & ... --warm 13/14      compile everything, in as many processes
    python -m minivllm.bench.tuning --out tuning.jsonl                  then time it, and say what is best

A kernel's rule for its tiling is a function of its own module. A setting takes the place of what that function returns
for one run, so a winner is written back by changing the rule. Before a setting is timed, its result is compared with
that of the rule: a fast kernel that computes something else is not a winner.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from minivllm.bench.kernel_cases import (
    Case,
    Run,
    decode_case,
    fused_cases,
    linear_cases,
    llama_8b,
    prefill_case,
    qwen3_06b,
)
from minivllm.kernels import fused_linear, paged_decode, paged_prefill, skinny_linear
from minivllm.kernels.triton_guard import next_power_of_2

# How far results may be apart, of the largest number: both are rounded to bfloat16, and sums have other orders.
_TOLERANCE = 0.02
# What is beyond this cannot be compiled for any GPU that we know; 227 KB on Hopper.
_SHARED_BYTES = 220 * 1024


@dataclass(frozen=True, slots=True)
class Setting:
    """Names in modules, and what stands there for one run.

    Attributes:
        name: For a reader, such as "tile 64, 4 warps, 3 stages".
        places: (module, name, value) of each.
    """

    name: str
    places: tuple[tuple[Any, str, Any], ...] = ()

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Put the values there, and back what was there before."""
        with ExitStack() as stack:
            for module, name, value in self.places:
                stack.enter_context(patch.object(module, name, value))
            yield


AS_IT_IS = Setting("as it is")


@dataclass(frozen=True, slots=True)
class Sweep:
    """One kernel on one size, and the settings to try. They take turns on the same data."""

    case: Case
    settings: list[Setting]


@dataclass(frozen=True, slots=True)
class Outcome:
    """A sweep's result; times in microseconds.

    Attributes:
        kernel, size: What ran.
        as_it_is_us, best_us: By the kernel's own rule, and in the best setting.
        best: That setting; "as it is" if none was faster.
        floor_us: What bytes and operations need at least; 0 if it is not known what the GPU can do.
        tried: Time of each setting; a text where it failed.
    """

    kernel: str
    size: str
    as_it_is_us: float
    best_us: float
    best: str
    floor_us: float
    tried: dict[str, float | str]


def decode_settings(tiles: tuple[int, ...] = (32, 64, 128), head_dim: int = 128) -> list[Setting]:
    """Tiles, warps and stages of paged decode. Parts are chosen by the rule."""
    settings = []
    for tile, warps, stages in itertools.product(tiles, (2, 4, 8), (2, 3, 4, 5)):
        if 2 * stages * tile * head_dim * 2 > _SHARED_BYTES or tile * head_dim < 512 * warps:
            continue
        tiling = paged_decode.Tiling(tile, warps, stages)
        places = ((paged_decode, "decode_tiling", _always(tiling)),)
        settings.append(Setting(f"tile {tile}, {warps} warps, {stages} stages", places))
    return settings


def part_settings() -> list[Setting]:
    """How many programs a multiprocessor has beside one for each request and KV head, in paged decode."""
    counts = (1, 2, 4, 8)
    return [Setting(f"{n} a processor", ((paged_decode, "MORE_PROGRAMS_PER_PROCESSOR", n),)) for n in counts]


def prefill_settings(rows: tuple[int, ...] = (64, 128), tiles: tuple[int, ...] = (32, 64, 128)) -> list[Setting]:
    """Query rows, key tiles, warps and stages of paged prefill."""
    settings = []
    for row, tile, warps, stages in itertools.product(rows, tiles, (4, 8), (2, 3, 4)):
        if (row + 2 * stages * tile) * 128 * 2 > _SHARED_BYTES:
            continue
        tiling = paged_prefill.Tiling(row, tile, warps, stages)
        places = ((paged_prefill, "prefill_tiling", _always(tiling)),)
        settings.append(Setting(f"{row} rows, tile {tile}, {warps} warps, {stages} stages", places))
    return settings


def gemv_settings(weight_rows: tuple[int, ...] = (1, 2, 4, 8), warps: tuple[int, ...] = (1, 2, 4, 8)) -> list[Setting]:
    """Rows of the weight and warps of the product of up to 4 rows; a tile is whole rows."""
    settings = []
    for rows, count in itertools.product(weight_rows, warps):
        tiling = partial(_gemv_tiling, rows, count)
        places = ((skinny_linear, "gemv_tiling", tiling), (fused_linear, "gemv_tiling", tiling))
        settings.append(Setting(f"{rows} weight rows, {count} warps", places))
    return settings


def _gemv_tiling(weight_rows: int, warps: int, num_rows: int, num_outputs: int, size: int) -> skinny_linear.Tiling:
    return skinny_linear.Tiling(weight_rows, next_power_of_2(size), warps)


def gemm_settings() -> list[Setting]:
    """The same of the product of 5 rows and more, with the programs that share K."""
    settings = []
    for rows, tile, warps, splits in itertools.product((16, 32, 64), (64, 128, 256), (4, 8), (1, 2, 4, 8)):
        if 4 * (rows + 64) * tile * 2 > _SHARED_BYTES:
            continue
        tiling = _always(skinny_linear.Tiling(rows, tile, warps, splits))
        places = ((skinny_linear, "gemm_tiling", tiling),)
        settings.append(Setting(f"{rows} weight rows, tile {tile}, {warps} warps, {splits} splits", places))
    return settings


def sweeps(device: torch.device, only: str = "") -> Iterator[Sweep]:
    """What is worth a try on a Qwen3-0.6B and a Llama-3.1-8B.

    Args:
        device: A GPU.
        only: "decode", "parts", "prefill", "gemv" or "gemm"; "" is all of them.
    """
    small, large = qwen3_06b(device), llama_8b(device)
    if only in ("", "decode"):
        for model in (small, large):
            for batch, context in ((1, 1024), (8, 1024), (64, 1024), (256, 256), (256, 1024)):
                yield Sweep(decode_case(model, batch, context), decode_settings())
    if only in ("", "parts"):
        for batch, context in ((1, 256), (1, 1024), (1, 4096), (8, 256), (8, 1024), (64, 256), (64, 1024)):
            yield Sweep(decode_case(small, batch, context), part_settings())
    if only in ("", "prefill"):
        for model, fresh in itertools.product((small, large), (True, False)):
            yield Sweep(prefill_case(model, 4, 4096, fresh, may_be_hopper=False), prefill_settings())
        yield Sweep(prefill_case(small, 32, 512, True, may_be_hopper=False), prefill_settings())
    if only in ("", "gemv"):
        for rows in (1, 4):
            for case in (*linear_cases(small, rows), *fused_cases(small, rows)):
                yield Sweep(case, gemv_settings())
        for case in linear_cases(large, 1):
            yield Sweep(case, gemv_settings())
    if only in ("", "gemm"):
        for rows in (8, 32):
            for case in linear_cases(small, rows):
                yield Sweep(case, gemm_settings())


def run_sweep(sweep: Sweep, time_runs: Callable[[list[Run]], float], floor_us: float = 0.0) -> Outcome:
    """Try all settings of a sweep.

    Args:
        sweep: Which.
        time_runs: Microseconds of one of several runs on different data.
        floor_us: See `Outcome`.
    """
    runs = [sweep.case.make() for _ in range(sweep.case.copies)]
    expected = _result(runs[0]).clone()
    as_it_is = time_runs(runs)
    tried: dict[str, float | str] = {AS_IT_IS.name: round(as_it_is, 2)}
    best, best_us = AS_IT_IS.name, as_it_is
    for setting in sweep.settings:
        with setting.applied():
            try:
                if (apart := _apart(_result(runs[0]), expected)) > _TOLERANCE:
                    tried[setting.name] = f"computes something else: {apart:.2g} apart"
                    continue
                us = time_runs(runs)
            except Exception as error:  # a setting that cannot be compiled is no reason to give up the others
                tried[setting.name] = f"{type(error).__name__}: {str(error).splitlines()[0][:100]}"
                continue
        tried[setting.name] = round(us, 2)
        if us < best_us:
            best, best_us = setting.name, us
    return Outcome(
        sweep.case.kernel, sweep.case.size, round(as_it_is, 2), round(best_us, 2), best, round(floor_us, 2), tried
    )


def warm_up(sweep: Sweep, shard: int, shards: int) -> int:
    """Compile a share of a sweep's settings, by running each once. Returns how many could not be compiled."""
    run, failures = sweep.case.make(), 0
    for setting in [AS_IT_IS, *sweep.settings][shard::shards]:
        with setting.applied():
            try:
                run()
            except Exception:
                failures += 1
    return failures


def _always(value: Any) -> Callable[..., Any]:
    return lambda *args, **kwargs: value


def _result(run: Run) -> torch.Tensor:
    result = run()
    assert isinstance(result, torch.Tensor), "a kernel that is tuned gives one tensor"
    return result


def _apart(got: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest difference, of the largest number; infinite where one is no number."""
    largest = float(expected.abs().max())
    apart = float((got.float() - expected.float()).abs().max()) / (largest or 1.0)
    return apart if apart == apart else float("inf")


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description="Times the kernels in other settings than their own.")
    parser.add_argument("only", nargs="?", default="", choices=["", "decode", "parts", "prefill", "gemv", "gemm"])
    parser.add_argument("--warm", metavar="I/N", help="only compile: of N processes, this is the I-th")
    parser.add_argument("--out", type=Path, help="file for one JSON line a sweep")
    options = parser.parse_args()
    device = torch.device("cuda")
    if not torch.cuda.is_available():
        parser.error("this needs a GPU, and PyTorch sees none here")
    if options.warm:
        shard, shards = map(int, options.warm.split("/"))
        print(sum(warm_up(sweep, shard, shards) for sweep in sweeps(device, options.only)), "could not be compiled")
        return
    from minivllm.bench.kernels import measure_ceilings, time_runs

    ceilings = measure_ceilings(device)
    for sweep in sweeps(device, options.only):
        case = sweep.case
        floor = max(case.num_bytes / ceilings.bytes_per_second, case.flops / ceilings.flops_per_second) * 1e6
        outcome = run_sweep(sweep, lambda runs: time_runs(runs)[0], floor)
        torch.cuda.empty_cache()
        gain = outcome.as_it_is_us / outcome.best_us - 1
        times = f"floor {outcome.floor_us:8.2f}  as it is {outcome.as_it_is_us:8.2f}  best {outcome.best_us:8.2f} us"
        print(f"{outcome.kernel:14} {outcome.size:44} {times} ({gain:+.0%}): {outcome.best}", flush=True)
        if options.out is not None:
            with options.out.open("a") as file:
                file.write(json.dumps(asdict(outcome)) + "\n")


if __name__ == "__main__":
    main()
