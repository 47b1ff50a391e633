"""Owns the vLLM side of `minivllm bench scheduler`. Run by an interpreter that has vLLM 0.27.1; reads a job on stdin.

It makes vLLM's Scheduler with one full-attention group and no model, gives it the same prompts, and times the same two
calls as our own benchmark does.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

_MODEL_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 32000,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 1 << 20,
    "rms_norm_eps": 1e-5,
    "torch_dtype": "float32",
}


def main() -> None:
    """Run the job on stdin and print one JSON list of results."""
    job = json.load(sys.stdin)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(_MODEL_CONFIG))
        results = [_best(case, job, folder) for case in job["cases"]]
    print(json.dumps(results))


def _best(case: dict[str, Any], job: dict[str, Any], folder: str) -> dict[str, Any]:
    runs = [_run(case, job, folder) for _ in range(job["repeats"])]
    return {**case, **min(runs, key=lambda run: run["schedule_us"] + run["update_us"])}


def _run(case: dict[str, Any], job: dict[str, Any], folder: str) -> dict[str, Any]:
    from vllm.v1.outputs import ModelRunnerOutput

    scheduler, make_request = _setup(case, job["block_size"], folder)
    rng = random.Random(0)
    prompts = [[rng.randrange(1000) for _ in range(case["prompt_len"])] for _ in range(case["num_requests"])]
    for i, prompt in enumerate(prompts):
        scheduler.add_request(make_request(str(i), prompt, float(i)))
    schedule, update = [], []
    while scheduler.has_unfinished_requests():
        start = time.perf_counter()
        plan = scheduler.schedule()
        schedule.append(time.perf_counter() - start)
        ids = list(plan.num_scheduled_tokens)
        done = [scheduler.requests[i].num_computed_tokens >= scheduler.requests[i].num_tokens for i in ids]
        output = ModelRunnerOutput(
            req_ids=ids,
            req_id_to_index={req_id: k for k, req_id in enumerate(ids)},
            sampled_token_ids=[[job["sampled_token"]] if is_done else [] for is_done in done],
            logprobs=None,
            prompt_logprobs_dict={},
            pooler_output=[],
        )
        start = time.perf_counter()
        scheduler.update_from_output(plan, output)
        update.append(time.perf_counter() - start)
    steps = len(schedule)
    return {
        "steps": steps,
        "schedule_us": round(sum(schedule) / steps * 1e6, 1),
        "update_us": round(sum(update) / steps * 1e6, 1),
    }


def _setup(case: dict[str, Any], block_size: int, folder: str) -> tuple[Any, Any]:
    import torch
    from vllm import SamplingParams
    from vllm.config import CacheConfig, ModelConfig, SchedulerConfig, VllmConfig
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.request import Request
    from vllm.v1.structured_output import StructuredOutputManager

    total_len = case["prompt_len"] + case["output_len"]
    max_model_len = max(512, total_len)
    num_blocks = case["num_requests"] * (-(-total_len // block_size) + 2) + 8
    vllm_config = VllmConfig(
        model_config=ModelConfig(model=folder, dtype="float32", skip_tokenizer_init=True, max_model_len=max_model_len),
        cache_config=CacheConfig(block_size=block_size, enable_prefix_caching=case["prefix_caching"]),
        scheduler_config=SchedulerConfig(
            max_num_seqs=case["num_requests"],
            max_num_batched_tokens=8192,
            max_model_len=max_model_len,
            is_encoder_decoder=False,
            async_scheduling=False,
        ),
    )
    vllm_config.cache_config.num_gpu_blocks = num_blocks
    spec = FullAttentionSpec(block_size=block_size, num_kv_heads=1, head_size=1, dtype=torch.float32)
    scheduler = Scheduler(
        vllm_config=vllm_config,
        kv_cache_config=KVCacheConfig(
            num_blocks=num_blocks, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)]
        ),
        structured_output_manager=StructuredOutputManager(vllm_config),
        block_size=block_size,
        log_stats=False,
    )
    init_none_hash(sha256)
    hasher = get_request_block_hasher(block_size, sha256) if case["prefix_caching"] else None

    def make_request(request_id: str, prompt: list[int], arrival_time: float) -> Any:
        return Request(
            request_id=request_id,
            prompt_token_ids=prompt,
            sampling_params=SamplingParams(temperature=0.0, max_tokens=case["output_len"], ignore_eos=True),
            pooling_params=None,
            arrival_time=arrival_time,
            block_hasher=hasher,
        )

    return scheduler, make_request


if __name__ == "__main__":
    main()
