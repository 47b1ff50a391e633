"""Compiles all that grids, benchmarks and engines launch for a GPU that is not here, just as a launch there would.

    python -O -m tests.kernels.precompile [--arch 90] [--early] [--full] [grid | bench | model ...]

`test_compile.py` builds chosen variants and looks at registers. This goes the real way instead: through the launches,
with what Triton makes of their arguments (a 1 becomes a constant, 16 divides a stride or does not), so that no shape of
the grids meets the compiler for the first time on a GPU. Nothing runs: results are not compared, hence -O.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time
import traceback
from typing import Any

import torch

from minivllm.bench.kernel_cases import all_cases
from minivllm.kernels import launch
from minivllm.worker.compile_ahead import compile_only, pretend_gpu
from tests.kernels.engine_launches import MODELS, run_model
from tests.kernels.grids.__main__ import NAMES
from tests.kernels.grids.setup import Setup

SHARED_BYTES = {80: 163 * 1024, 90: 227 * 1024}
PROCESSORS = {80: 108, 90: 132}


def pretend(arch: int, early: bool) -> dict[str, int]:
    """Make launches compile for an NVIDIA GPU, and check what they need. Returns a counter of what was compiled."""
    pretend_gpu(launch.Gpu(PROCESSORS[arch], arch, 3, early), ("cuda", arch, 32))
    compiled: dict[str, int] = {}

    def note(program: Any) -> None:
        if program.metadata.shared > SHARED_BYTES[arch]:
            raise RuntimeError(f"{program.metadata.name} takes {program.metadata.shared} bytes of shared memory")
        compiled[program.hash] = program.metadata.shared

    compile_only(note)
    return compiled


def run_bench() -> None:
    """What `bench kernels` launches: real sizes, on tensors without memory."""
    for case in all_cases(torch.device("meta")):
        case.make()()


def run_grid(name: str, full: bool, seed: int, arch: int) -> None:
    setup = Setup(torch.device("cpu"), full, seed, capability=arch, compile_only=True)
    importlib.import_module(f"tests.kernels.grids.{name}").run(setup)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", default=[*NAMES, "bench", *MODELS])
    parser.add_argument("--arch", type=int, default=90, choices=SHARED_BYTES)
    parser.add_argument("--early", action="store_true", help="as launched early")
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if __debug__:
        parser.error("nothing is computed here, so run python with -O: the grids' comparisons would fail")
    if options.early and options.arch < 90:
        parser.error("only from Hopper on (--arch 90) are kernels launched early")
    compiled = pretend(options.arch, options.early)
    failures = 0
    for name in options.names:
        torch.manual_seed(options.seed)
        started, before = time.monotonic(), len(compiled)
        line: dict[str, Any] = {"name": name, "arch": options.arch, "error": None}
        try:
            if name == "bench":
                run_bench()
            elif name in MODELS:
                run_model(name)
            else:
                run_grid(name, options.full, options.seed, options.arch)
        except Exception:
            failures += 1
            line["error"] = traceback.format_exc(limit=-4)
        line |= {"kernels": len(compiled) - before, "seconds": round(time.monotonic() - started, 1)}
        print(json.dumps(line), flush=True)
    return failures


if __name__ == "__main__":
    sys.exit(main())
