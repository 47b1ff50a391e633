"""Owns the translation of a finished decision into the message to the worker. Reads everything, changes nothing.

Upstream: the end of Scheduler.schedule and Scheduler._make_cached_request_data.
"""

from __future__ import annotations

from minivllm.core.kv_cache_manager import KVCacheManager
from minivllm.core.request import Request
from minivllm.core.scheduler_output import CachedRequestData, NewRequestData, SchedulerOutput
from minivllm.core.step import Step
from minivllm.sourcemap.registry import on_map


@on_map("plan", vllm="vllm/v1/core/sched/output.py::SchedulerOutput")
def build_plan(
    step: Step,
    running: list[Request],
    kv_cache_manager: KVCacheManager,
    finished_req_ids: set[str],
    preempted_req_ids: set[str],
) -> SchedulerOutput:
    """The plan of a step.

    New and resumed requests travel with their whole block table, running ones with the blocks that they gained: a
    decode step's plan has the same size after ten tokens and after ten thousand.
    """
    num_common_prefix_blocks = 0
    if running:
        num_common_prefix_blocks = kv_cache_manager.get_num_common_prefix_blocks(running[0].request_id)
    return SchedulerOutput(
        scheduled_new_reqs=[_new_request_data(request, kv_cache_manager) for request in step.scheduled_new_reqs],
        scheduled_cached_reqs=_make_cached_request_data(step, kv_cache_manager),
        num_scheduled_tokens=step.num_scheduled_tokens,
        total_num_scheduled_tokens=sum(step.num_scheduled_tokens.values()),
        scheduled_spec_decode_tokens=step.spec_tokens,
        num_common_prefix_blocks=num_common_prefix_blocks,
        finished_req_ids=finished_req_ids,
        preempted_req_ids=preempted_req_ids,
    )


def _new_request_data(request: Request, kv_cache_manager: KVCacheManager) -> NewRequestData:
    return NewRequestData(
        request.request_id,
        request.prompt_token_ids,
        request.sampling_params,
        kv_cache_manager.get_block_ids(request.request_id),
        request.num_computed_tokens,
    )


def _make_cached_request_data(step: Step, kv_cache_manager: KVCacheManager) -> CachedRequestData:
    """One entry a request and column: running requests in order, then resumed ones."""
    requests = (
        step.scheduled_running_reqs + step.scheduled_resumed_reqs
        if step.scheduled_resumed_reqs
        else step.scheduled_running_reqs
    )
    req_ids = [request.request_id for request in requests]
    new_block_ids: list[list[int] | None] = [None] * len(step.scheduled_running_reqs)
    if step.new_blocks:
        for i, req_id in enumerate(req_ids):
            if req_id in step.new_blocks:
                new_block_ids[i] = [block.block_id for block in step.new_blocks[req_id]]
    for request in step.scheduled_resumed_reqs:
        new_block_ids.append(kv_cache_manager.get_block_ids(request.request_id))
    return CachedRequestData(
        req_ids=req_ids,
        resumed_req_ids={request.request_id for request in step.scheduled_resumed_reqs},
        all_token_ids={request.request_id: list(request.all_token_ids) for request in step.scheduled_resumed_reqs},
        new_block_ids=new_block_ids,
        num_computed_tokens=[request.num_computed_tokens for request in requests],
        num_output_tokens=[
            request.num_tokens - request.num_prompt_tokens + request.num_output_placeholders for request in requests
        ],
    )
