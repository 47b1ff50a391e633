"""Owns how the figures of `bench throughput` and `bench latency` look on a screen."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

_WAYS = {"NONE": "launched kernel by kernel (NONE)", "PIECEWISE": "in graphs of everything but attention (PIECEWISE)"}


def print_generation(console: Console, bench: str, results: list[dict[str, Any]], floors: list[dict[str, Any]]) -> None:
    """The figures beside what the machine allows, then where the rest of the time went."""
    console.print(_figures(bench, results, floors))
    for dtype, floor in {floor["dtype"]: floor for floor in floors}.items():
        how = "as given" if floor["are_given"] else "as measured now"
        console.print(
            f"The floor: this machine reads {floor['read_gb_per_s']:,.0f} GB/s and multiplies "
            f"{floor['multiply_gflops'] / 1e3:,.3g} TFLOP/s in {dtype}, {how}."
        )
    for result in results:
        if "breakdown" in result:
            console.print(f"\n{_title(result)}: where the time of one more run went, with clocks around its calls")
            console.print(_shares(result["breakdown"]))
            console.print(_kinds(result["breakdown"]))
            for line in _remarks(result["breakdown"]):
                console.print(line)
        if "trace" in result:
            console.print(_trace(result["trace"]))


def _figures(bench: str, results: list[dict[str, Any]], floors: list[dict[str, Any]]) -> Table:
    figure = "output_tokens_per_s" if bench == "throughput" else "decode_tokens_per_s"
    second = ("seconds", "s") if bench == "throughput" else ("decode_step_ms", "ms a token")
    table = Table(box=None, pad_edge=False)
    for name in ("engine", "workload", "dtype"):
        table.add_column(name, no_wrap=True)
    for name in ("tokens/s", "range", second[1], "TTFT ms"):
        table.add_column(name, justify="right")
    for result in results:
        rate, other, first = result[figure], result[second[0]], result.get("time_to_first_token_ms")
        table.add_row(
            f"{result['engine']} {result['version']}",
            f"{result['workload']}, {result['requests']}",
            result["dtype"],
            f"{rate['median']:,.1f}",
            f"{rate['min']:,.1f} to {rate['max']:,.1f}",
            f"{other['median']:.3f}",
            f"{first['median']:.1f}" if first else "-",
        )
    for floor in floors:
        table.add_row(
            "floor",
            f"{floor['workload']}, {floor['requests']}",
            floor["dtype"],
            f"{floor[figure]:,.1f}",
            "",
            f"{floor[second[0]]:.3f}",
            "",
        )
    return table


def _title(result: dict[str, Any]) -> str:
    return f"{result['workload']}, {result['requests']} requests, {result['dtype']}"


def _shares(told: dict[str, Any]) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_column(justify="right")
    for what, key in (
        ("the floor of its steps (bytes and operations)", "floor_s"),
        ("the model beyond its floor", "beyond_floor_s"),
        ("the host, with no work for the device", "host_s"),
        ("together", "seconds"),
    ):
        table.add_row(what, f"{told[key]:.4f} s", f"{told[key] / told['seconds']:.1%}")
    return table


def _kinds(told: dict[str, Any]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("steps of")
    for name in ("steps", "tokens", "s", "ms a step", "floor ms", "model ms", "host ms", "waited ms"):
        table.add_column(name, justify="right")
    for kind, row in told["kinds"].items():
        numbers = (row[f"{name}_ms"] for name in ("step", "floor", "worked", "host", "waited"))
        table.add_row(
            kind, str(row["steps"]), str(row["tokens"]), f"{row['seconds']:.3f}", *(f"{ms:.3f}" for ms in numbers)
        )
    return table


def _trace(told: dict[str, Any]) -> str:
    cost = f", {told['overhead']:+.1%} of the median without it" if "overhead" in told else ""
    size = f"{told['steps']:,} steps, {told['events']:,} events, {told['bytes'] / 2**20:.1f} MiB"
    return f"With the trace on: {told['seconds']:.4f} s{cost}; {size} in {told['path']}"


def _remarks(told: dict[str, Any]) -> list[str]:
    padding = told["padding"]
    ran, of = padding["padded_tokens"], padding["tokens"]
    lines = [
        f"Kernels ran on {ran:,} tokens for {of:,}: {padding['share']:.1%} padding.",
        f"Attention: {', '.join(told['attention_backends'])}.",
    ]
    if memory := told["memory"]:
        asked = f", and {memory['asked_share']:.1%} was allowed" if "asked_share" in memory else ""
        lines.append(
            f"The GPU's memory: {memory['used'] / 2**30:.1f} of {memory['total'] / 2**30:.1f} GiB are taken "
            f"({memory['used_share']:.1%}{asked}), {memory['kv_cache'] / 2**30:.1f} GiB of them for keys and values."
        )
    for graph in told["graphs"]:
        how = _WAYS.get(graph["mode"], f"one graph ({graph['mode']})")
        lines.append(f"{graph['steps']} steps: {how}" + (f"; {graph['reason']}" if graph["reason"] else ""))
    return lines
