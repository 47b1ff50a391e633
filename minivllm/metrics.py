"""Owns the engine's metrics: vLLM's names under the prefix `minivllm:`, in a Prometheus registry of their own.

They are recorded in the frontend, from what callers get and from the statistics that come with the core's outputs. A
request's time runs from its arrival over its first schedule and its first token to its last one.

Upstream: vllm/v1/metrics/loggers.py::PrometheusStatLogger and vllm/v1/metrics/stats.py.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from minivllm.config import CacheConfig, VllmConfig
from minivllm.core.messages import SchedulerStats
from minivllm.core.request import FinishReason
from minivllm.outputs import RequestStateStats
from minivllm.sampling_params import SamplingParams

_FIRST_TOKEN = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160)
_NEXT_TOKEN = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 10, 20)
_LATENCY = (0.01, 0.03, 0.1, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920)
_STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
_COMPLETIONS = (1, 2, 5, 10, 20)


class _Histogram(Histogram):
    """Takes the same value many times at once: that is what a step of decodes has to tell."""

    def observe_many(self, amount: float, count: int) -> None:
        self._sum.inc(amount * count)
        self._buckets[bisect_left(self._upper_bounds, amount)].inc(count)


@dataclass(slots=True)
class RequestTimes:
    """When what happened to one request, in seconds of the monotonic clock; 0 for not yet."""

    arrival: float = 0.0
    scheduled: float = 0.0
    first_token: float = 0.0
    last_token: float = 0.0
    # By the wall clock: the only time that means something outside this process.
    arrival_time: float = 0.0

    def told(self, num_generation_tokens: int) -> RequestStateStats:
        """What a caller gets to see of them."""
        latency = self.first_token - self.arrival if self.first_token else 0.0
        times = (self.arrival_time, self.scheduled, self.first_token, self.last_token)
        return RequestStateStats(num_generation_tokens, *times, latency)


class EngineMetrics:
    """The metrics of one engine.

    Args:
        model_name: Label of every metric.
        max_model_len: Bounds the buckets that count tokens.

    Attributes:
        registry: Where they are; `prometheus_client` can serve it.
    """

    def __init__(self, model_name: str, max_model_len: int) -> None:
        self.registry = CollectorRegistry()
        self._labels = {"model_name": model_name, "engine": "0"}
        self._totals = {"prefix_cache_queries": 0, "prefix_cache_hits": 0, "num_preemptions": 0}
        self._num_new_tokens = 0
        # How many requests waited how long for the tokens of this step: whoever runs in every step, equally long.
        self._new_latencies: dict[float, int] = {}
        lengths = _buckets_1_2_5(max_model_len)

        self._running = self._gauge("num_requests_running", "Requests that run.")
        self._waiting = self._gauge("num_requests_waiting", "Requests that wait for their turn.")
        by_reason = Gauge(
            "minivllm:num_requests_waiting_by_reason",
            "Those that wait for room (capacity), and those that were passed over (deferred).",
            [*self._labels, "reason"],
            registry=self.registry,
        )
        self._waiting_by_reason = {
            reason: by_reason.labels(**self._labels, reason=reason) for reason in ("capacity", "deferred")
        }
        self._kv_usage = self._gauge("kv_cache_usage_perc", "Share of the KV cache that requests hold; 1 is all.")
        self._counters = {
            "prefix_cache_queries": self._counter("prefix_cache_queries", "Tokens looked up in the prefix cache."),
            "prefix_cache_hits": self._counter("prefix_cache_hits", "Tokens found in the prefix cache."),
            "num_preemptions": self._counter("num_preemptions", "Requests that lost their blocks to others."),
        }
        self._prompt_tokens = self._counter("prompt_tokens", "Prompt tokens of requests with a first token.")
        self._cached_tokens = self._counter("prompt_tokens_cached", "Those of them that came from the prefix cache.")
        by_source = Counter(
            "minivllm:prompt_tokens_by_source",
            "Prompt tokens that were computed, and those that the prefix cache had.",
            [*self._labels, "source"],
            registry=self.registry,
        )
        self._prompt_tokens_by_source = {
            source: by_source.labels(**self._labels, source=source) for source in ("local_compute", "local_cache_hit")
        }
        self._generation_tokens = self._counter("generation_tokens", "Tokens generated.")
        self._success = Counter(
            "minivllm:request_success",
            "Requests that ended, by reason.",
            [*self._labels, "finished_reason"],
            registry=self.registry,
        )
        self._step_tokens = self._histogram("iteration_tokens_total", "Tokens of a step.", _STEP_TOKENS)
        self._request_prompt = self._histogram("request_prompt_tokens", "Tokens of a prompt.", lengths)
        self._request_generation = self._histogram("request_generation_tokens", "Tokens of an output.", lengths)
        self._prefill_computed = self._histogram(
            "request_prefill_kv_computed_tokens", "Tokens of a prompt that were computed, not cached.", lengths
        )
        self._longest = self._histogram(
            "request_max_num_generation_tokens", "Tokens of the longest completion of a request.", lengths
        )
        self._n = self._histogram("request_params_n", "Completions asked for.", _COMPLETIONS)
        self._max_tokens = self._histogram("request_params_max_tokens", "Output limit asked for.", lengths)
        self._first_token = self._histogram("time_to_first_token_seconds", "Arrival to first token.", _FIRST_TOKEN)
        self._next_token = self._histogram("inter_token_latency_seconds", "Token to token.", _NEXT_TOKEN)
        self._per_token = self._histogram(
            "request_time_per_output_token_seconds", "Decode time over tokens, per request.", _NEXT_TOKEN
        )
        self._e2e = self._histogram("e2e_request_latency_seconds", "Arrival to last token.", _LATENCY)
        self._queue = self._histogram("request_queue_time_seconds", "Arrival to first schedule.", _LATENCY)
        self._prefill = self._histogram("request_prefill_time_seconds", "First schedule to first token.", _LATENCY)
        self._decode = self._histogram("request_decode_time_seconds", "First token to last.", _LATENCY)
        self._inference = self._histogram("request_inference_time_seconds", "First schedule to last token.", _LATENCY)

    def record_arrival(self) -> RequestTimes:
        """A request came. Returns its times, which the other methods take."""
        return RequestTimes(arrival=time.monotonic(), arrival_time=time.time())

    def record_step(self, stats: SchedulerStats) -> None:
        """What the core counted."""
        self._running.set(stats.num_running_reqs)
        self._waiting.set(stats.num_waiting_reqs)
        skipped = stats.num_skipped_waiting_reqs
        self._waiting_by_reason["capacity"].set(stats.num_waiting_reqs - skipped)
        self._waiting_by_reason["deferred"].set(skipped)
        self._kv_usage.set(stats.kv_cache_usage)
        for name, counter in self._counters.items():
            total = getattr(stats, name)
            counter.inc(total - self._totals[name])
            self._totals[name] = total
        for num_tokens in stats.step_tokens:
            self._step_tokens.observe(num_tokens)

    def record_first_token(self, times: RequestTimes, now: float, prompt_len: int, num_cached_tokens: int) -> None:
        """A step brought the first token of a request.

        Args:
            times: Of the request.
            now: When the step ended.
            prompt_len: Of the request.
            num_cached_tokens: Those of its prompt that were found in the cache.
        """
        times.first_token = now
        self._prompt_tokens.inc(prompt_len)
        self._cached_tokens.inc(num_cached_tokens)
        self._prompt_tokens_by_source["local_compute"].inc(prompt_len - num_cached_tokens)
        self._prompt_tokens_by_source["local_cache_hit"].inc(num_cached_tokens)
        self._first_token.observe(now - times.arrival)

    def note_tokens(self, times: RequestTimes, now: float, num_tokens: int) -> None:
        """A step brought tokens for a request. They are counted by `record_tokens`, with those of all the others.

        Args:
            times: Of the request.
            now: When the step ended.
            num_tokens: How many it brought.
        """
        self._num_new_tokens += num_tokens
        if times.last_token:
            latency = now - times.last_token
            self._new_latencies[latency] = self._new_latencies.get(latency, 0) + 1
        times.last_token = now

    def record_tokens(self) -> None:
        """Count what was noted since the last time."""
        self._generation_tokens.inc(self._num_new_tokens)
        for latency, count in self._new_latencies.items():
            self._next_token.observe_many(latency, count)
        self._num_new_tokens, self._new_latencies = 0, {}

    def record_end(
        self,
        times: RequestTimes,
        reason: FinishReason,
        prompt_len: int,
        num_cached_tokens: int,
        num_tokens: int,
    ) -> None:
        """A completion ended.

        Args:
            times: Of the request.
            reason: Why it ended.
            prompt_len: Tokens of its prompt.
            num_cached_tokens: Those of them that were found in the cache.
            num_tokens: Tokens of its output.
        """
        self._success.labels(**self._labels, finished_reason=str(reason)).inc()
        self._request_prompt.observe(prompt_len)
        self._request_generation.observe(num_tokens)
        if times.first_token == 0.0:
            return  # it was given up before it brought anything
        self._prefill_computed.observe(prompt_len - num_cached_tokens)
        self._e2e.observe(times.last_token - times.arrival)
        scheduled = times.scheduled or times.first_token
        self._queue.observe(scheduled - times.arrival)
        self._prefill.observe(times.first_token - scheduled)
        self._decode.observe(times.last_token - times.first_token)
        self._inference.observe(times.last_token - scheduled)
        if num_tokens > 1:
            self._per_token.observe((times.last_token - times.first_token) / (num_tokens - 1))

    def record_request(self, params: SamplingParams, n: int, longest: int) -> None:
        """All completions of a request have ended.

        Args:
            params: What was asked for.
            n: How many completions there were.
            longest: Tokens of the longest of them.
        """
        if params.max_tokens is not None:
            self._max_tokens.observe(params.max_tokens)
        self._n.observe(n)
        self._longest.observe(longest)

    def record_cache_config(self, cache_config: CacheConfig) -> None:
        """How the KV cache is cut; its number of blocks is known when the core is ready."""
        facts = {
            "block_size": cache_config.block_size,
            "num_gpu_blocks": cache_config.num_gpu_blocks,
            "enable_prefix_caching": cache_config.enable_prefix_caching,
            "kv_cache_memory_bytes": cache_config.kv_cache_memory_bytes,
            "gpu_memory_utilization": cache_config.gpu_memory_utilization,
        }
        info = Gauge(
            "minivllm:cache_config_info", "Settings of the KV cache.", ["engine", *facts], registry=self.registry
        )
        info.labels(engine=self._labels["engine"], **facts).set(1)

    def text(self) -> str:
        """Everything, in the format that Prometheus reads."""
        return generate_latest(self.registry).decode()

    def _gauge(self, name: str, what: str) -> Gauge:
        return Gauge(f"minivllm:{name}", what, [*self._labels], registry=self.registry).labels(**self._labels)

    def _counter(self, name: str, what: str) -> Counter:
        return Counter(f"minivllm:{name}", what, [*self._labels], registry=self.registry).labels(**self._labels)

    def _histogram(self, name: str, what: str, buckets: Sequence[float]) -> _Histogram:
        histogram = _Histogram(f"minivllm:{name}", what, [*self._labels], registry=self.registry, buckets=buckets)
        return histogram.labels(**self._labels)


def make_metrics(vllm_config: VllmConfig, model_name: str | None = None) -> EngineMetrics:
    """The metrics of an engine with these settings; the model can have another name in them."""
    return EngineMetrics(model_name or vllm_config.model_config.model, vllm_config.scheduler_config.max_model_len)


def _buckets_1_2_5(largest: int) -> list[int]:
    """1, 2, 5, 10, 20, 50 ... up to the largest."""
    steps = (digit * 10**exponent for exponent in range(len(str(largest))) for digit in (1, 2, 5))
    return [step for step in steps if step <= largest] or [largest]
