"""The number of KV blocks follows from memory, limits and configuration, and the report shows how."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from minivllm.config import CacheConfig, ModelConfig, SchedulerConfig, VllmConfig
from minivllm.models.config import DecoderConfig, RopeConfig
from minivllm.worker import kv_cache_sizing
from minivllm.worker.kv_cache_sizing import KVCacheSizing, size_kv_cache
from minivllm.worker.memory_profile import MemoryPlan, run_step
from minivllm.worker.worker import resolve_cache_dtype
from tests.worker.driver import make_worker

MODEL = DecoderConfig("LlamaForCausalLM", 100, 64, 96, 2, 4, 2, 16, 512, 1e-6, RopeConfig(), True, (), None)
BYTES_PER_BLOCK = 2 * 2 * 16 * 2 * 16 * 4  # key and value, layers, tokens, KV heads, head size, float32


def size(
    *,
    max_num_seqs: int = 4,
    max_model_len: int = 160,
    device: str = "cpu",
    measured: tuple[int, str] | None = None,
    **cache: Any,
) -> KVCacheSizing:
    config = VllmConfig(
        model_config=ModelConfig(model="any"),
        cache_config=CacheConfig(**cache),
        scheduler_config=SchedulerConfig(max_num_seqs=max_num_seqs, max_model_len=max_model_len),
    )
    return size_kv_cache(config, MODEL, torch.float32, torch.device(device), measured)


def test_memory_is_divided_into_blocks() -> None:
    sizing = size(kv_cache_memory_bytes=20 * BYTES_PER_BLOCK + 100)
    assert (sizing.bytes_per_block, sizing.num_blocks, sizing.num_tokens) == (BYTES_PER_BLOCK, 20, 19 * 16)
    assert sizing.memory_bytes == 20 * BYTES_PER_BLOCK
    assert "20 blocks" in str(sizing)


def test_the_default_is_no_more_than_the_limits_can_use() -> None:
    sizing = size()
    assert sizing.num_blocks == 4 * 10 + 1
    assert "all that 4 sequences of 160 tokens can use" in sizing.reason


def test_the_default_is_a_share_of_the_free_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_cache_sizing, "free_memory", lambda device: 80 * BYTES_PER_BLOCK)
    sizing = size()
    assert sizing.num_blocks == 20
    assert sizing.reason == "25% of the free memory"


def test_a_share_of_the_whole_memory_counts_what_is_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_cache_sizing, "total_memory", lambda device: 100 * BYTES_PER_BLOCK)
    monkeypatch.setattr(kv_cache_sizing, "free_memory", lambda device: 70 * BYTES_PER_BLOCK)
    sizing = size(gpu_memory_utilization=0.5)
    assert sizing.num_blocks == 50 - 30
    assert "gpu_memory_utilization is 0.5" in sizing.reason
    assert size(gpu_memory_utilization=1.0).num_blocks == 41, "no more than the limits can use"
    with pytest.raises(ValueError, match=r"hold 0: .* raise gpu_memory_utilization"):
        size(gpu_memory_utilization=0.2)
    with pytest.raises(ValueError, match=r"gpu_memory_utilization must be in \(0, 1\], got 1.5"):
        size(gpu_memory_utilization=1.5)


def test_on_a_gpu_all_that_was_measured_to_be_left_is_taken() -> None:
    plan = MemoryPlan(
        total=1000 * BYTES_PER_BLOCK, utilization=0.9, others=50 * BYTES_PER_BLOCK, weights=200 * BYTES_PER_BLOCK,
        step=30 * BYTES_PER_BLOCK, graphs=15 * BYTES_PER_BLOCK, buffers=5 * BYTES_PER_BLOCK,
    )  # fmt: skip
    sizing = size(device="cuda", measured=(plan.for_kv_cache, str(plan)))
    assert sizing.num_blocks == 4 * 41, "more than the limits can use: more prefixes stay cached"
    sizing = size(device="cuda", measured=(plan.for_kv_cache, str(plan)), gpu_memory_utilization=0.9)
    assert sizing.num_blocks == 900 - 300
    assert "gpu_memory_utilization is 0.9: 7.0 MiB of 7.8 MiB, less 1.6 MiB of weights" in sizing.reason
    little = replace(plan, weights=895 * BYTES_PER_BLOCK)
    with pytest.raises(ValueError, match=r"hold 0: .* are missing; lower max_model_len or raise gpu_memory_utiliz"):
        size(device="cuda", measured=(little.for_kv_cache, str(little)))


def test_the_step_that_is_measured_runs_the_model_and_leaves_nothing_behind(tiny_llama: Path) -> None:
    worker = make_worker(tiny_llama, max_num_seqs=3)
    caches, forward = worker.runner.kv_caches, worker.runner.model.forward
    seen: list[Any] = []

    def watched(input_ids: Any, positions: Any, *rest: Any) -> Any:
        seen.append(positions.tolist())
        return forward(input_ids, positions, *rest)

    worker.runner.model.forward = watched  # type: ignore[method-assign]
    run_step(worker.runner, num_tokens=8, num_requests=3, max_model_len=128)
    assert seen == [[0, 1, 2, 0, 1, 2, 0, 1]]
    assert worker.runner.kv_caches is caches
    run_step(worker.runner, num_tokens=2, num_requests=5, max_model_len=1)
    assert seen[1] == [0, 0]


def test_a_cache_of_8_bits_is_refused_where_nothing_reads_it() -> None:
    cpu = torch.device("cpu")
    assert resolve_cache_dtype("auto", torch.float16, cpu, "torch_sdpa") == torch.float16
    with pytest.raises(ValueError, match="kv_cache_dtype 'fp8' cannot be had: attention backend torch_sdpa on a CPU"):
        resolve_cache_dtype("fp8", torch.float32, cpu, "torch_sdpa")
    with pytest.raises(ValueError, match="cache_dtype must be one of auto, fp8, fp8_e4m3, fp8_e5m2, got 'int8'"):
        CacheConfig(cache_dtype="int8")  # type: ignore[arg-type]


def test_a_set_number_of_blocks_is_taken() -> None:
    assert size(num_gpu_blocks=3).num_blocks == 3


def test_memory_for_less_than_one_sequence_is_refused_with_what_is_missing() -> None:
    with pytest.raises(ValueError, match="needs 11 KV blocks") as error:
        size(kv_cache_memory_bytes=8 * BYTES_PER_BLOCK, max_model_len=160)
    message = str(error.value)
    assert "hold 8" in message
    assert "are missing" in message
    assert "\n" not in message
    assert size(kv_cache_memory_bytes=11 * BYTES_PER_BLOCK, max_model_len=160).num_blocks == 11


def test_free_memory_is_something() -> None:
    cpu = torch.device("cpu")
    assert 2**20 < kv_cache_sizing.free_memory(cpu) < kv_cache_sizing.total_memory(cpu)
