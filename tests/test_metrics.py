"""Metrics have vLLM's names, and add up to what callers got."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from minivllm import LLM, SamplingParams
from minivllm.metrics import EngineMetrics, _buckets_1_2_5
from tests.engine.async_core import make_async_llm

SMALL: dict[str, Any] = {"max_model_len": 256, "num_gpu_blocks_override": 129, "block_size": 4}
KEPT = {**SMALL, "disable_log_stats": False}
NAMES = [
    "num_requests_running",
    "num_requests_waiting",
    "num_requests_waiting_by_reason",
    "kv_cache_usage_perc",
    "prefix_cache_queries",
    "prefix_cache_hits",
    "num_preemptions",
    "prompt_tokens",
    "prompt_tokens_cached",
    "prompt_tokens_by_source",
    "generation_tokens",
    "iteration_tokens_total",
    "time_to_first_token_seconds",
    "inter_token_latency_seconds",
    "request_time_per_output_token_seconds",
    "e2e_request_latency_seconds",
    "request_queue_time_seconds",
    "request_prefill_time_seconds",
    "request_decode_time_seconds",
    "request_inference_time_seconds",
    "request_success",
    "request_params_n",
    "request_params_max_tokens",
    "request_prompt_tokens",
    "request_generation_tokens",
    "request_prefill_kv_computed_tokens",
    "request_max_num_generation_tokens",
    "cache_config_info",
]


OWN_LABELS = ("finished_reason", "reason", "source")


def values(metrics: EngineMetrics | None) -> dict[str, float]:
    """Every number by its name, without the prefix, with the labels that only it has."""
    assert metrics is not None
    return {
        " ".join(
            [
                sample.name.removeprefix("minivllm:"),
                *(sample.labels[name] for name in OWN_LABELS if name in sample.labels),
            ]
        ): sample.value
        for family in metrics.registry.collect()
        for sample in family.samples
        if "le" not in sample.labels
    }


def test_every_name_is_there_from_the_start(tiny_model: Path) -> None:
    metrics = LLM(model=str(tiny_model), **KEPT).llm_engine.metrics
    assert metrics is not None
    families = {family.name for family in metrics.registry.collect()}
    assert families == {f"minivllm:{name}" for name in NAMES}


@pytest.mark.parametrize("settings", [{}, {"async_scheduling": True}, {"max_num_batched_tokens": 8, "max_num_seqs": 4}])
def test_numbers_add_up_to_what_callers_got(tiny_model: Path, settings: dict[str, Any]) -> None:
    llm = LLM(model=str(tiny_model), **{**KEPT, **settings})
    params = SamplingParams(temperature=1.0, seed=1, n=2, max_tokens=7, ignore_eos=True)
    outputs = llm.generate(["Once upon a time", "It was"], params)
    outputs += llm.generate("Once upon a time", SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True))
    got = values(llm.llm_engine.metrics)
    prompts = [len(output.prompt_token_ids) for output in outputs for _ in output.outputs]
    generated = [len(completion.token_ids) for output in outputs for completion in output.outputs]
    assert got["prompt_tokens_total"] == got["request_prompt_tokens_sum"] == sum(prompts)
    assert got["generation_tokens_total"] == got["request_generation_tokens_sum"] == sum(generated) == 29
    assert got["request_success_total length"] == got["e2e_request_latency_seconds_count"] == 5
    assert got["time_to_first_token_seconds_count"] == 5
    assert got["inter_token_latency_seconds_count"] == 29 - 5
    assert got["request_time_per_output_token_seconds_count"] == 4, "one token has no time between tokens"
    assert (got["request_params_n_count"], got["request_params_n_sum"]) == (3, 5)
    assert (got["request_max_num_generation_tokens_count"], got["request_max_num_generation_tokens_sum"]) == (3, 15)
    assert (got["request_params_max_tokens_count"], got["request_params_max_tokens_sum"]) == (3, 15)
    # Not the last token of each, whose KV nobody needs.
    cached = got["prompt_tokens_cached_total"]
    assert got["prefix_cache_hits_total"] == cached > 0
    assert got["prompt_tokens_by_source_total local_cache_hit"] == cached
    assert got["prompt_tokens_by_source_total local_compute"] == sum(prompts) - cached
    assert got["request_prefill_kv_computed_tokens_sum"] == sum(prompts) - cached
    assert got["prefix_cache_queries_total"] == sum(prompts)
    steps = got["iteration_tokens_total_sum"]
    assert steps >= sum(prompts) - cached + sum(generated) - 5
    assert got["num_requests_running"] == got["num_requests_waiting"] == got["kv_cache_usage_perc"] == 0
    parts = got["request_queue_time_seconds_sum"] + got["request_inference_time_seconds_sum"]
    assert got["e2e_request_latency_seconds_sum"] == pytest.approx(parts)
    parts = got["request_prefill_time_seconds_sum"] + got["request_decode_time_seconds_sum"]
    assert got["request_inference_time_seconds_sum"] == pytest.approx(parts)


def test_preemptions_are_counted(tiny_model: Path) -> None:
    llm = LLM(model=str(tiny_model), **{**KEPT, "num_gpu_blocks_override": 20, "scheduler_reserve_full_isl": False})
    llm.generate(["It was"] * 4, SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True))
    assert values(llm.llm_engine.metrics)["num_preemptions_total"] > 0


def test_who_waits_is_told_by_reason(tiny_model: Path) -> None:
    engine = LLM(model=str(tiny_model), **KEPT, max_num_seqs=2).llm_engine
    for index in range(5):
        engine.add_request(str(index), "It was", SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True))
    engine.step()
    got = values(engine.metrics)
    assert (got["num_requests_running"], got["num_requests_waiting"]) == (2, 3)
    assert got["num_requests_waiting_by_reason capacity"] == 3
    assert got["num_requests_waiting_by_reason deferred"] == 0


def test_the_longest_of_several_completions_counts(tiny_model: Path) -> None:
    llm = LLM(model=str(tiny_model), **KEPT)
    params = SamplingParams(temperature=1.5, seed=5, n=4, max_tokens=60, stop=["e", "a"], ignore_eos=True)
    [output] = llm.generate("It was", params)
    lengths = [len(completion.token_ids) for completion in output.outputs]
    assert len(set(lengths)) > 1, "they are meant to differ"
    got = values(llm.llm_engine.metrics)
    assert got["request_max_num_generation_tokens_sum"] == max(lengths)
    assert got["request_generation_tokens_sum"] == sum(lengths)


def test_the_cache_is_described(tiny_model: Path) -> None:
    metrics = LLM(model=str(tiny_model), **KEPT).llm_engine.metrics
    assert metrics is not None
    line = next(line for line in metrics.text().splitlines() if line.startswith("minivllm:cache_config_info{"))
    assert 'block_size="4"' in line
    assert 'num_gpu_blocks="129"' in line
    assert line.endswith(" 1.0")


def test_stops_and_aborts_are_told_apart(tiny_model: Path) -> None:
    async def main() -> None:
        engine = make_async_llm(tiny_model, **SMALL)
        engine.metrics = engine.output_processor.metrics = EngineMetrics("tiny", 256)
        greedy = {"temperature": 0.0, "ignore_eos": True}
        [*_, last] = [o async for o in engine.generate("A", SamplingParams(max_tokens=9, **greedy), "whole")]
        stop = last.outputs[0].text[2:4]
        async for _ in engine.generate("A", SamplingParams(max_tokens=99, stop=stop, **greedy), "stopped"):
            pass
        async for _ in engine.generate("A", SamplingParams(max_tokens=99, **greedy), "left"):
            await engine.abort("left")
        got = values(engine.metrics)
        assert [got[f"request_success_total {reason}"] for reason in ("length", "stop", "abort")] == [1, 1, 1]
        engine.shutdown()

    asyncio.run(main())


def test_no_metrics_are_kept_if_none_are_wanted(tiny_model: Path) -> None:
    llm = LLM(model=str(tiny_model), **SMALL)  # the default, as in vLLM
    assert llm.llm_engine.metrics is None
    assert llm.generate("A", SamplingParams(max_tokens=2))[0].finished


def test_buckets_count_by_1_2_5() -> None:
    assert _buckets_1_2_5(256) == [1, 2, 5, 10, 20, 50, 100, 200]
    assert _buckets_1_2_5(1) == [1]
