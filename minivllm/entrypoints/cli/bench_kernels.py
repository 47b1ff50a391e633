"""Owns `minivllm bench kernels`: each GPU kernel against the floor that its bytes and operations set."""

from __future__ import annotations

import platform
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.table import Table

from minivllm import __version__
from minivllm.entrypoints.cli.common import JsonOption, examples, note, print_json, stdout_console
from minivllm.entrypoints.cli.errors import LackingError, user_errors

_EPILOG = examples("minivllm bench kernels", "minivllm bench kernels --only decode --json")


def add_commands(group: typer.Typer) -> None:
    """Add the command to `bench`."""
    group.command("kernels", epilog=_EPILOG)(user_errors(kernels))


def kernels(
    only: Annotated[
        str, typer.Option(help="Only kernels whose name or size contains this; 'step' is whole steps.")
    ] = "",
    as_json: JsonOption = False,
) -> None:
    """Time the GPU kernels and whole decode steps, against what this GPU's memory and matrix units allow."""
    device_name = _need_a_gpu()
    import torch

    from minivllm.bench.decode_step import qwen3_06b, time_decode
    from minivllm.bench.kernel_cases import all_cases
    from minivllm.bench.kernels import measure_ceilings, run_cases

    device = torch.device("cuda")
    ceilings = measure_ceilings(device)
    cases = [case for case in all_cases(device) if only in f"{case.kernel} {case.size}"]
    if not cases and only not in "decode step":
        raise ValueError(f"--only {only}: no kernel and no size contains this; leave it out to see them all")
    results = [asdict(result) for result in run_cases(cases, ceilings)]
    steps: list[dict[str, Any]] = []
    if only in "decode step":
        model = qwen3_06b(device, torch.bfloat16)
        for batch, context in ((1, 288), (8, 288), (64, 288), (256, 288)):
            steps.append(asdict(time_decode(model, batch, context, device, torch.bfloat16)))
            torch.cuda.empty_cache()
    machine = {
        "gpu": device_name,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "minivllm": __version__,
        "bandwidth_tb_s": round(ceilings.bytes_per_second / 1e12, 2),
        "matmul_tflop_s": round(ceilings.flops_per_second / 1e12),
    }
    if as_json:
        document = {"bench": "kernels", "engine": "minivllm", "machine": machine, "workload": "see results"}
        print_json("bench", {**document, "results": results, "decode_steps": steps, "floor": "floor_us of each result"})
        return
    console = stdout_console(None)
    if results:
        console.print(_table(results))
    for step in steps:
        console.print(
            f"decode step, batch {step['batch']}, context {step['context']}: graph {step['graph_ms']:.3f} ms, "
            f"with staging and tokens {step['step_ms']:.3f} ms"
        )
    note(", ".join(f"{key} {value}" for key, value in machine.items()))


def _need_a_gpu() -> str:
    """The GPU's name."""
    import torch

    from minivllm.kernels.triton_guard import HAS_TRITON

    if not torch.cuda.is_available():
        raise LackingError(
            "bench kernels needs a GPU, and PyTorch sees none here; kernels are checked on a CPU by pytest"
        )
    if not HAS_TRITON:
        raise LackingError("bench kernels needs Triton, which is not installed; run: pip install triton")
    return torch.cuda.get_device_name()


def _table(results: list[dict[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("kernel", "size"):
        table.add_column(name)
    for name in ("us", "spread", "floor us", "% of floor", "achieved", "torch us"):
        table.add_column(name, justify="right")
    for result in results:
        table.add_row(
            result["kernel"],
            result["size"],
            str(result["us"]),
            str(result["spread_us"]),
            str(result["floor_us"]),
            f"{result['share_of_floor']:.0%}",
            f"{result['tera_per_second']} {result['unit']}",
            "-" if result["torch_us"] is None else str(result["torch_us"]),
        )
    return table
