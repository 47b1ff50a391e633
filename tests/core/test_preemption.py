"""Blocks run out: who loses them, what he keeps, and how he comes back."""

from __future__ import annotations

from typing import Any

import pytest

from minivllm.core.decisions import Reason
from minivllm.core.request import RequestStatus
from minivllm.core.scheduler import Scheduler
from tests.core.building import add, core_request, ids, make_core, make_request, make_scheduler, run_core, step, steps


def until_preemption(scheduler: Scheduler, limit: int = 50) -> list[str]:
    """Step until somebody is preempted; his ids, in order."""
    for _ in range(limit):
        step(scheduler)
        if scheduler.last_decisions.preempted:
            return [victim for victim, _, _ in scheduler.last_decisions.preempted]
    raise AssertionError("nobody was preempted")


def tight(**settings: Any) -> Scheduler:
    """9 usable blocks of 4 tokens: four requests of two full blocks run, and for a third block each one must go."""
    return make_scheduler(**{"num_gpu_blocks": 10, "max_model_len": 32, **settings})


class TestVictim:
    def test_fcfs_takes_the_last_to_come(self) -> None:
        scheduler = tight()
        add(scheduler, *(make_request(name, 8, max_tokens=16) for name in "abcd"))
        assert until_preemption(scheduler) == ["d"]
        assert ids(scheduler.running) == ["a", "b", "c"]
        assert ids(scheduler.waiting) == ["d"]

    def test_who_asks_can_be_the_victim_himself_and_then_the_loop_stops(self) -> None:
        scheduler = tight(num_gpu_blocks=9)
        add(scheduler, make_request("a", 15, max_tokens=10), make_request("b", 16, max_tokens=10))
        assert until_preemption(scheduler) == ["b"]
        assert scheduler.last_decisions.preempted[0][2] == "b"
        assert scheduler.last_decisions.stop.reason == Reason.NO_FREE_BLOCKS

    @pytest.mark.parametrize(
        ("priorities", "arrivals", "victim"),
        [
            ((0, 1, 2, 3), (0, 0, 0, 0), "d"),
            ((0, 3, 1, 2), (0, 0, 0, 0), "b"),
            ((1, 1, 1, 1), (0, 1, 3, 2), "c"),  # equal priorities: the latest
            ((2, 2, 2, 2), (5, 5, 5, 5), "d"),  # all equal: the last in the order of the queue
        ],
    )
    def test_priority_takes_the_highest_number_then_the_latest(
        self, priorities: tuple[int, ...], arrivals: tuple[int, ...], victim: str
    ) -> None:
        scheduler = tight(policy="priority")
        for name, priority, arrival in zip("abcd", priorities, arrivals, strict=True):
            add(scheduler, make_request(name, 8, max_tokens=16, priority=priority, arrival_time=float(arrival)))
        assert until_preemption(scheduler) == [victim]

    def test_a_victim_that_was_scheduled_already_leaves_the_plan_and_its_budget_is_free_again(self) -> None:
        """Under priority the victim can stand before the one who asks (vllm#23347)."""
        scheduler = tight(policy="priority", max_num_batched_tokens=16, num_gpu_blocks=9)
        add(scheduler, make_request("low", 13, priority=9, max_tokens=10))
        step(scheduler)
        add(scheduler, make_request("high", 16, priority=0, max_tokens=10))
        step(scheduler)
        step(scheduler)  # "high" has its first token, and needs a fifth block for it
        assert ids(scheduler.running) == ["low", "high"]
        while not scheduler.last_decisions.preempted:
            plan, outputs = step(scheduler)
        assert [victim for victim, _, _ in scheduler.last_decisions.preempted] == ["low"]
        assert plan.num_scheduled_tokens == {"high": 1}
        assert plan.scheduled_cached_reqs.req_ids == ["high"]
        assert plan.preempted_req_ids == {"low"}
        assert set(outputs) == {"high"}

    def test_the_budget_of_a_victim_goes_to_those_behind(self) -> None:
        scheduler = make_scheduler(
            policy="priority",
            num_gpu_blocks=12,
            max_model_len=40,
            max_num_batched_tokens=16,
            long_prefill_token_threshold=14,
            scheduler_reserve_full_isl=False,
        )
        add(scheduler, make_request("low", 14, priority=9, max_tokens=10))
        step(scheduler)
        add(scheduler, make_request("high", 36, priority=0, max_tokens=1), make_request("mid", 5, priority=1))
        assert step(scheduler)[0].num_scheduled_tokens == {"low": 1, "high": 14, "mid": 1}
        plan, _ = step(scheduler)
        assert plan.preempted_req_ids == {"low"}
        assert plan.num_scheduled_tokens == {"high": 14, "mid": 2}  # and not 1, what "low" and "high" had left

    def test_nobody_is_admitted_in_a_step_that_preempts(self) -> None:
        scheduler = tight()
        add(scheduler, *(make_request(name, 8, max_tokens=16) for name in "abcd"))
        add(scheduler, make_request("tiny", 1, max_tokens=1))
        until_preemption(scheduler)
        stop = scheduler.last_decisions.stop
        assert (stop.request_id, stop.reason, stop.numbers) == ("d", Reason.PREEMPTED_THIS_STEP, {"preempted": 1})


