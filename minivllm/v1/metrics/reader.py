"""Names of vllm/v1/metrics/reader.py."""

from minivllm.metrics_reader import Counter, Gauge, Histogram, Metric, Vector, get_metrics_snapshot

__all__ = ["Counter", "Gauge", "Histogram", "Metric", "Vector", "get_metrics_snapshot"]
