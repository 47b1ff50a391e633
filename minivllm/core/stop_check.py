"""Owns the question whether a token ends its request. Only tokens count here; stop strings are the frontend's.

Upstream: vllm/v1/core/sched/utils.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from minivllm.core.request import Request, RequestStatus
from minivllm.sampling_params import RepetitionDetectionParams
from minivllm.sourcemap.registry import on_map


@on_map("stop check", vllm="vllm/v1/core/sched/utils.py::check_stop")
def check_stop(request: Request, max_model_len: int) -> bool:
    """Set a request's status if its newest token ends it.

    The order is part of the contract: minimum length, end of sequence, stop ids, length, repetition.

    Returns:
        Whether it ended. The end-of-sequence token leaves `stop_reason` None, a stop id sets it to the id.
    """
    params = request.sampling_params
    num_output_tokens = request.num_tokens - request.num_prompt_tokens
    if num_output_tokens < params.min_tokens:
        return False
    last_token_id = request._all_token_ids[-1]
    if last_token_id == params.eos_token_id and not params.ignore_eos:
        request.status = RequestStatus.FINISHED_STOPPED
        return True
    if last_token_id in params.stop_token_ids:
        request.status = RequestStatus.FINISHED_STOPPED
        request.stop_reason = last_token_id
        return True
    if request.num_tokens >= max_model_len or num_output_tokens >= request.max_tokens:
        request.status = RequestStatus.FINISHED_LENGTH_CAPPED
        return True
    if params.repetition_detection is not None and check_sequence_repetition(
        request.output_token_ids, params.repetition_detection
    ):
        request.status = RequestStatus.FINISHED_REPETITION
        request.stop_reason = "repetition_detected"
        return True
    return False


def check_sequence_repetition(token_ids: Sequence[int], params: RepetitionDetectionParams) -> bool:
    """Whether the tail is a pattern of some allowed size, repeated min_count times."""
    for size in range(params.min_pattern_size, params.max_pattern_size + 1):
        length = size * params.min_count
        if length > len(token_ids):
            return False
        tail = list(token_ids[-length:])
        # A sequence repeats with period `size` exactly if it equals itself shifted by `size`.
        if tail[size:] == tail[:-size]:
            return True
    return False
