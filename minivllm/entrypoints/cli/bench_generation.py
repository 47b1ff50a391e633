"""Owns `minivllm bench throughput` and `minivllm bench latency`: tokens a second, beside others and the floor."""

from __future__ import annotations

import os
import platform
import shutil
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from minivllm import __version__
from minivllm.entrypoints.cli.common import JsonOption, examples, note, print_json, stdout_console
from minivllm.entrypoints.cli.errors import LackingError, user_errors

_PROMPT_TOKENS, _OUTPUT_TOKENS = 5775, 2048  # of the batch


class Dtype(StrEnum):
    """Precisions that every engine has on a CPU."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


ModelOption = Annotated[str, typer.Option(help="A model; beside other engines a folder in Hugging Face layout.")]
DtypeOption = Annotated[list[Dtype], typer.Option(help="Precision; give it twice for both.")]
RepeatsOption = Annotated[int, typer.Option(min=1, help="Rounds, in which the engines take turns.")]
VllmOption = Annotated[Path | None, typer.Option(help="A Python with vLLM, to run beside us.")]
TransformersOption = Annotated[Path | None, typer.Option(help="A Python with transformers, to run beside us.")]


def add_commands(group: typer.Typer) -> None:
    """Add both commands to `minivllm bench`."""
    for command in (throughput, latency):
        name = command.__name__
        lines = (
            f"minivllm bench {name}",
            f"minivllm bench {name} --dtype bfloat16 --json",
        )
        group.command(name, epilog=examples(*lines))(user_errors(command))


def throughput(
    model: ModelOption = "stories-5m",
    dtype: DtypeOption = [Dtype.FLOAT32],  # noqa: B006 (typer takes no other kind of list)
    repeats: RepeatsOption = 3,
    vllm_python: VllmOption = None,
    transformers_python: TransformersOption = None,
    as_json: JsonOption = False,
) -> None:
    """Time a batch: 32 requests at once, 64 to 256 prompt tokens, 64 output tokens each, greedy."""
    _run("throughput", model, [one.value for one in dtype], repeats, vllm_python, transformers_python, as_json)


def latency(
    model: ModelOption = "stories-5m",
    dtype: DtypeOption = [Dtype.FLOAT32],  # noqa: B006 (typer takes no other kind of list)
    repeats: RepeatsOption = 3,
    vllm_python: VllmOption = None,
    transformers_python: TransformersOption = None,
    as_json: JsonOption = False,
) -> None:
    """Time one request: 64 prompt tokens, then 128 tokens one after the other, greedy."""
    _run("latency", model, [one.value for one in dtype], repeats, vllm_python, transformers_python, as_json)


def _run(
    bench: str,
    model: str,
    dtypes: list[str],
    repeats: int,
    vllm_python: Path | None,
    transformers_python: Path | None,
    as_json: bool,
) -> None:
    for option, python in (("--vllm-python", vllm_python), ("--transformers-python", transformers_python)):
        if python is not None and shutil.which(python) is None:
            raise LackingError(f"{option} {python}: there is no such program; name a Python that has it")
    from minivllm.bench.floor import floor
    from minivllm.bench.generation import LATENCY, THROUGHPUT, measure
    from minivllm.models.model_zoo import find_model

    path = str(find_model(model).path)
    floors = floor(path, dtypes, _PROMPT_TOKENS, _OUTPUT_TOKENS)
    note("loading the engines, then they take turns")
    results = measure(bench, path, dtypes, repeats, vllm_python, transformers_python)
    machine = {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "minivllm": __version__,
    }
    workload = {**(THROUGHPUT if bench == "throughput" else LATENCY), "model": path, "repeats": repeats}
    if as_json:
        document = {"bench": bench, "engine": "minivllm", "machine": machine, "workload": workload}
        print_json("bench", {**document, "results": results, "floor": floors})
        return
    stdout_console(None).print(_table(bench, results, floors))
    note(", ".join(f"{key} {value}" for key, value in machine.items()))


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.partition(": ")[2] for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def _table(bench: str, results: list[dict[str, Any]], floors: list[dict[str, Any]]) -> Table:
    """Median and range of each engine, and what the machine allows."""
    figure = "output_tokens_per_s" if bench == "throughput" else "decode_tokens_per_s"
    table = Table(box=None, pad_edge=False)
    for name in (
        "engine",
        "dtype",
        "threads",
        "tokens/s",
        "range",
        "TTFT ms" if bench == "latency" else "host ms a step",
    ):
        table.add_column(name, justify="left" if name in ("engine", "dtype") else "right")
    for result in results:
        rate = result[figure]
        ttft, host = result.get("time_to_first_token_ms"), result.get("host_ms")
        last = f"{ttft['median']:.0f}" if ttft else "-"
        if bench == "throughput":
            last = f"{host['median']:.2f} of {result['decode_step_ms']['median']:.1f}" if host else "-"
        spread = f"{rate['min']:.1f} to {rate['max']:.1f}"
        engine = f"{result['engine']} {result['version']}"
        table.add_row(engine, result["dtype"], str(result["threads"]), f"{rate['median']:.1f}", spread, last)
    for one in floors:
        reason = f"{one['read_gb_per_s']:.0f} GB/s" if bench == "latency" else f"{one['multiply_gflops']:.0f} GFLOP/s"
        table.add_row("the machine allows", one["dtype"], "", f"{one[figure]:.1f}", reason, "")
    return table
