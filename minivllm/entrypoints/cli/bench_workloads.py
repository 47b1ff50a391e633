"""Owns what the options of `bench throughput` and `bench latency` mean as workloads. No torch."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import typer

from minivllm.bench.workloads import (
    BATCHES,
    NAMED,
    Drawn,
    Workload,
    decode,
    notebook_batch,
    notebook_single,
)

Draw = Callable[[int], Workload]

_NAMES = {"throughput": ("batch", *NAMED), "latency": ("single", "W3")}


@dataclass(frozen=True, slots=True)
class Sizes:
    """The options as they were given; None is not given.

    Attributes:
        requests: How many; of `latency` each is a batch of its own.
        input_len, output_len: "N" or "A:B".
        shared_prefix, rate: See `Drawn`.
    """

    requests: list[int] | None
    input_len: str | None
    output_len: str | None
    shared_prefix: int = 0
    rate: float | None = None

    @property
    def are_given(self) -> bool:
        return bool(self.requests or self.input_len or self.output_len or self.shared_prefix or self.rate is not None)


def choose_draws(bench: str, name: str | None, sizes: Sizes) -> list[Draw]:
    """The workloads that are meant, as functions of the repeat.

    Raises:
        BadParameter: There is no such workload, or an option that does not fit it.
    """
    if name is not None and name not in _NAMES[bench]:
        close = difflib.get_close_matches(name, _NAMES[bench], 1)
        others = f"did you mean {close[0]}?" if close else f"there are {', '.join(_NAMES[bench])}"
        raise typer.BadParameter(f"bench {bench} has no workload {name!r}; {others}")
    if sizes.rate is not None and not 0 < sizes.rate < float("inf"):
        raise typer.BadParameter(f"--rate must be a number above 0, got {sizes.rate:g}")
    if name is None and sizes.are_given:
        return _drawn(bench, sizes)
    if sizes.shared_prefix or sizes.rate is not None:
        option = "--shared-prefix" if sizes.shared_prefix else "--rate"
        raise typer.BadParameter(f"{option} is for a workload of one's own: leave --workload out")
    if name == "W3":
        return [_cut(partial(decode, batch), None, sizes) for batch in sizes.requests or BATCHES]
    first = sizes.requests[0] if sizes.requests else None
    if name is None or name in ("batch", "single"):
        return [_cut(_batch if bench == "throughput" else _single, first, sizes)]
    return [_cut(NAMED[name], first, sizes)]


def _batch(repeat: int) -> Workload:
    return notebook_batch(repeat)


def _single(repeat: int) -> Workload:
    return notebook_single(repeat)


def _drawn(bench: str, sizes: Sizes) -> list[Draw]:
    is_latency = bench == "latency"
    inputs = _lengths("--input-len", sizes.input_len or ("64" if is_latency else "64:256"), 1)
    outputs = _lengths("--output-len", sizes.output_len or ("129" if is_latency else "64"), 2 if is_latency else 1)
    if is_latency and outputs[0] != outputs[1]:
        raise typer.BadParameter("--output-len: of latency every output has the same length; give one number")
    counts = sizes.requests or [1 if is_latency else 32]
    return [Drawn(count, inputs, outputs, sizes.shared_prefix, sizes.rate).draw for count in counts]


def _cut(draw: Draw, first: int | None, sizes: Sizes) -> Draw:
    most_in, most_out = (
        None if text is None else _lengths(option, text, 1)[1]
        for option, text in (("--input-len", sizes.input_len), ("--output-len", sizes.output_len))
    )

    def drawn(repeat: int) -> Workload:
        workload = draw(repeat)
        return (workload if first is None else workload.first(first)).cut(most_in, most_out)

    return drawn


def _lengths(option: str, text: str, least: int) -> tuple[int, int]:
    low, _, high = text.partition(":")
    try:
        lengths = int(low), int(high or low)
    except ValueError:
        raise typer.BadParameter(f"{option} {text}: expected a number, or two as in 64:256") from None
    if not least <= lengths[0] <= lengths[1]:
        raise typer.BadParameter(f"{option} {text}: must be at least {least}, and the first the smaller one")
    return lengths
