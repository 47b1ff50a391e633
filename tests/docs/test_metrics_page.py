"""docs/metrics.md lists the metrics that there are, and every one of vLLM 0.27.1 that there is not."""

from __future__ import annotations

import re
from pathlib import Path

from minivllm.config import CacheConfig
from minivllm.metrics import EngineMetrics

PAGE = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text(encoding="utf-8")
BUILT, MISSING = PAGE.split("## What is not counted")

# What the metrics endpoint of vLLM 0.27.1 has (a text model, no options), and what options add.
VLLM = set(
    re.findall(
        r"\w+",
        """
        num_requests_running num_requests_waiting num_requests_waiting_by_reason engine_sleep_state
        kv_cache_usage_perc prefix_cache_queries prefix_cache_hits external_prefix_cache_queries
        external_prefix_cache_hits mm_cache_queries mm_cache_hits num_preemptions prompt_tokens
        prompt_tokens_by_source prompt_tokens_cached generation_tokens request_success request_prompt_tokens
        request_generation_tokens iteration_tokens_total request_max_num_generation_tokens request_params_n
        request_params_max_tokens time_to_first_token_seconds inter_token_latency_seconds
        request_time_per_output_token_seconds e2e_request_latency_seconds request_queue_time_seconds
        request_inference_time_seconds request_prefill_time_seconds request_decode_time_seconds
        request_prefill_kv_computed_tokens cache_config_info estimated_flops_per_gpu_total
        estimated_read_bytes_per_gpu_total estimated_write_bytes_per_gpu_total lora_requests_info
        spec_decode_num_drafts spec_decode_num_draft_tokens spec_decode_num_accepted_tokens
        spec_decode_num_accepted_tokens_per_pos kv_block_lifetime_seconds kv_block_idle_before_evict_seconds
        kv_block_reuse_gap_seconds corrupted_requests
        """,
    )
)


def rows(text: str) -> list[list[str]]:
    return [
        line.strip("|").split("|")
        for line in text.splitlines()
        if line.startswith("| ") and not line.startswith("| metric")
    ]


def test_every_metric_stands_on_the_page_with_its_kind() -> None:
    metrics = EngineMetrics("any", 256)
    metrics.record_cache_config(CacheConfig())
    kinds = {family.name.removeprefix("minivllm:"): family.type for family in metrics.registry.collect()}
    assert {row[0].strip(" `"): row[1].strip() for row in rows(BUILT)} == kinds


def test_every_metric_of_vllm_is_there_or_is_named_as_missing() -> None:
    built = {row[0].strip(" `") for row in rows(BUILT)}
    missing = {name for row in rows(MISSING) for name in re.findall(r"\w+", row[0])}
    assert not built & missing
    assert built | missing == VLLM
    assert all(row[1].strip() for row in rows(MISSING)), "each with a reason"
