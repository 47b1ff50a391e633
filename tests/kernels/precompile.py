"""Compiles everything that the grids launch for a GPU that is not here, just as a launch there would.

    python -O -m tests.kernels.precompile [--arch 90] [--full] [grid | bench ...]

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
from types import SimpleNamespace
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

from minivllm.bench.decode_step import qwen3_06b
from minivllm.bench.kernel_cases import all_cases
from minivllm.kernels import launch, paged_decode, paged_prefill
from minivllm.worker.cuda_graphs import StepShape
from minivllm.worker.device_step import DeviceStep, Limits
from tests.kernels.grids.__main__ import NAMES
from tests.kernels.grids.setup import Setup

SHARED_BYTES = {80: 163 * 1024, 90: 227 * 1024}
PROCESSORS = {80: 108, 90: 132}


def pretend(arch: int) -> dict[str, int]:
    """Make launches compile for an NVIDIA GPU, and check what they need. Returns a counter of what was compiled."""
    target = GPUTarget("cuda", arch, 32)
    triton.runtime.driver.set_active(
        SimpleNamespace(
            get_current_device=lambda: 0,
            get_current_stream=lambda device: 0,
            get_current_target=lambda: target,
        )
    )
    gpu = launch.Gpu(PROCESSORS[arch], arch, 3)
    for module in (paged_decode, paged_prefill):
        module.gpu_of = lambda device: gpu
    plain_run = JITFunction.run
    compiled: dict[str, int] = {}

    def run(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        kernel = plain_run(self, *args, grid=grid, warmup=True, **kwargs)
        if kernel.metadata.shared > SHARED_BYTES[arch]:
            raise RuntimeError(f"{self.__name__} takes {kernel.metadata.shared} bytes of shared memory")
        compiled[kernel.hash] = kernel.metadata.shared
        return kernel

    JITFunction.run = run
    return compiled


def run_bench() -> None:
    """What `bench kernels` launches: real sizes, on tensors without memory."""
    device = torch.device("meta")
    for case in all_cases(device):
        case.make()()
    model = qwen3_06b(device, torch.bfloat16)
    config = model.config
    for batch in (1, 8, 64, 256):
        shape = (2, 1 + batch * 20, 16, config.num_key_value_heads, config.head_dim)
        caches = [torch.empty(shape, device=device, dtype=torch.bfloat16) for _ in range(config.num_hidden_layers)]
        step = DeviceStep(model, caches, Limits(batch, max(batch, 512), 320, 16))
        step.run(StepShape(batch, batch, 1))
        step.run(StepShape(512, batch, 0))


def run_grid(name: str, full: bool, seed: int, arch: int) -> None:
    setup = Setup(torch.device("cpu"), full, seed, capability=arch, compile_only=True)
    importlib.import_module(f"tests.kernels.grids.{name}").run(setup)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", default=[*NAMES, "bench"])
    parser.add_argument("--arch", type=int, default=90, choices=SHARED_BYTES)
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if __debug__:
        parser.error("nothing is computed here, so run python with -O: the grids' comparisons would fail")
    compiled = pretend(options.arch)
    failures = 0
    for name in options.names:
        torch.manual_seed(options.seed)
        started, before = time.monotonic(), len(compiled)
        line: dict[str, Any] = {"name": name, "arch": options.arch, "error": None}
        try:
            if name == "bench":
                run_bench()
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
