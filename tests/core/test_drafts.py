"""Speculative tokens in the plan: they are debt like any other, and what the model rejects is taken back."""

from __future__ import annotations

import pytest

from minivllm.core.request import Request
from minivllm.core.scheduler import Scheduler
from tests.core.building import add, make_request, make_scheduler, step, steps


def decoding(prompt: int = 4, **settings: object) -> tuple[Scheduler, Request]:
    """A scheduler with one request that has its first output token."""
    scheduler, request = make_scheduler(**settings), make_request("a", prompt, max_tokens=20)
    add(scheduler, request)
    step(scheduler)
    return scheduler, request


def test_k_drafts_need_1_plus_k_tokens() -> None:
    """The last known token and every draft are inputs: three drafts make four query tokens."""
    scheduler, request = decoding()
    scheduler.update_draft_token_ids({"a": [51, 52, 53]})
    plan = scheduler.schedule()
    assert plan.num_scheduled_tokens == {"a": 4}
    assert plan.scheduled_spec_decode_tokens == {"a": [51, 52, 53]}
    assert request.spec_token_ids == [], "they belong to this step only"
    assert request.num_computed_tokens == request.num_tokens + 3


@pytest.mark.parametrize(("emitted", "num_rejected"), [([51, 52, 53, 9], 0), ([51, 52, 9], 1), ([51, 9], 2), ([9], 3)])
def test_rejected_drafts_are_taken_back(emitted: list[int], num_rejected: int) -> None:
    scheduler, request = decoding()
    scheduler.update_draft_token_ids({"a": [51, 52, 53]})
    before = request.num_computed_tokens
    _, outputs = step(scheduler, {"a": emitted})
    assert outputs["a"].new_token_ids == emitted
    assert request.num_computed_tokens == before + 4 - num_rejected == request.num_tokens - 1
    assert step(scheduler)[0].num_scheduled_tokens == {"a": 1}


def test_drafts_are_trimmed_to_the_budget() -> None:
    scheduler, _ = decoding(max_num_batched_tokens=16)
    add(scheduler, make_request("b", 5))
    step(scheduler)
    scheduler.update_draft_token_ids({"a": list(range(13)), "b": [1, 2, 3]})
    plan = scheduler.schedule()
    assert plan.num_scheduled_tokens == {"a": 14, "b": 2}
    assert plan.scheduled_spec_decode_tokens == {"a": list(range(13)), "b": [1]}


def test_drafts_are_trimmed_to_the_models_length() -> None:
    scheduler, request = decoding(prompt=5, max_model_len=9)
    scheduler.update_draft_token_ids({"a": [1, 2, 3, 4, 5]})
    plan = scheduler.schedule()
    assert plan.num_scheduled_tokens == {"a": 3}  # positions 5, 6 and 7: the token at 8 is the last and is only sampled
    assert plan.scheduled_spec_decode_tokens == {"a": [1, 2]}
    assert request.num_computed_tokens == 8


def test_a_request_without_drafts_is_absent() -> None:
    scheduler, _ = decoding()
    assert scheduler.schedule().scheduled_spec_decode_tokens == {}


def test_drafts_for_unknown_or_prefilling_requests_are_dropped() -> None:
    scheduler, _ = decoding(max_num_batched_tokens=8)
    prefilling = make_request("b", 20)
    add(scheduler, prefilling)
    step(scheduler)
    assert prefilling.is_prefill_chunk
    scheduler.update_draft_token_ids({"nobody": [1], "b": [1, 2]})
    assert prefilling.spec_token_ids == []


def test_tokens_behind_the_one_that_ends_a_request_are_dropped() -> None:
    scheduler = make_scheduler()
    add(scheduler, make_request("a", params={"stop_token_ids": (52,)}))
    step(scheduler)
    scheduler.update_draft_token_ids({"a": [51, 52, 53]})
    _, outputs = step(scheduler, {"a": [51, 52, 53, 54]})
    assert outputs["a"].new_token_ids == [51, 52]
    assert outputs["a"].stop_reason == 52


def test_drafts_get_slots_and_no_place_in_the_prefix_cache() -> None:
    scheduler, request = decoding(prompt=6)
    scheduler.update_draft_token_ids({"a": [51, 52, 53]})
    step(scheduler, {"a": [9]})
    manager = scheduler.kv_cache_manager
    assert len(manager.get_block_ids("a")) == 3  # slots for 10 tokens
    assert request.num_tokens == 8
    assert manager.num_cached_block["a"] == 1  # and not 2, although 10 tokens had been planned
    step(scheduler)
    assert manager.num_cached_block["a"] == 2


def test_a_victim_leaves_no_drafts_behind() -> None:
    """Neither in the plan nor on itself (vllm PR 28558)."""
    scheduler = make_scheduler(num_gpu_blocks=9, max_model_len=32, policy="priority")
    add(scheduler, make_request("low", 13, priority=9, max_tokens=10), make_request("high", 16, max_tokens=10))
    victim = scheduler.requests["low"]
    step(scheduler)
    scheduler.update_draft_token_ids({"low": [1], "high": [2, 3]})
    plan, _ = step(scheduler, {"high": [7]})
    assert plan.preempted_req_ids == {"low"}
    assert plan.scheduled_spec_decode_tokens == {"high": [2, 3]}
    assert victim.spec_token_ids == []


def test_lookahead_reserves_slots_behind_the_scheduled_tokens() -> None:
    scheduler, _ = decoding(prompt=7, num_lookahead_tokens=3)
    assert len(scheduler.kv_cache_manager.get_block_ids("a")) == 3  # 7 + 3 = 10 slots


def test_drafts_do_not_change_how_a_request_ends() -> None:
    scheduler, request = decoding()
    emitted = list(request.output_token_ids)
    for plan, outputs in steps(scheduler):
        emitted += outputs["a"].new_token_ids if "a" in outputs else []
        if plan.num_scheduled_tokens and not request.is_finished:
            scheduler.update_draft_token_ids({"a": [1, 2, 3]})
    assert len(emitted) == 20
