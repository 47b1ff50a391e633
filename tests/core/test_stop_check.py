"""Which token ends a request, and in which order the rules are asked."""

from __future__ import annotations

from typing import Any

import pytest

from minivllm.core.request import RequestStatus
from minivllm.core.stop_check import check_sequence_repetition, check_stop
from minivllm.sampling_params import RepetitionDetectionParams
from tests.core.building import add, make_request, make_scheduler, steps

STOPPED, LENGTH, REPETITION = (
    RequestStatus.FINISHED_STOPPED,
    RequestStatus.FINISHED_LENGTH_CAPPED,
    RequestStatus.FINISHED_REPETITION,
)
EOS, STOP = 7, 8
TWICE = RepetitionDetectionParams(max_pattern_size=2)


# params, output tokens, status or None, stop reason. The prompt has 4 tokens, max_model_len is 12.
@pytest.mark.parametrize(
    ("params", "output", "status", "stop_reason"),
    [
        ({}, [1], None, None),
        # End of sequence: no stop reason.
        ({"eos_token_id": EOS}, [EOS], STOPPED, None),
        ({"eos_token_id": EOS, "ignore_eos": True}, [EOS], None, None),
        ({"eos_token_id": None}, [EOS], None, None),
        # Stop ids: the id is the reason; they work beside ignore_eos.
        ({"stop_token_ids": (STOP, 9)}, [STOP], STOPPED, STOP),
        ({"stop_token_ids": (EOS,), "eos_token_id": EOS, "ignore_eos": True}, [EOS], STOPPED, EOS),
        # Length: of the output, or of the model.
        ({"max_tokens": 2}, [1, 2], LENGTH, None),
        ({"max_tokens": 3}, [1, 2], None, None),
        ({"max_tokens": 99}, [1] * 8, LENGTH, None),
        ({"max_tokens": None}, [1] * 8, LENGTH, None),
        ({"max_tokens": 99}, [1] * 7, None, None),
        # Repetition.
        ({"repetition_detection": TWICE}, [5, 1, 2, 1, 2], REPETITION, "repetition_detected"),
        ({"repetition_detection": TWICE}, [1, 2, 1], None, None),
        # The order: each row breaks a tie between two rules.
        ({"eos_token_id": EOS, "stop_token_ids": (EOS,)}, [EOS], STOPPED, None),
        ({"eos_token_id": EOS, "max_tokens": 1}, [EOS], STOPPED, None),
        ({"stop_token_ids": (STOP,), "max_tokens": 1}, [STOP], STOPPED, STOP),
        ({"stop_token_ids": (STOP,), "repetition_detection": TWICE}, [STOP, STOP], STOPPED, STOP),
        ({"max_tokens": 2, "repetition_detection": TWICE}, [1, 1], LENGTH, None),
        # min_tokens comes before every other rule.
        ({"eos_token_id": EOS, "min_tokens": 2}, [EOS], None, None),
        ({"eos_token_id": EOS, "min_tokens": 2}, [1, EOS], STOPPED, None),
        ({"stop_token_ids": (STOP,), "min_tokens": 2}, [STOP], None, None),
        ({"repetition_detection": TWICE, "min_tokens": 3}, [1, 1], None, None),
        ({"repetition_detection": TWICE, "min_tokens": 3}, [1, 1, 1], REPETITION, "repetition_detected"),
        ({"max_tokens": 2, "min_tokens": 2}, [1, 2], LENGTH, None),
    ],
)
def test_rules_and_their_order(
    params: dict[str, Any], output: list[int], status: RequestStatus | None, stop_reason: object
) -> None:
    request = make_request("a", 4, params={"max_tokens": 99, **params})
    request.status = RequestStatus.RUNNING
    for token in output:
        request.append_output_token_ids(token)
    assert check_stop(request, max_model_len=12) == (status is not None)
    assert request.status == (status or RequestStatus.RUNNING)
    assert request.stop_reason == stop_reason


@pytest.mark.parametrize(
    ("tokens", "sizes", "min_count", "found"),
    [
        ([1, 1], (1, 1), 2, True),
        ([1, 1], (1, 1), 3, False),
        ([2, 1, 1, 1], (1, 1), 3, True),
        ([1, 1, 2], (1, 1), 2, False),  # only the tail counts
        ([1, 2, 1, 2], (1, 2), 2, True),
        ([1, 2, 1, 2], (1, 1), 2, False),
        ([1, 2, 1, 2], (3, 4), 2, False),
        ([1, 1, 1, 1], (2, 2), 2, True),  # a shorter pattern repeated is a longer one repeated, too
        ([1, 2, 3, 1, 2, 3], (2, 5), 2, True),
        ([9, 1, 2, 3, 1, 2, 3], (3, 3), 2, True),
        ([1, 2, 3, 1, 2], (3, 3), 2, False),
        ([], (1, 2), 2, False),
    ],
)
def test_repetition_is_a_pattern_at_the_tail(
    tokens: list[int], sizes: tuple[int, int], min_count: int, found: bool
) -> None:
    params = RepetitionDetectionParams(min_pattern_size=sizes[0], max_pattern_size=sizes[1], min_count=min_count)
    assert check_sequence_repetition(tokens, params) == found


def test_the_prompt_is_no_part_of_a_repetition() -> None:
    request = make_request("a", [5, 5, 5], params={"repetition_detection": TWICE})
    request.append_output_token_ids(5)
    assert not check_stop(request, max_model_len=100)


def test_the_token_that_ends_a_request_is_part_of_its_output() -> None:
    scheduler = make_scheduler()
    add(scheduler, make_request("a", params={"stop_token_ids": (90_006,)}))
    last = [outputs["a"] for _, outputs in steps(scheduler) if "a" in outputs][-1]
    assert (last.new_token_ids, str(last.finish_reason), last.stop_reason) == ([90_006], "stop", 90_006)
