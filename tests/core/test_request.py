"""A request: its statuses, its ends, and tokens that only grow."""

from __future__ import annotations

import pytest

from minivllm.core.request import FinishReason, RequestStatus
from tests.core.building import make_request

Status = RequestStatus


def test_statuses_stand_in_vllm_order_and_everything_after_preempted_is_finished() -> None:
    assert [status.name for status in Status] == [
        "WAITING",
        "WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR",
        "WAITING_FOR_REMOTE_KVS",
        "WAITING_FOR_STREAMING_REQ",
        "RUNNING",
        "PREEMPTED",
        "FINISHED_STOPPED",
        "FINISHED_LENGTH_CAPPED",
        "FINISHED_ABORTED",
        "FINISHED_IGNORED",
        "FINISHED_ERROR",
        "FINISHED_REPETITION",
    ]
    for status in Status:
        assert status.is_finished == (status > Status.PREEMPTED) == status.name.startswith("FINISHED")
        assert status.is_blocked == status.name.startswith("WAITING_FOR")


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (Status.FINISHED_STOPPED, FinishReason.STOP),
        (Status.FINISHED_LENGTH_CAPPED, FinishReason.LENGTH),
        (Status.FINISHED_ABORTED, FinishReason.ABORT),
        (Status.FINISHED_IGNORED, FinishReason.LENGTH),
        (Status.FINISHED_ERROR, FinishReason.ERROR),
        (Status.FINISHED_REPETITION, FinishReason.REPETITION),
        (Status.WAITING, None),
        (Status.RUNNING, None),
        (Status.PREEMPTED, None),
    ],
)
def test_each_end_has_its_finish_reason(status: Status, reason: FinishReason | None) -> None:
    assert status.finish_reason is reason


def test_finish_reasons_are_told_as_lower_case_words() -> None:
    assert [str(reason) for reason in FinishReason] == ["stop", "length", "abort", "error", "repetition"]


def test_an_empty_prompt_is_no_request() -> None:
    with pytest.raises(ValueError, match="empty prompt"):
        make_request("a", [])


class TestTokenViews:
    def test_they_show_prompt_and_output_as_these_grow(self) -> None:
        request = make_request("a", [1, 2, 3])
        output = request.output_token_ids
        assert list(output) == []
        request.append_output_token_ids(4)
        request.append_output_token_ids(5)
        assert list(request.all_token_ids) == [1, 2, 3, 4, 5]
        assert list(output) == [4, 5]
        assert request.num_output_tokens == len(output) == 2

    def test_they_are_read_like_a_list(self) -> None:
        request = make_request("a", [1, 2, 3])
        for token in (4, 5, 6):
            request.append_output_token_ids(token)
        output, expected = request.output_token_ids, [4, 5, 6]
        for index in range(-3, 3):
            assert output[index] == expected[index]
        for window in (slice(None), slice(1, None), slice(-2, None), slice(None, None, -1), slice(0, 2)):
            assert output[window] == expected[window]
        for beyond in (3, -4):
            with pytest.raises(IndexError):
                output[beyond]
        assert 3 not in output

    def test_they_cannot_be_written(self) -> None:
        request = make_request("a", [1, 2, 3])
        for view in (request.all_token_ids, request.output_token_ids):
            assert not hasattr(view, "append")
            with pytest.raises(TypeError):
                view[0] = 7  # type: ignore[index]

    def test_the_prompt_is_a_copy(self) -> None:
        request = make_request("a", [1, 2, 3])
        request.prompt_token_ids.append(9)
        assert list(request.all_token_ids) == [1, 2, 3]


def test_the_callers_prompt_list_is_not_shared() -> None:
    prompt = [1, 2, 3]
    request = make_request("a", prompt)
    prompt.append(4)
    assert request.num_tokens == 3
    assert list(request.all_token_ids) == [1, 2, 3]


def test_a_block_hash_appears_with_the_token_that_fills_the_block() -> None:
    request = make_request("a", 7, block_size=4)
    assert len(request.block_hashes) == 1
    request.append_output_token_ids(1)
    assert len(request.block_hashes) == 2
