"""Owns the short ways in which tests make schedulers and requests, and take steps without a model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from minivllm.config import CacheConfig, ModelConfig, SchedulerConfig, VllmConfig
from minivllm.core.async_scheduler import AsyncScheduler
from minivllm.core.block_hash import get_request_block_hasher
from minivllm.core.integrity import check_integrity
from minivllm.core.messages import EngineCoreOutput, EngineCoreRequest
from minivllm.core.request import Request
from minivllm.core.scheduler import Scheduler
from minivllm.core.scheduler_output import ModelRunnerOutput, SchedulerOutput
from minivllm.engine.core import EngineCore
from minivllm.executor.sim import SimExecutor, TokenRule, fake_token_rule
from minivllm.sampling_params import SamplingParams

HASH_SEED = b"tests"
_CACHE_SETTINGS = ("block_size", "num_gpu_blocks", "enable_prefix_caching")


def make_config(**settings: Any) -> VllmConfig:
    """Settings for tests: blocks of 4 tokens, plenty of them, unless told otherwise."""
    cache = {"block_size": 4, "num_gpu_blocks": 200, "hash_seed": HASH_SEED}
    cache.update({name: settings.pop(name) for name in _CACHE_SETTINGS if name in settings})
    scheduler = {"max_num_seqs": 8, "max_num_batched_tokens": 64, "max_model_len": 64, **settings}
    return VllmConfig(
        model_config=ModelConfig(model="simulated"),
        cache_config=CacheConfig(**cache),
        scheduler_config=SchedulerConfig(**scheduler),
    )


def make_scheduler(**settings: Any) -> Scheduler:
    config = make_config(**settings)
    scheduler_class = AsyncScheduler if config.scheduler_config.async_scheduling else Scheduler
    return scheduler_class(config.scheduler_config, config.cache_config)


def make_core(token_rule: TokenRule | None = None, **settings: Any) -> EngineCore:
    return EngineCore(make_config(**settings), SimExecutor(token_rule or fake_token_rule(1000)))


def tokens_of(name: str, count: int) -> list[int]:
    """`count` tokens that depend on the name: prompts of different names share no prefix."""
    start = sum(ord(letter) * 31**i for i, letter in enumerate(name)) % 100_000
    return list(range(start, start + count))


def make_request(
    request_id: str,
    prompt: int | Sequence[int] = 4,
    *,
    block_size: int = 4,
    arrival_time: float = 0.0,
    priority: int = 0,
    params: Mapping[str, Any] | None = None,
    **fields: Any,
) -> Request:
    """A request of the scheduler; `prompt` is a length or the tokens, other fields go to SamplingParams or Request."""
    sampling = {"max_tokens": 8, "temperature": 0.0, **(params or {})}
    if "max_tokens" in fields:
        sampling["max_tokens"] = fields.pop("max_tokens")
    return Request(
        request_id,
        tokens_of(request_id, prompt) if isinstance(prompt, int) else prompt,
        SamplingParams(**sampling),
        arrival_time=arrival_time,
        priority=priority,
        block_hasher=get_request_block_hasher(block_size, HASH_SEED),
        **fields,
    )


def core_request(
    request_id: str, prompt: int | Sequence[int] = 4, max_tokens: int = 8, **fields: Any
) -> EngineCoreRequest:
    """A request on its way to the engine core."""
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens, **fields.pop("params", {}))
    tokens = tokens_of(request_id, prompt) if isinstance(prompt, int) else list(prompt)
    return EngineCoreRequest(request_id, tokens, params, **fields)


def add(scheduler: Scheduler, *requests: Request) -> None:
    for request in requests:
        scheduler.add_request(request)


def answer(
    scheduler: Scheduler, plan: SchedulerOutput, sampled: Mapping[str, Sequence[int]] | None = None
) -> ModelRunnerOutput:
    """What a model would say to a plan. Asked right after the plan was made, before another one is."""
    ids = list(plan.num_scheduled_tokens)
    tokens: list[list[int]] = []
    for request_id in ids:
        request = scheduler.requests[request_id]
        default = [90_000 + request.num_tokens + request.num_output_placeholders]
        tokens.append([] if request.is_prefill_chunk else list((sampled or {}).get(request_id, default)))
    return ModelRunnerOutput(ids, {request_id: i for i, request_id in enumerate(ids)}, tokens)


def step(
    scheduler: Scheduler, sampled: Mapping[str, Sequence[int]] | None = None
) -> tuple[SchedulerOutput, dict[str, EngineCoreOutput]]:
    """One step from end to end, with integrity checked at both borders."""
    plan = scheduler.schedule()
    check_integrity(scheduler)
    outputs = scheduler.update_from_output(plan, answer(scheduler, plan, sampled))
    check_integrity(scheduler)
    return plan, {output.request_id: output for output in outputs.outputs}


def steps(scheduler: Scheduler, limit: int = 200) -> Iterator[tuple[SchedulerOutput, dict[str, EngineCoreOutput]]]:
    """Step until nobody is left; fail if that takes more than `limit` steps."""
    for _ in range(limit):
        if not scheduler.has_requests():
            return
        yield step(scheduler)
    raise AssertionError(f"still at work after {limit} steps: {list(scheduler.requests.values())}")


def ids(requests: Any) -> list[str]:
    return [request.request_id for request in requests]


def run_core(core: EngineCore, limit: int = 500) -> dict[str, list[int]]:
    """Run an engine core until it is idle; returns everyone's output tokens."""
    outputs: dict[str, list[int]] = {}
    for _ in range(limit):
        if not core.has_work():
            return outputs
        result = core.step()
        check_integrity(core.scheduler)
        for output in result.outputs if result else ():
            outputs.setdefault(output.request_id, []).extend(output.new_token_ids)
    raise AssertionError(f"still at work after {limit} steps: {list(core.scheduler.requests.values())}")
