"""Owns the messages between the frontend and the engine core: ids and parameters down, ids and reasons up. No text.

They stand in core/ and not in engine/ because the scheduler makes the outputs, and core/ imports nothing above it.
Upstream: vllm/v1/engine/__init__.py.
"""

from __future__ import annotations

import msgspec

from minivllm.core.request import FinishReason, LoRARequest, MultiModalItem
from minivllm.core.scheduler_output import LogprobsLists
from minivllm.sampling_params import SamplingParams


class EngineCoreRequest(msgspec.Struct, frozen=True, omit_defaults=True, array_like=True, tag="add"):
    """A request on its way to the core. Upstream: EngineCoreRequest.

    Attributes:
        request_id: Unique id.
        prompt_token_ids: The prompt; the core never sees its text.
        sampling_params: With `eos_token_id` and `max_tokens` filled in.
        arrival_time: Breaks ties between equal priorities.
        priority: Lower runs first under the priority policy.
        cache_salt: Keeps its cached prefixes apart from those of other salts.
        lora_request: Adapter to apply.
        mm_features: Inputs that stand for placeholder tokens.
    """

    request_id: str
    prompt_token_ids: list[int]
    sampling_params: SamplingParams
    arrival_time: float = 0.0
    priority: int = 0
    cache_salt: str | None = None
    lora_request: LoRARequest | None = None
    mm_features: tuple[MultiModalItem, ...] = ()


class EngineCoreOutput(msgspec.Struct, frozen=True, omit_defaults=True, array_like=True, gc=False):
    """What one step brought for one request.

    Hundreds are made in a step, and none can be part of a cycle: the garbage collector need not look at them.

    Attributes:
        request_id: Whose.
        new_token_ids: Tokens that it gained, in order, cut at the one that ended it.
        finish_reason: None while it goes on.
        stop_reason: The stop id that ended it; None for the end-of-sequence token.
        num_cached_tokens: With the first output: prompt tokens that were found in the prefix cache.
        new_logprobs: Scores of `new_token_ids`, if asked for.
        new_prompt_logprobs: With the first output: scores of the prompt's tokens from the second on, if asked for.
        error: Why the core refused the request; then `finish_reason` is ERROR and there are no tokens.
    """

    request_id: str
    new_token_ids: list[int]
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    num_cached_tokens: int | None = None
    new_logprobs: LogprobsLists | None = None
    new_prompt_logprobs: LogprobsLists | None = None
    error: str | None = None


class SchedulerStats(msgspec.Struct, frozen=True, array_like=True):
    """What the core counts for the metrics. Times are of the machine's monotonic clock, which its processes share.

    Attributes:
        num_running_reqs, num_waiting_reqs: Lengths of the queues after the step.
        num_skipped_waiting_reqs: Those of the waiting that were passed over, for they cannot run yet.
        kv_cache_usage: Share of the blocks that requests hold.
        prefix_cache_queries, prefix_cache_hits: Tokens of new requests looked up and found, since the start.
        num_preemptions: Since the start.
        scheduled: When requests were scheduled for the first time, since the last of these.
        step_tokens: Tokens of each step, since the last of these.
        timestamp: When the step ended.
    """

    num_running_reqs: int
    num_waiting_reqs: int
    num_skipped_waiting_reqs: int
    kv_cache_usage: float
    prefix_cache_queries: int
    prefix_cache_hits: int
    num_preemptions: int
    scheduled: dict[str, float]
    step_tokens: list[int]
    timestamp: float


class EngineCoreOutputs(msgspec.Struct, frozen=True, array_like=True, tag="outputs"):
    """All outputs of one step."""

    outputs: list[EngineCoreOutput]
    scheduler_stats: SchedulerStats | None = None
