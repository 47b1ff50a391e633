"""Owns `minivllm bench throughput` and `minivllm bench latency`: tokens a second, beside others and the floor."""

from __future__ import annotations

import os
import platform
import shutil
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from minivllm import __version__
from minivllm.entrypoints.cli.bench_workloads import Sizes, choose_draws
from minivllm.entrypoints.cli.common import (
    JsonOption,
    check_outputs,
    check_rates,
    examples,
    note,
    print_json,
    stdout_console,
)
from minivllm.entrypoints.cli.errors import LackingError, user_errors


class Dtype(StrEnum):
    """Precisions that every engine has."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


ModelOption = Annotated[
    str,
    typer.Option(
        help="A model at hand, or the shape of one with random weights: llama-3.1-8b, llama-3.2-1b, qwen2.5-1.5b, "
        "qwen3-0.6b, smollm2-135m. Beside other engines a shape, or a folder in Hugging Face layout."
    ),
]
DtypeOption = Annotated[
    list[Dtype] | None,
    typer.Option(
        help="Precision, may be given twice; default: float32 on a CPU, bfloat16 on a GPU.", show_default=False
    ),
]
RepeatsOption = Annotated[int, typer.Option(min=1, help="Measured runs of each; on a CPU the engines take turns.")]
VllmOption = Annotated[Path | None, typer.Option(help="A Python with vLLM, to run beside us.")]
TransformersOption = Annotated[Path | None, typer.Option(help="A Python with transformers, to run beside us.")]
InputLenOption = Annotated[
    str | None,
    typer.Option(
        "--input-len", metavar="N|A:B", help="Tokens of each prompt, drawn from A to B; of a named workload: at most N."
    ),
]
OutputLenOption = Annotated[
    str | None,
    typer.Option(
        "--output-len", metavar="N|A:B", help="Tokens of each output, drawn from A to B; of a named one: at most N."
    ),
]
PrefixOption = Annotated[int, typer.Option(min=0, help="Tokens that all prompts share, before their own.")]
RateOption = Annotated[
    float | None, typer.Option(help="Requests that arrive in a second, at random; default: all at once.")
]
ArgumentOption = Annotated[
    list[str] | None,
    typer.Option(
        "--engine-arg",
        metavar="NAME=VALUE",
        help="An argument of our engine, such as async_scheduling=true; may be given again.",
        show_default=False,
    ),
]
BandwidthOption = Annotated[
    float | None, typer.Option("--bandwidth-gb-s", help="What this machine reads in a second; default: measured.")
]
TraceOption = Annotated[
    Path | None, typer.Option("--trace", help="Log of one more run, with the trace on; for one workload and precision.")
]
LevelOption = Annotated[
    Literal["step", "function", "kernel"], typer.Option("--trace-level", help="How much that log records.")
]
TflopsOption = Annotated[
    float | None, typer.Option("--tflops", help="What this machine multiplies in a second; default: measured.")
]


def add_commands(group: typer.Typer) -> None:
    """Add both commands to `minivllm bench`."""
    lines = (
        "minivllm bench throughput",
        "minivllm bench throughput --requests 4 --input-len 8:16 --output-len 4 --json",
    )
    group.command("throughput", epilog=examples(*lines))(user_errors(throughput))
    lines = (
        "minivllm bench latency --repeats 1",
        "minivllm bench latency --requests 2 --input-len 16 --output-len 8 --json",
    )
    group.command("latency", epilog=examples(*lines))(user_errors(latency))


def throughput(
    model: ModelOption = "stories-5m",
    workload: Annotated[
        str | None,
        typer.Option(
            help="batch (32 requests, 64 to 256 tokens in, 64 out, greedy; the default), W1 (256 requests, 100 to 1024 "
            "in and out), W2 (1024 of 512 in, 128 out), W4 (64 prompts of 4096, one token each), W5 (256 that share "
            "1792 tokens).",
            show_default=False,
        ),
    ] = None,
    requests: Annotated[
        int | None, typer.Option(min=1, help="How many; of a named workload: the first so many.")
    ] = None,
    input_len: InputLenOption = None,
    output_len: OutputLenOption = None,
    shared_prefix: PrefixOption = 0,
    rate: RateOption = None,
    dtype: DtypeOption = None,
    repeats: RepeatsOption = 3,
    engine_arg: ArgumentOption = None,
    bandwidth: BandwidthOption = None,
    tflops: TflopsOption = None,
    vllm_python: VllmOption = None,
    transformers_python: TransformersOption = None,
    trace: TraceOption = None,
    trace_level: LevelOption = "step",
    as_json: JsonOption = False,
) -> None:
    """Time many requests, against the floor of bytes and operations, and say where the rest of the time went."""
    sizes = Sizes([requests] if requests is not None else None, input_len, output_len, shared_prefix, rate)
    pythons = {"vllm": vllm_python, "transformers": transformers_python}
    log = (str(trace), trace_level) if trace is not None else None
    _run("throughput", model, workload, sizes, dtype, repeats, engine_arg, (bandwidth, tflops), pythons, log, as_json)


def latency(
    model: ModelOption = "stories-5m",
    workload: Annotated[
        str | None,
        typer.Option(
            help="single (one request, 64 tokens in, then 128 tokens one by one; the default), or W3 (1, 8, 64 and 256 "
            "requests, 32 in, 256 out).",
            show_default=False,
        ),
    ] = None,
    requests: Annotated[
        list[int] | None, typer.Option(min=1, help="How many at once; may be given again.", show_default=False)
    ] = None,
    input_len: InputLenOption = None,
    output_len: OutputLenOption = None,
    dtype: DtypeOption = None,
    repeats: RepeatsOption = 3,
    engine_arg: ArgumentOption = None,
    bandwidth: BandwidthOption = None,
    tflops: TflopsOption = None,
    vllm_python: VllmOption = None,
    transformers_python: TransformersOption = None,
    trace: TraceOption = None,
    trace_level: LevelOption = "step",
    as_json: JsonOption = False,
) -> None:
    """Time a token: the first, and each further one, greedy; against the floor, and where the rest of the time went."""
    sizes = Sizes(requests, input_len, output_len)
    pythons = {"vllm": vllm_python, "transformers": transformers_python}
    log = (str(trace), trace_level) if trace is not None else None
    _run("latency", model, workload, sizes, dtype, repeats, engine_arg, (bandwidth, tflops), pythons, log, as_json)


def _run(
    bench: str,
    model: str,
    workload: str | None,
    sizes: Sizes,
    dtypes: list[Dtype] | None,
    repeats: int,
    engine_args: list[str] | None,
    rates: tuple[float | None, float | None],
    peers: dict[str, Path | None],
    trace: tuple[str, str] | None,
    as_json: bool,
) -> None:
    for name, python in peers.items():
        if python is not None and shutil.which(python) is None:
            option = f"--{name}-python"
            raise LackingError(f"{option} {python}: there is no such program; name a Python that has it")
    check_rates(*rates)
    draws = choose_draws(bench, workload, sizes)
    from minivllm.bench.generation_plan import Plan, run_plan
    from minivllm.entrypoints.cli.bench_view import print_generation
    from minivllm.entrypoints.progress import make_progress

    if trace is not None and len(draws) * len(dtypes or ["auto"]) > 1:
        raise typer.BadParameter("--trace is for one workload in one precision, and these are more")
    arguments = parsed_arguments(engine_args or [])
    if trace is not None and arguments.get("multiprocess"):
        raise typer.BadParameter("--trace needs the engine's core in the same process: leave multiprocess out")
    check_outputs({"--trace": Path(trace[0]) if trace else None})
    names = [one.value for one in dtypes] if dtypes else None
    plan = Plan(bench, model, draws, names, repeats, arguments, rates, peers, trace)
    note("measuring what this machine can do, then loading the engines")
    with make_progress("runs", plan.num_runs, True) as progress:
        results, floors, device = run_plan(plan, progress.advance)
    machine = {
        "processor": processor(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "minivllm": __version__,
    } | ({"gpu": device} if device else {})
    if as_json:
        told = {"model": plan.arguments["model"], "repeats": repeats, "drawn": [draw(0).described() for draw in draws]}
        document = {"bench": bench, "engine": "minivllm", "machine": machine, "workload": told}
        print_json("bench", {**document, "results": results, "floor": floors})
        return
    print_generation(stdout_console(None), bench, results, floors)
    note(", ".join(f"{key} {value}" for key, value in machine.items()))


def parsed_arguments(texts: list[str]) -> dict[str, Any]:
    """NAME=VALUE, with values as in JSON; what is none is a text."""
    import json

    arguments: dict[str, Any] = {}
    for text in texts:
        name, is_given, value = text.partition("=")
        if not is_given or not name:
            raise typer.BadParameter(f"--engine-arg {text}: expected NAME=VALUE, such as async_scheduling=true")
        try:
            arguments[name] = json.loads(value)
        except ValueError:
            arguments[name] = value
    return arguments


def processor() -> str:
    """Its name."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.partition(": ")[2] for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
