"""Planning ahead: step N+1 is planned before the tokens of step N are known."""

from __future__ import annotations

from typing import Any

import pytest

from minivllm.core.decisions import Reason
from minivllm.core.integrity import check_integrity
from minivllm.core.request import Request, RequestStatus
from minivllm.core.scheduler import Scheduler
from tests.core.building import add, answer, core_request, make_core, make_request, make_scheduler, run_core


def ahead(max_tokens: int = 8, **settings: Any) -> tuple[Scheduler, Request]:
    scheduler, request = make_scheduler(async_scheduling=True, **settings), make_request("a", max_tokens=max_tokens)
    add(scheduler, request)
    return scheduler, request


class TestPlaceholders:
    def test_a_planned_token_counts_until_it_arrives(self) -> None:
        scheduler, request = ahead()
        first = scheduler.schedule()
        reply = answer(scheduler, first)
        assert request.num_output_placeholders == 1
        second = scheduler.schedule()
        assert second.num_scheduled_tokens == {"a": 1}, "it is planned again although its token is not known yet"
        assert second.scheduled_cached_reqs.num_output_tokens == [1]
        assert (request.num_computed_tokens, request.num_tokens, request.num_output_placeholders) == (5, 4, 2)
        scheduler.update_from_output(first, reply)
        assert (request.num_tokens, request.num_output_placeholders) == (5, 1)
        check_integrity(scheduler)

    def test_a_chunk_of_a_prompt_brings_none(self) -> None:
        scheduler = make_scheduler(async_scheduling=True, max_num_batched_tokens=8)
        request = make_request("a", 20)
        add(scheduler, request)
        counts = []
        for _ in range(3):
            scheduler.schedule()
            counts.append(request.num_output_placeholders)
        assert counts == [0, 0, 1]

    def test_nothing_is_planned_beyond_max_tokens(self) -> None:
        scheduler, _ = ahead(max_tokens=2)
        first = scheduler.schedule()
        reply = answer(scheduler, first)
        assert scheduler.schedule().num_scheduled_tokens == {"a": 1}
        scheduler.update_from_output(first, reply)
        assert scheduler.schedule().num_scheduled_tokens == {}
        (why,) = scheduler.last_decisions.not_scheduled
        assert (why.reason, why.numbers) == (Reason.OUTPUT_IN_FLIGHT, {"placeholders": 1, "max_tokens": 2})
        check_integrity(scheduler)

    def test_a_block_is_published_only_when_its_tokens_are_known(self) -> None:
        scheduler = make_scheduler(async_scheduling=True)
        request = make_request("a", 7)
        add(scheduler, request)
        published = scheduler.kv_cache_manager.num_cached_block
        first = scheduler.schedule()
        reply = answer(scheduler, first)
        scheduler.schedule()  # computes token 8, which fills the second block and which nobody has seen
        assert published["a"] == 1
        scheduler.update_from_output(first, reply)  # brings it
        scheduler.schedule()
        assert published["a"] == 2
        check_integrity(scheduler)

    def test_more_tokens_than_announced_are_a_fault(self) -> None:
        scheduler, _ = ahead()
        plan = scheduler.schedule()
        reply = answer(scheduler, plan, {"a": [1, 2]})
        with pytest.raises(AssertionError, match="announced"):
            scheduler.update_from_output(plan, reply)


