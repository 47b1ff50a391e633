"""Owns metrics as a program reads them: a snapshot in plain objects, with vLLM's types.

Upstream: vllm/v1/metrics/reader.py.
"""

from __future__ import annotations

from dataclasses import dataclass

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.samples import Sample


@dataclass
class Metric:
    """One metric with one set of labels."""

    name: str
    labels: dict[str, str]


@dataclass
class Counter(Metric):
    """A whole number that only grows."""

    value: int


@dataclass
class Vector(Metric):
    """Whole numbers by position. vLLM has one for drafts; nothing here makes one yet."""

    values: list[int]


@dataclass
class Gauge(Metric):
    """A number that goes up and down."""

    value: float


@dataclass
class Histogram(Metric):
    """How often values up to each limit were seen: {"0.1": 3, ..., "+Inf": 9}; `count` and `sum` of all values."""

    count: int
    sum: float
    buckets: dict[str, int]


def get_metrics_snapshot(registry: CollectorRegistry) -> list[Metric]:
    """Everything in a registry, as it is now."""
    return [metric for family in registry.collect() for metric in _metrics_of(family)]


def _metrics_of(family: Family) -> list[Metric]:
    if family.type == "gauge":
        return [Gauge(family.name, dict(s.labels), s.value) for s in family.samples]
    if family.type == "counter":
        totals = [s for s in family.samples if s.name == f"{family.name}_total"]
        return [Counter(family.name, dict(s.labels), int(s.value)) for s in totals]
    assert family.type == "histogram", f"{family.name} is a {family.type}, which nobody here makes"
    return _histograms(family)


def _histograms(family: Family) -> list[Metric]:
    """Prometheus tells a histogram as samples of three kinds; here one object for each set of labels."""
    by_labels: dict[tuple[tuple[str, str], ...], list[Sample]] = {}
    for sample in family.samples:
        labels = {name: value for name, value in sample.labels.items() if name != "le"}
        by_labels.setdefault(tuple(sorted(labels.items())), []).append(sample)
    found: list[Metric] = []
    for key, samples in by_labels.items():
        values = {s.name.removeprefix(family.name): s.value for s in samples}
        buckets = {s.labels["le"]: int(s.value) for s in samples if s.name == f"{family.name}_bucket"}
        found.append(Histogram(family.name, dict(key), int(values["_count"]), values["_sum"], buckets))
    return found