@pytest.mark.parametrize(
    ("semantics", "planned"),
    [("fixed", {"a": 1, "b": 1}), ("vllm-0.27.1", {"a": 1})],
)
def test_a_victim_before_the_cursor_moves_the_cursor(semantics: str, planned: dict[str, int]) -> None:
    """The victim was looked at and got nothing. vLLM 0.27.1 does not move the cursor then, and skips the next
    request although there is budget and memory for it (vllm#49097)."""
    core = make_core(async_scheduling=True, policy="priority", semantics=semantics, num_gpu_blocks=5, max_model_len=16)
    core.add_request(core_request("victim", 4, 5, priority=9))
    core.step()
    core.add_request(core_request("a", 1, 8, priority=0))
    core.add_request(core_request("b", 1, 8, priority=1))
    for _ in range(4):
        core.step()
    scheduler = core.scheduler
    assert ids(scheduler.running) == ["victim", "a", "b"]
    plan = scheduler.schedule()
    # All its tokens are in flight, so it is passed over; then "a" needs a block, and takes those of the victim.
    assert plan.preempted_req_ids == {"victim"}
    assert plan.num_scheduled_tokens == planned
    reasons = [(decision.request_id, decision.reason) for decision in scheduler.last_decisions.not_scheduled]
    assert reasons == [("victim", Reason.PREEMPTED)], "the last reason counts, and a skipped request has none"


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("semantics", ["fixed", "vllm-0.27.1"])
def test_equals_do_not_preempt_each_other_for_ever(is_async: bool, semantics: str) -> None:
    """Two requests of one priority and arrival time, and memory for one. vLLM 0.27.1 takes the first of the running
    list, whoever that is: he comes back at its end, and takes the blocks of the other, who is then the first."""
    core = make_core(
        policy="priority", semantics=semantics, async_scheduling=is_async, block_size=2, num_gpu_blocks=13,
        max_model_len=24, long_prefill_token_threshold=3, scheduler_reserve_full_isl=False,
        enable_prefix_caching=False,
    )  # fmt: skip
    for name in "ab":
        core.add_request(core_request(name, 12, 10))
    if semantics == "fixed":
        assert {name: len(tokens) for name, tokens in run_core(core).items()} == {"a": 10, "b": 10}
    else:
        with pytest.raises(AssertionError, match="still at work"):
            run_core(core, 200)


