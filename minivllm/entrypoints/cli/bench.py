"""Owns `minivllm bench`: figures with the machine and the workload in them."""

from __future__ import annotations

import os
import platform
import shutil
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from minivllm import __version__
from minivllm.entrypoints.cli import bench_generation, bench_kernels, bench_startup
from minivllm.entrypoints.cli.common import JsonOption, examples, note, print_json, stdout_console
from minivllm.entrypoints.cli.errors import LackingError, user_errors


def register(app: typer.Typer) -> None:
    """Add the group."""
    epilog = examples("minivllm bench scheduler", "minivllm bench scheduler --vllm-python ~/vllm/bin/python --json")
    group = typer.Typer(help="Measure this engine.", epilog=epilog, no_args_is_help=True)
    group.command("scheduler", epilog=epilog)(user_errors(scheduler))
    trace_epilog = examples("minivllm bench trace-overhead --simulate-only", "minivllm bench trace-overhead --json")
    group.command("trace-overhead", epilog=trace_epilog)(user_errors(trace_overhead))
    bench_generation.add_commands(group)
    bench_kernels.add_commands(group)
    bench_startup.add_commands(group)
    app.add_typer(group, name="bench")


def scheduler(
    vllm_python: Annotated[
        Path | None, typer.Option(help="A Python with vLLM 0.27.1: its scheduler runs the same workloads beside ours.")
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Runs of each case; the best one counts.")] = 3,
    as_json: JsonOption = False,
) -> None:
    """Time the scheduler alone: microseconds a step, with no model and no trace."""
    if vllm_python is not None and shutil.which(vllm_python) is None:
        raise LackingError(f"--vllm-python {vllm_python}: there is no such program; name a Python with vLLM 0.27.1")
    from minivllm.bench.scheduler import CASES, CONTEXT_CASES, run_cases
    from minivllm.bench.vllm_scheduler import run_vllm_cases

    results = run_cases(CASES, repeats)
    context_results = run_cases(CONTEXT_CASES, repeats)
    peers: list[dict[str, Any]] = []
    if vllm_python is not None:
        note("running vLLM's scheduler on the same workloads")
        peers = run_vllm_cases(vllm_python, CASES, repeats)
    machine = _machine()
    if as_json:
        document = {"bench": "scheduler", "engine": "minivllm", "machine": machine, "workload": "see results"}
        print_json("bench", {**document, "results": results, "context": context_results, "vllm": peers, "floor": None})
        return
    console = stdout_console(None)
    console.print(_table(results, peers))
    console.print("\nThe same requests behind longer contexts (a decode step must not cost more):")
    console.print(_context_table(context_results))
    note(", ".join(f"{key} {value}" for key, value in machine.items()))


def trace_overhead(
    model: Annotated[str, typer.Option(help="Whose decode steps are traced.")] = "stories-5m",
    simulate_only: Annotated[
        bool, typer.Option("--simulate-only", help="Only the simulator: no model, no torch.")
    ] = False,
    repeats: Annotated[int, typer.Option(min=1, help="Runs of each kind; the best one counts.")] = 3,
    as_json: JsonOption = False,
) -> None:
    """Time what a trace costs: `simulate` beside the scheduler alone, a model's decode step with and without, and the
    host's part of a step that is planned ahead of a device."""
    from minivllm.bench.trace_overhead import AHEAD, DECODED, SIMULATED, measure_ahead, measure_decode, measure_simulate

    simulated = [measure_simulate(*case, repeats) for case in SIMULATED]
    decode = [] if simulate_only else measure_decode(model, *DECODED, repeats)
    ahead = [] if simulate_only else measure_ahead(*AHEAD, repeats)
    machine = _machine()
    if as_json:
        document = {"bench": "trace-overhead", "engine": "minivllm", "machine": machine, "workload": "see results"}
        print_json(
            "bench", {**document, "results": {"simulate": simulated, "decode": decode, "ahead": ahead}, "floor": None}
        )
        return
    console = stdout_console(None)
    console.print("simulate: 128 prompt tokens, 256 output tokens each; CPU time a step")
    console.print(_rows_table(simulated, ("requests", "without_us", "with_us", "ratio", "log_bytes_per_step")))
    if decode:
        console.print(f"\na decode step of one request, {model}, on one core")
        console.print(_rows_table(decode, ("level", "decode_step_ms", "overhead", "log_bytes_per_step")))
    if ahead:
        console.print(f"\na decode step of {AHEAD[0]} requests, ahead of a device that is pretended")
        columns = ("level", "host_us", "beside_device_us", "in_the_way_us", "overhead", "log_bytes_per_step")
        console.print(_rows_table(ahead, columns))
    note(", ".join(f"{key} {value}" for key, value in machine.items()))


def _machine() -> dict[str, Any]:
    return {
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "minivllm": __version__,
    }


def _rows_table(results: list[dict[str, Any]], columns: tuple[str, ...]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in columns:
        table.add_column(name.replace("_", " "), justify="right")
    for result in results:
        table.add_row(*(str(result[name]) for name in columns))
    return table


def _table(results: list[dict[str, Any]], peers: list[dict[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("running", "prefix cache", "schedule us", "update us", "decode step us"):
        table.add_column(name, justify="right")
    if peers:
        for name in ("vLLM schedule us", "vLLM update us", "vLLM / ours"):
            table.add_column(name, justify="right")
    for k, result in enumerate(results):
        decode = result["decode_schedule_us"] + result["decode_update_us"]
        row = [result["num_requests"], "on" if result["prefix_caching"] else "off"]
        row += [result["schedule_us"], result["update_us"], round(decode, 1)]
        if peers:
            peer = peers[k]
            ours, theirs = (r["schedule_us"] + r["update_us"] for r in (result, peer))
            row += [peer["schedule_us"], peer["update_us"], f"{theirs / ours:.1f}x"]
        table.add_row(*map(str, row))
    return table


def _context_table(results: list[dict[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("prompt tokens", "running", "decode step us", "plan bytes"):
        table.add_column(name, justify="right")
    for result in results:
        decode = round(result["decode_schedule_us"] + result["decode_update_us"], 1)
        smallest, largest = result["decode_plan_bytes"]
        table.add_row(str(result["prompt_len"]), str(result["num_requests"]), str(decode), f"{smallest} to {largest}")
    return table
