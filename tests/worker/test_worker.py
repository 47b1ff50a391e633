"""A worker refuses what it cannot run, in one line, before it loads anything."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from minivllm.config import CacheConfig, ModelConfig, SchedulerConfig, VllmConfig
from minivllm.core.scheduler_output import CachedRequestData, NewRequestData, SchedulerOutput
from minivllm.executor.uniproc import UniProcExecutor
from minivllm.models.errors import ModelError
from minivllm.worker.worker import Worker
from tests.worker.driver import GREEDY, make_worker


def test_a_worker_tells_what_the_engine_must_know(tiny_llama: Path) -> None:
    worker = make_worker(tiny_llama)
    assert (worker.vocab_size, worker.max_position_embeddings, worker.eos_token_ids) == (96, 256, (2,))
    assert worker.attention_reasons["torch_sdpa"].startswith("taken")


def test_a_length_beyond_the_model_is_refused(tiny_llama: Path) -> None:
    with pytest.raises(ModelError, match=r"max_model_len \(300\) must not exceed what the model was made for \(256"):
        make_worker(tiny_llama, max_model_len=300)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_gpu_that_is_not_there_is_refused(tiny_llama: Path) -> None:
    with pytest.raises(ValueError, match="PyTorch sees no GPU here"):
        Worker(VllmConfig(model_config=ModelConfig(model=str(tiny_llama), device="cuda")))


def test_the_executor_returns_finished_futures_and_carries_errors(tiny_llama: Path) -> None:
    config = VllmConfig(
        model_config=ModelConfig(model=str(tiny_llama), device="cpu"),
        cache_config=CacheConfig(block_size=4, num_gpu_blocks=9),
        scheduler_config=SchedulerConfig(max_num_seqs=2, max_model_len=32),
    )
    executor = UniProcExecutor(config)
    assert executor.num_gpu_blocks == 9
    nothing = CachedRequestData([], set(), {}, [], [], [])
    new = NewRequestData("a", [1, 2, 3], GREEDY, [1], 0)
    plan = SchedulerOutput([new], nothing, {"a": 3}, 3, {}, 0, set(), set())
    future = executor.execute_model(plan)
    assert future.done()
    assert future.result() is None
    assert len(executor.sample_tokens().result().sampled_token_ids[0]) == 1
    with pytest.raises(RuntimeError, match="needs an execute_model before it"):
        executor.sample_tokens().result()
    executor.shutdown()
    executor.shutdown()