def test_a_cut_names_the_limit_that_held_when_the_tokens_were_counted() -> None:
    """A victim that gives its share of the budget back does not make the budget less of a limit."""
    scheduler = make_scheduler(
        policy="priority",
        num_gpu_blocks=12,
        max_model_len=40,
        max_num_batched_tokens=16,
        scheduler_reserve_full_isl=False,
    )
    add(scheduler, make_request("low", 14, priority=9, max_tokens=10))
    step(scheduler)
    add(scheduler, make_request("high", 36, max_tokens=1))
    assert step(scheduler)[0].num_scheduled_tokens == {"low": 1, "high": 15}
    plan, _ = step(scheduler)
    assert plan.preempted_req_ids == {"low"}
    assert plan.num_scheduled_tokens == {"high": 15}
    (cut,) = scheduler.last_decisions.cut
    assert (cut.reason, cut.numbers) == (Reason.TOKEN_BUDGET, {"asked": 21, "granted": 15, "limit": 15})


class TestWhatRemains:
    def test_tokens_stay_and_everything_computed_is_lost(self) -> None:
        scheduler = tight()
        requests = [make_request(name, 8, max_tokens=16) for name in "abcd"]
        add(scheduler, *requests)
        until_preemption(scheduler)
        victim = requests[3]
        assert victim.status == RequestStatus.PREEMPTED
        assert victim.num_output_tokens > 0
        assert victim.num_computed_tokens == 0
        assert victim.num_preemptions == 1
        assert scheduler.kv_cache_manager.get_block_ids("d") == []

    def test_it_goes_back_to_the_front_of_the_queue(self) -> None:
        scheduler = tight()
        add(scheduler, *(make_request(name, 8, max_tokens=16) for name in "abcdef"))
        until_preemption(scheduler)
        assert ids(scheduler.waiting) == ["d", "e", "f"]

    def test_it_stays_preempted_until_it_runs_again_and_then_computes_its_output_too(self) -> None:
        scheduler = tight(enable_prefix_caching=False)
        requests = [make_request(name, 8, max_tokens=16) for name in "abcd"]
        add(scheduler, *requests)
        until_preemption(scheduler)
        known = requests[3].num_tokens
        for plan, _ in steps(scheduler):
            if "d" in plan.num_scheduled_tokens:
                break
            assert requests[3].status == RequestStatus.PREEMPTED
        assert "d" in plan.scheduled_cached_reqs.resumed_req_ids
        assert plan.num_scheduled_tokens["d"] == known
        assert len(plan.scheduled_cached_reqs.all_token_ids["d"]) == known
        assert not plan.scheduled_new_reqs

    def test_the_prefix_cache_gives_most_of_it_back(self) -> None:
        scheduler = tight(num_gpu_blocks=9)
        add(scheduler, make_request("a", 8, max_tokens=13), make_request("b", 16, max_tokens=12))
        assert until_preemption(scheduler) == ["b"]
        lookups = []
        for _ in steps(scheduler):
            lookups += scheduler.last_decisions.prefix_lookups
        assert lookups[0][0] == "b"
        assert lookups[0][2] > 0


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("caching", [False, True])
@pytest.mark.parametrize("chunk", [8, 64])
def test_preemption_does_not_change_what_is_generated(policy: str, is_async: bool, caching: bool, chunk: int) -> None:
    def run(num_gpu_blocks: int) -> tuple[dict[str, list[int]], int]:
        core = make_core(
            num_gpu_blocks=num_gpu_blocks, max_model_len=40, policy=policy, async_scheduling=is_async,
            enable_prefix_caching=caching, max_num_batched_tokens=chunk,
        )  # fmt: skip
        preemptions = 0
        for i, name in enumerate("abcdef"):
            core.add_request(core_request(name, 5 + 3 * i, 22, priority=i % 3, arrival_time=float(i)))
        requests = list(core.scheduler.requests.values())
        outputs = run_core(core)
        preemptions = sum(request.num_preemptions for request in requests)
        return outputs, preemptions

    roomy, none = run(400)
    tight, some = run(12)
    assert none == 0
    assert some > 0
    assert tight == roomy