class TestStaleOutput:
    """Output that was in flight when its request lost its blocks."""

    def preempted(self, max_tokens: int = 8, **options: bool) -> tuple[Scheduler, Request, Any]:
        scheduler, request = ahead(max_tokens)
        plan = scheduler.schedule()
        reply = answer(scheduler, plan)
        scheduler.running.remove(request)
        scheduler.preempt_request(request, **options)
        check_integrity(scheduler)
        return scheduler, request, lambda: scheduler.update_from_output(plan, reply)

    def test_it_is_delivered_and_touches_no_counter(self) -> None:
        """Counting it would take the placeholders below zero (vllm PR 48245)."""
        scheduler, request, arrive = self.preempted()
        (output,) = arrive().outputs
        check_integrity(scheduler)
        assert len(output.new_token_ids) == 1
        assert request.num_tokens == 5
        assert (request.num_computed_tokens, request.num_output_placeholders) == (0, 0)
        assert request.status == RequestStatus.PREEMPTED

    def test_its_request_waits_for_it_and_blocks_nobody(self) -> None:
        scheduler, _, arrive = self.preempted()
        add(scheduler, make_request("b"))
        assert scheduler.schedule().num_scheduled_tokens == {"b": 4}
        (why,) = scheduler.last_decisions.not_scheduled
        assert (why.request_id, why.reason) == ("a", Reason.STALE_OUTPUT_IN_FLIGHT)
        assert why.numbers == {"in_flight": 4}
        arrive()
        assert scheduler.schedule().num_scheduled_tokens == {"b": 1, "a": 1}  # 4 of its 5 tokens are cached

    def test_it_can_end_a_request_that_waits(self) -> None:
        scheduler, request, arrive = self.preempted(max_tokens=1)
        (output,) = arrive().outputs
        assert output.finish_reason is not None
        assert not scheduler.waiting
        assert request.request_id not in scheduler.requests
        check_integrity(scheduler)

    def test_drop_mode_discards_it_and_the_token_is_sampled_again(self) -> None:
        scheduler, request, arrive = self.preempted(drop_stale_output=True)
        assert scheduler.schedule().num_scheduled_tokens == {"a": 4}, "it need not wait for what it will not get"
        assert arrive().outputs == []
        assert request.num_tokens == 4
        check_integrity(scheduler)


class TestBatchQueue:
    def test_two_plans_are_under_way_before_the_first_output_is_asked_for(self) -> None:
        core = make_core(async_scheduling=True)
        core.add_request(core_request("a", max_tokens=3))
        assert core.step() is None
        assert len(core.batch_queue) == 1
        outputs = core.step()
        assert outputs is not None
        assert len(core.batch_queue) == 1
        assert [len(o.new_token_ids) for o in outputs.outputs] == [1]

    def test_outputs_come_in_the_order_of_the_plans_and_none_is_lost(self) -> None:
        core = make_core(async_scheduling=True)
        for name, max_tokens in (("a", 3), ("b", 6)):
            core.add_request(core_request(name, max_tokens=max_tokens))
        assert {name: len(tokens) for name, tokens in run_core(core).items()} == {"a": 3, "b": 6}
        assert not core.batch_queue
        assert not core.has_work()

    def test_a_stop_is_found_one_step_late_and_the_extra_token_is_dropped(self) -> None:
        core = make_core(lambda request_id, num_prompt, tokens: len(tokens), async_scheduling=True)
        core.add_request(core_request("a", 4, 20, params={"stop_token_ids": (6,)}))
        assert run_core(core) == {"a": [4, 5, 6]}
        assert core.scheduler.kv_cache_manager.block_pool.get_num_free_blocks() == 199

    @pytest.mark.parametrize("chunk", [3, 8, 64])
    def test_it_generates_what_planning_step_by_step_generates(self, chunk: int) -> None:
        def run(is_async: bool) -> dict[str, list[int]]:
            core = make_core(async_scheduling=is_async, max_num_batched_tokens=chunk, max_num_seqs=3)
            for i, name in enumerate("abcdefg"):
                core.add_request(core_request(name, 3 * i + 1, 2 * i + 1))
            return run_core(core)

        assert run(True) == run(False)


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("when", [1, 2, 3, 5])
def test_a_reset_of_the_prefix_cache_with_running_requests_does_not_change_what_is_generated(
    is_async: bool, when: int
) -> None:
    def run(reset: bool) -> dict[str, list[int]]:
        core = make_core(async_scheduling=is_async, max_num_batched_tokens=16)
        for name in "abc":
            core.add_request(core_request(name, 9, 8))
        outputs: dict[str, list[int]] = {}
        for _ in range(when):
            result = core.step()
            for output in result.outputs if result else ():
                outputs.setdefault(output.request_id, []).extend(output.new_token_ids)
        if reset:
            assert not core.scheduler.reset_prefix_cache(), "refused while blocks are in use"
            assert core.scheduler.reset_prefix_cache(reset_running_requests=True)
            check_integrity(core.scheduler)
            assert not core.scheduler.kv_cache_manager.block_pool.cached_block_hash_to_block
            assert not core.scheduler.running
        for name, tokens in run_core(core).items():
            outputs.setdefault(name, []).extend(tokens)
        return outputs

    assert run(reset=True) == run(reset=False)
