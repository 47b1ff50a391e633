"""Owns comparing what callers of two runs felt: in milliseconds with clocks, and without in iterations and tokens.

Without clocks the time between two tokens is told as the work that was done in it: all tokens, of all requests, that
were computed from one of a request's tokens to its next. Everybody in a batch waits for all of it.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

from minivllm.analysis.answer import CannotKnowError
from minivllm.analysis.diff_numbers import RequestNumbers, RunNumbers, run_numbers
from minivllm.maps.latency import latency
from minivllm.maps.stages import has_clock, median, percentile
from minivllm.trace.reader import Log

METRICS = ("itl", "ttft", "tpot", "queue", "e2e")
_MEANS = {
    "itl": "from one token to the next",
    "ttft": "from arrival to the first token",
    "tpot": "a token after the first, on average",
    "queue": "from arrival to the first computed tokens",
    "e2e": "from arrival to the last token",
}


@dataclass(frozen=True, slots=True)
class MetricDiff:
    """A metric of two runs.

    Attributes:
        name, unit: Which, in what.
        meaning: What it measures.
        a, b: Each run's `median`, `p99` and `max`, None where there is nothing to measure.
        requests: Of each request in both runs, its value (the largest of several) in each.
    """

    name: str
    unit: str
    meaning: str
    a: dict[str, float | None]
    b: dict[str, float | None]
    requests: dict[str, tuple[float | None, float | None]]

    def as_dict(self) -> dict[str, Any]:
        requests = [{"request": i, "a": a, "b": b} for i, (a, b) in self.requests.items()]
        return {"name": self.name, "unit": self.unit, "a": self.a, "b": self.b, "requests": requests}


def compare_metric(name: str, a: Log, b: Log) -> MetricDiff:
    """Compare a metric of two runs: in time if both logs have clocks, else in what logs without clocks know.

    Raises:
        CannotKnowError: Neither log holds what the metric is made of.
    """
    timed = has_clock(a) and has_clock(b)
    values_a, values_b = (_timed(name, log) if timed else _counted(name, run_numbers(log)) for log in (a, b))
    if not any(values_a.values()) and not any(values_b.values()):
        raise CannotKnowError(f"the logs cannot say: no request of them has a value of {name} (update, schedule)")
    unit = "ms" if timed else "tokens of work" if name in ("itl", "tpot") else "iterations"
    both = {i: (_most(values_a[i]), _most(values_b[i])) for i in values_a if i in values_b}
    return MetricDiff(name, unit, _MEANS[name], _summary(values_a), _summary(values_b), both)


def _most(values: list[float]) -> float | None:
    return max(values, default=None)


def _summary(values: dict[str, list[float]]) -> dict[str, float | None]:
    numbers = [number for of_request in values.values() for number in of_request]
    return {"median": median(numbers), "p99": percentile(numbers, 99), "max": max(numbers, default=None)}


def _timed(name: str, log: Log) -> dict[str, list[float]]:
    key = f"{name}s_ms" if name == "itl" else f"{name}_ms"
    rows = latency(log)["requests"]
    return {row["request"]: row[key] if name == "itl" else [] if row[key] is None else [row[key]] for row in rows}


def _counted(name: str, run: RunNumbers) -> dict[str, list[float]]:
    return {request: _counted_of(name, entry, run) for request, entry in run.requests.items()}


def _counted_of(name: str, entry: RequestNumbers, run: RunNumbers) -> list[float]:
    steps = list(dict.fromkeys(entry.emitted_in))
    if name == "queue":
        return [] if entry.waited is None else [entry.waited]
    if name == "ttft":
        return [entry.first_token + 1 - entry.arrived] if entry.first_token is not None else []
    if name == "e2e":
        return [steps[-1] + 1 - entry.arrived] if steps else []
    gaps = [sum(run.tokens_per_step[a + 1 : b + 1]) for a, b in itertools.pairwise(steps)]
    if name == "tpot":
        return [sum(gaps) / (len(entry.output) - 1)] if gaps else []
    return [float(gap) for gap in gaps]
