"""Owns timing the scheduler alone: no model, no trace. The time of a step must not depend on how long contexts are."""

from __future__ import annotations

import random
import statistics
import time
from dataclasses import asdict, dataclass

import msgspec

from minivllm.config import CacheConfig, SchedulerConfig
from minivllm.core.block_hash import get_request_block_hasher
from minivllm.core.request import Request
from minivllm.core.scheduler import Scheduler
from minivllm.core.scheduler_output import ModelRunnerOutput, SchedulerOutput
from minivllm.sampling_params import SamplingParams

BLOCK_SIZE = 16
SAMPLED_TOKEN = 5


@dataclass(frozen=True, slots=True)
class Case:
    """One workload: requests that arrive at once, prefill, and decode to the end.

    Attributes:
        num_requests: Running at once.
        prefix_caching: Whether blocks are hashed and published.
        prompt_len: Tokens of each prompt (random, so nothing is shared).
        output_len: Tokens of each output.
    """

    num_requests: int
    prefix_caching: bool
    prompt_len: int = 128
    output_len: int = 128


@dataclass(frozen=True, slots=True)
class CaseResult:
    """Times in microseconds; per decode step the median, so that a busy machine's outliers do not count.

    Attributes:
        steps: Steps from the first plan to the last.
        add_us_per_request: Registering a request, its prompt's block hashes included.
        schedule_us, update_us: Means over all steps of the run, prefill included.
        decode_schedule_us, decode_update_us: Medians over the steps in which every request decodes.
        decode_plan_bytes: Size of a decode step's plan as it would travel, smallest and largest.
    """

    steps: int
    add_us_per_request: float
    schedule_us: float
    update_us: float
    decode_schedule_us: float
    decode_update_us: float
    decode_plan_bytes: tuple[int, int]


CASES = [Case(n, caching) for n in (32, 256) for caching in (True, False)]
# The same number of running requests behind ever longer contexts.
CONTEXT_CASES = [Case(32, True, prompt_len=length) for length in (128, 1024, 4096, 16384)]


def run_case(case: Case) -> CaseResult:
    """Time one case from the first request to the last token."""
    scheduler = _make_scheduler(case)
    requests = _make_requests(case)
    start = time.perf_counter()
    hasher = get_request_block_hasher(BLOCK_SIZE, b"bench") if case.prefix_caching else None
    params = SamplingParams(temperature=0.0, max_tokens=case.output_len, ignore_eos=True)
    for i, prompt in enumerate(requests):
        scheduler.add_request(Request(str(i), prompt, params, arrival_time=float(i), block_hasher=hasher))
    add = time.perf_counter() - start

    schedule, update, decode, plan_bytes = [], [], [], []
    while scheduler.has_requests():
        start = time.perf_counter()
        plan = scheduler.schedule()
        schedule.append(time.perf_counter() - start)
        output = _fake_output(scheduler, plan)
        start = time.perf_counter()
        scheduler.update_from_output(plan, output)
        update.append(time.perf_counter() - start)
        if plan.total_num_scheduled_tokens == case.num_requests and not plan.scheduled_new_reqs:
            decode.append((schedule[-1], update[-1]))
            plan_bytes.append(len(msgspec.msgpack.encode(plan)))
    return CaseResult(
        steps=len(schedule),
        add_us_per_request=_us(add / case.num_requests),
        schedule_us=_us(statistics.mean(schedule)),
        update_us=_us(statistics.mean(update)),
        decode_schedule_us=_us(statistics.median(s for s, _ in decode)),
        decode_update_us=_us(statistics.median(u for _, u in decode)),
        decode_plan_bytes=(min(plan_bytes), max(plan_bytes)),
    )


def run_cases(cases: list[Case], repeats: int = 3) -> list[dict[str, object]]:
    """Run each case several times and keep its best run: noise only ever adds time."""
    results: list[dict[str, object]] = []
    for case in cases:
        best = min((run_case(case) for _ in range(repeats)), key=lambda r: r.schedule_us + r.update_us)
        results.append({**asdict(case), **asdict(best)})
    return results


def _make_scheduler(case: Case) -> Scheduler:
    total_len = case.prompt_len + case.output_len
    blocks_each = -(-total_len // BLOCK_SIZE)
    return Scheduler(
        SchedulerConfig(max_num_seqs=case.num_requests, max_num_batched_tokens=8192, max_model_len=max(512, total_len)),
        CacheConfig(
            block_size=BLOCK_SIZE,
            num_gpu_blocks=case.num_requests * (blocks_each + 2) + 8,
            enable_prefix_caching=case.prefix_caching,
        ),
    )


def _make_requests(case: Case) -> list[list[int]]:
    rng = random.Random(0)
    return [[rng.randrange(1000) for _ in range(case.prompt_len)] for _ in range(case.num_requests)]


def _fake_output(scheduler: Scheduler, plan: SchedulerOutput) -> ModelRunnerOutput:
    req_ids = list(plan.num_scheduled_tokens)
    sampled = []
    for request_id in req_ids:
        request = scheduler.requests[request_id]
        sampled.append([SAMPLED_TOKEN] if request.num_computed_tokens >= request.num_tokens else [])
    return ModelRunnerOutput(req_ids, {req_id: i for i, req_id in enumerate(req_ids)}, sampled)


def _us(seconds: float) -> float:
    return round(seconds * 1e6, 1)
