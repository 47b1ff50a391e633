"""`LLM.get_metrics` tells what Prometheus would read, in vLLM's types."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from minivllm import LLM, SamplingParams
from minivllm.v1.metrics.reader import Counter, Gauge, Histogram, Metric, Vector

SMALL: dict[str, Any] = {"max_model_len": 256, "num_gpu_blocks_override": 129, "block_size": 4}


@pytest.fixture(scope="module")
def metrics(tiny_model: Path) -> list[Metric]:
    with LLM(model=str(tiny_model), served_model_name="tiny", disable_log_stats=False, **SMALL) as llm:
        llm.generate(["A", "It was"], SamplingParams(temperature=0.0, max_tokens=5, ignore_eos=True))
        return llm.get_metrics()


def named(metrics: list[Metric], name: str) -> Any:
    [metric] = [metric for metric in metrics if metric.name == f"minivllm:{name}"]
    return metric


def test_counters_gauges_and_histograms_have_their_numbers(metrics: list[Metric]) -> None:
    assert named(metrics, "generation_tokens") == Counter(
        "minivllm:generation_tokens", {"model_name": "tiny", "engine": "0"}, 10
    )
    assert isinstance(named(metrics, "num_requests_running"), Gauge)
    histogram = named(metrics, "request_generation_tokens")
    assert isinstance(histogram, Histogram)
    assert (histogram.count, histogram.sum) == (2, 10.0)
    assert "le" not in histogram.labels
    buckets = list(histogram.buckets.values())
    assert buckets == sorted(buckets), "each bucket holds those below"
    assert histogram.buckets["2.0"] == 0
    assert histogram.buckets["5.0"] == histogram.buckets["+Inf"] == histogram.count


def test_a_metric_with_a_label_of_its_own_is_one_for_each_value(metrics: list[Metric]) -> None:
    reasons = {m.labels["finished_reason"]: m for m in metrics if m.name == "minivllm:request_success"}
    assert isinstance(reasons["length"], Counter)
    assert reasons["length"].value == 2


def test_everything_is_of_one_of_vllms_types(metrics: list[Metric]) -> None:
    assert metrics
    assert all(isinstance(metric, Counter | Gauge | Histogram | Vector) for metric in metrics)


def test_without_metrics_there_is_nothing_to_read(tiny_model: Path) -> None:
    llm = LLM(model=str(tiny_model), **SMALL)
    with pytest.raises(ValueError, match="disable_log_stats is True"):
        llm.get_metrics()
