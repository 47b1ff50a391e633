"""One step: who gets how many tokens, in which order, and which rule says so."""

from __future__ import annotations

from typing import Any

import pytest

from minivllm.core.decisions import Reason
from minivllm.core.request import LoRARequest, RequestStatus
from minivllm.core.scheduler import Scheduler
from minivllm.core.step import PauseState
from tests.core.building import (
    add,
    core_request,
    ids,
    make_core,
    make_request,
    make_scheduler,
    run_core,
    step,
    steps,
    tokens_of,
)


def scheduled(scheduler: Scheduler) -> dict[str, int]:
    plan, _ = step(scheduler)
    assert plan.total_num_scheduled_tokens == sum(plan.num_scheduled_tokens.values())
    return dict(plan.num_scheduled_tokens)


def stop(scheduler: Scheduler) -> tuple[str | None, Reason]:
    decision = scheduler.last_decisions.stop
    assert decision is not None
    return decision.request_id, decision.reason


class TestUnifiedDebt:
    """There is no prefill phase and no decode phase: everyone lets computed tokens catch up with known ones."""

    def test_a_prompt_is_computed_whole_and_then_one_token_a_step(self) -> None:
        scheduler = make_scheduler()
        add(scheduler, make_request("a", 10, max_tokens=3))
        sizes = [plan.num_scheduled_tokens.get("a", 0) for plan, _ in steps(scheduler)]
        assert sizes == [10, 1, 1, 0]

    def test_decodes_and_prompts_share_a_step(self) -> None:
        scheduler = make_scheduler()
        add(scheduler, make_request("a", 10))
        step(scheduler)
        add(scheduler, make_request("b", 7))
        assert scheduled(scheduler) == {"a": 1, "b": 7}

    def test_computed_tokens_advance_when_the_step_is_planned(self) -> None:
        scheduler = make_scheduler()
        request = make_request("a", 10)
        add(scheduler, request)
        plan = scheduler.schedule()
        assert request.num_computed_tokens == 10
        assert plan.scheduled_new_reqs[0].num_computed_tokens == 0, "the plan holds the values before it"


class TestBudget:
    def test_a_prompt_longer_than_the_budget_is_cut_into_chunks(self) -> None:
        scheduler = make_scheduler(max_num_batched_tokens=16)
        add(scheduler, make_request("a", 40, max_tokens=1))
        sizes, emitted = [], []
        for plan, outputs in steps(scheduler):
            sizes.append(plan.num_scheduled_tokens.get("a", 0))
            emitted.append(len(outputs))
        assert sizes == [16, 16, 8, 0]
        assert emitted == [0, 0, 1, 0], "a chunk that does not reach the end brings no token"

    def test_running_requests_are_served_before_waiting_ones(self) -> None:
        scheduler = make_scheduler(max_num_batched_tokens=16)
        add(scheduler, make_request("a", 15))
        step(scheduler)
        add(scheduler, make_request("b", 20))
        assert scheduled(scheduler) == {"a": 1, "b": 15}
        assert scheduled(scheduler) == {"a": 1, "b": 5}

    def test_the_loop_stops_when_it_is_spent(self) -> None:
        scheduler = make_scheduler(max_num_batched_tokens=16)
        add(scheduler, make_request("a", 16), make_request("b", 4))
        assert scheduled(scheduler) == {"a": 16}
        assert stop(scheduler) == ("b", Reason.TOKEN_BUDGET)

    def test_a_running_request_beyond_the_budget_waits_its_turn(self) -> None:
        scheduler = make_scheduler(max_num_batched_tokens=8)
        add(scheduler, make_request("a", 20), make_request("b", 2))
        assert scheduled(scheduler) == {"a": 8}
        assert stop(scheduler) == ("b", Reason.TOKEN_BUDGET)


class TestLongPrefillThreshold:
    def test_it_caps_every_request_at_admission_and_after(self) -> None:
        scheduler = make_scheduler(long_prefill_token_threshold=6)
        add(scheduler, make_request("a", 15), make_request("b", 5))
        assert scheduled(scheduler) == {"a": 6, "b": 5}
        cut = scheduler.last_decisions.cut[0]
        assert (cut.request_id, cut.reason) == ("a", Reason.LONG_PREFILL_THRESHOLD)
        assert cut.numbers == {"asked": 15, "granted": 6, "limit": 6}
        assert scheduled(scheduler) == {"a": 6, "b": 1}
        assert scheduled(scheduler) == {"a": 3, "b": 1}

    def test_the_budget_caps_further(self) -> None:
        scheduler = make_scheduler(long_prefill_token_threshold=6, max_num_batched_tokens=8)
        add(scheduler, make_request("a", 15), make_request("b", 15))
        assert scheduled(scheduler) == {"a": 6, "b": 2}
        assert [cut.reason for cut in scheduler.last_decisions.cut] == [
            Reason.LONG_PREFILL_THRESHOLD,
            Reason.TOKEN_BUDGET,
        ]


class TestChunkedPrefillOff:
    def test_a_prompt_that_does_not_fit_into_the_rest_of_the_budget_stops_the_loop(self) -> None:
        scheduler = make_scheduler(enable_chunked_prefill=False, max_num_batched_tokens=64)
        add(scheduler, make_request("a", 40), make_request("b", 40), make_request("c", 2))
        assert scheduled(scheduler) == {"a": 40}
        assert stop(scheduler) == ("b", Reason.CHUNKED_PREFILL_OFF)
        assert scheduler.last_decisions.stop.numbers == {"asked": 40, "left": 24}
        assert scheduled(scheduler) == {"a": 1, "b": 40, "c": 2}

    def test_a_prefix_hit_counts_for_it(self) -> None:
        scheduler = make_scheduler(enable_chunked_prefill=False, max_num_batched_tokens=64)
        add(scheduler, make_request("a", tokens_of("x", 41), max_tokens=1))
        list(steps(scheduler))
        add(scheduler, make_request("b", 60), make_request("c", tokens_of("x", 41)))
        assert scheduled(scheduler) == {"b": 60, "c": 1}


class TestSeats:
    def test_at_most_max_num_seqs_run(self) -> None:
        scheduler = make_scheduler(max_num_seqs=2)
        add(scheduler, *(make_request(name, 4, max_tokens=2) for name in "abc"))
        assert scheduled(scheduler) == {"a": 4, "b": 4}
        assert stop(scheduler) == ("c", Reason.MAX_NUM_SEQS)
        assert scheduler.last_decisions.stop.numbers == {"running": 2, "max_num_seqs": 2}
        scheduled(scheduler)
        assert scheduled(scheduler) == {"c": 4}


class TestAdmission:
    def test_the_whole_sequence_must_fit_not_only_the_first_chunk(self) -> None:
        settings = {"num_gpu_blocks": 11, "max_num_batched_tokens": 12, "max_model_len": 40}
        for reserve, expected in ((True, {"a": 1}), (False, {"a": 1, "b": 11})):
            scheduler = make_scheduler(scheduler_reserve_full_isl=reserve, **settings)
            add(scheduler, make_request("a", 12, max_tokens=20))  # 3 of 10 blocks
            step(scheduler)
            add(scheduler, make_request("b", 32, max_tokens=2))  # 8 blocks
            assert scheduled(scheduler) == expected
            if reserve:
                assert stop(scheduler) == ("b", Reason.FULL_SEQUENCE_DOES_NOT_FIT)
                # The decode of "a" opened a fourth block just before.
                assert scheduler.last_decisions.stop.numbers == {"asked": 8, "free": 6, "watermark": 0, "reserved": 0}

    def test_who_does_not_fit_stops_the_loop_for_those_behind(self) -> None:
        scheduler = make_scheduler(num_gpu_blocks=6, max_model_len=20)
        add(scheduler, make_request("a", 12, max_tokens=4))
        step(scheduler)
        add(scheduler, make_request("big", 16, max_tokens=2), make_request("small", 2, max_tokens=2))
        assert scheduled(scheduler) == {"a": 1}
        assert ids(scheduler.waiting) == ["big", "small"]

    def test_the_watermark_applies_beside_others_only(self) -> None:
        scheduler = make_scheduler(num_gpu_blocks=10, watermark=0.4, max_model_len=36)
        add(scheduler, make_request("a", 28, max_tokens=4))  # 7 of 9 blocks, although 4 are to stay free: it is alone
        assert scheduled(scheduler) == {"a": 28}
        add(scheduler, make_request("b", 2, max_tokens=1))
        assert scheduled(scheduler) == {"a": 1}
        assert stop(scheduler) == ("b", Reason.FULL_SEQUENCE_DOES_NOT_FIT)
        assert scheduler.last_decisions.stop.numbers["watermark"] == 4
        assert {"b"} <= {i for _, outputs in steps(scheduler) for i in outputs}

    def test_order_of_a_plan_is_running_then_admitted(self) -> None:
        scheduler = make_scheduler()
        add(scheduler, make_request("z"), make_request("y"))
        step(scheduler)
        add(scheduler, make_request("b"), make_request("a"))
        assert list(scheduled(scheduler)) == ["z", "y", "b", "a"]

    def test_priority_admits_the_lowest_number_first(self) -> None:
        scheduler = make_scheduler(policy="priority", max_num_seqs=2)
        for name, priority in (("low", 5), ("high", 0), ("mid", 2)):
            add(scheduler, make_request(name, priority=priority))
        assert list(scheduled(scheduler)) == ["high", "mid"]


class TestPrefixHits:
    def test_the_article_case(self) -> None:
        """One decodes; two admitted in the same step with 512 of 2000 and 600 of 603 tokens cached."""
        scheduler = make_scheduler(
            block_size=8, max_model_len=4096, num_gpu_blocks=2000, max_num_batched_tokens=4096,
            long_prefill_token_threshold=256,
        )  # fmt: skip
        settings = {"block_size": 8, "max_tokens": 1}
        add(scheduler, make_request("seed1", tokens_of("r1", 513), **settings))
        add(scheduler, make_request("seed2", tokens_of("r2", 601), **settings))
        list(steps(scheduler))
        add(scheduler, make_request("r0", 5, block_size=8))
        step(scheduler)
        add(scheduler, make_request("r1", tokens_of("r1", 2000), block_size=8))
        add(scheduler, make_request("r2", tokens_of("r2", 603), block_size=8))
        assert scheduled(scheduler) == {"r0": 1, "r1": 256, "r2": 3}
        assert scheduler.last_decisions.prefix_lookups == [("r1", 2000, 512), ("r2", 603, 600)]

    def test_requests_of_one_step_do_hit_what_an_earlier_one_of_that_step_will_write(self) -> None:
        """Blocks are published with the allocation: all requests of a step run in one forward pass, layer by layer,
        and KV is written before it is read."""
        scheduler = make_scheduler()
        add(scheduler, make_request("a", tokens_of("x", 9)), make_request("b", tokens_of("x", 9)))
        assert scheduled(scheduler) == {"a": 9, "b": 1}

    def test_the_first_output_tells_how_much_was_cached_once(self) -> None:
        scheduler = make_scheduler()
        add(scheduler, make_request("a", tokens_of("x", 9), max_tokens=1))
        list(steps(scheduler))
        add(scheduler, make_request("b", tokens_of("x", 9), max_tokens=3))
        told = [outputs["b"].num_cached_tokens for _, outputs in steps(scheduler) if "b" in outputs]
        assert told == [8, None, None]


class TestBlockedRequests:
    """Waiting for something else than its turn: passed over, at the front of the queue, blocking nobody."""

    @pytest.mark.parametrize(
        ("status", "reason"),
        [
            (RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR, Reason.WAITING_FOR_GRAMMAR),
            (RequestStatus.WAITING_FOR_REMOTE_KVS, Reason.WAITING_FOR_REMOTE_KVS),
            (RequestStatus.WAITING_FOR_STREAMING_REQ, Reason.WAITING_FOR_STREAMING_REQ),
        ],
    )
    @pytest.mark.parametrize("policy", ["fcfs", "priority"])
    def test_they_are_skipped_until_they_are_ready(self, policy: Any, status: RequestStatus, reason: Reason) -> None:
        scheduler = make_scheduler(policy=policy)
        blocked = make_request("blocked", status=status)
        add(scheduler, blocked, make_request("other", arrival_time=1.0))
        assert scheduled(scheduler) == {"other": 4}
        assert [(d.request_id, d.reason) for d in scheduler.last_decisions.not_scheduled] == [("blocked", reason)]
        assert stop(scheduler) == (None, Reason.ALL_WAITING_BLOCKED)
        assert ids(scheduler.skipped_waiting) == ["blocked"]
        blocked.ready = True
        assert scheduled(scheduler) == {"other": 1, "blocked": 4}
        assert not scheduler.skipped_waiting

    def test_a_crowd_of_them_does_not_stop_admission(self) -> None:
        """More blocked requests than seats (vllm#53130)."""
        scheduler = make_scheduler(max_num_seqs=2)
        status = RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR
        add(scheduler, *(make_request(f"blocked{i}", status=status) for i in range(5)), make_request("a"))
        assert scheduled(scheduler) == {"a": 4}

    def test_they_keep_their_order_ahead_of_the_others(self) -> None:
        scheduler = make_scheduler(max_num_seqs=2)
        status = RequestStatus.WAITING_FOR_REMOTE_KVS
        blocked = [make_request(f"blocked{i}", status=status) for i in range(3)]
        add(scheduler, *blocked, make_request("a", max_tokens=1), make_request("late"))
        step(scheduler)
        assert ids(scheduler.skipped_waiting) == ["blocked0", "blocked1", "blocked2"]
        for request in blocked[1:]:
            request.ready = True
        assert list(scheduled(scheduler)) == ["late", "blocked1"]
        assert ids(scheduler.skipped_waiting) == ["blocked0", "blocked2"]


class TestAdapters:
    def lora(self, name: str) -> LoRARequest:
        return LoRARequest(name, f"/adapters/{name}")

    def test_one_adapter_too_many_is_passed_over_and_those_behind_it_run(self) -> None:
        scheduler = make_scheduler(max_loras=1)
        add(scheduler, make_request("a", lora_request=self.lora("x"), max_tokens=2))
        add(scheduler, make_request("b", lora_request=self.lora("y")))
        add(scheduler, make_request("c", lora_request=self.lora("x")), make_request("d"))
        assert scheduled(scheduler) == {"a": 4, "c": 4, "d": 4}
        (why,) = scheduler.last_decisions.not_scheduled
        assert (why.request_id, why.reason, why.numbers) == ("b", Reason.LORA_LIMIT, {"loras": 1, "max_loras": 1})

    def test_adapters_of_running_requests_count(self) -> None:
        scheduler = make_scheduler(max_loras=1)
        add(scheduler, make_request("a", lora_request=self.lora("x"), max_tokens=2))
        step(scheduler)
        add(scheduler, make_request("b", lora_request=self.lora("y"), max_tokens=1))
        assert scheduled(scheduler) == {"a": 1}
        assert scheduled(scheduler) == {"b": 4}


class TestPause:
    def test_paused_new_lets_running_requests_go_on_and_admits_nobody(self) -> None:
        scheduler = make_scheduler()
        add(scheduler, make_request("a", max_tokens=3))
        step(scheduler)
        add(scheduler, make_request("b"))
        scheduler.pause_state = PauseState.PAUSED_NEW
        assert scheduler.get_num_unfinished_requests() == 1
        assert scheduled(scheduler) == {"a": 1}
        assert stop(scheduler) == ("b", Reason.PAUSED_NEW)
        assert scheduled(scheduler) == {"a": 1}
        assert scheduler.has_requests(), "the worker must still hear that a has finished"
        step(scheduler)
        assert not scheduler.has_requests()
        scheduler.pause_state = PauseState.UNPAUSED
        assert scheduled(scheduler) == {"b": 4}

    def test_paused_all_lets_nobody_run_and_keeps_everything(self) -> None:
        scheduler = make_scheduler()
        add(scheduler, make_request("a"))
        step(scheduler)
        scheduler.pause_state = PauseState.PAUSED_ALL
        assert not scheduler.has_requests()
        assert scheduled(scheduler) == {}
        assert stop(scheduler) == ("a", Reason.PAUSED_ALL)
        scheduler.pause_state = PauseState.UNPAUSED
        assert scheduled(scheduler) == {"a": 1}

    @pytest.mark.parametrize("is_async", [False, True])
    def test_a_pause_does_not_change_what_is_generated(self, is_async: bool) -> None:
        def run(pauses: dict[int, PauseState]) -> dict[str, list[int]]:
            core = make_core(async_scheduling=is_async, num_gpu_blocks=12, max_model_len=40)
            for name in "abcd":
                core.add_request(core_request(name, 9, 12))
            outputs: dict[str, list[int]] = {}
            for number in range(12):
                core.scheduler.pause_state = pauses.get(number, PauseState.UNPAUSED)
                result = core.step()
                for output in result.outputs if result else ():
                    outputs.setdefault(output.request_id, []).extend(output.new_token_ids)
            for name, tokens in run_core(core).items():
                outputs.setdefault(name, []).extend(tokens)
            return outputs

        paused = {2: PauseState.PAUSED_ALL, 3: PauseState.PAUSED_ALL, 6: PauseState.PAUSED_NEW}
        assert run(paused) == run({})


class TestRefusals:
    """A request that can never run is refused at once, with the remedy; vLLM 0.27.1 lets it block the queue
    (vllm#35541)."""

    CASES = (
        ({"max_model_len": 16}, {"prompt": 16}, "Shorten the prompt or raise max_model_len"),
        ({"max_model_len": 16}, {"prompt": 10, "params": {"min_tokens": 8}}, "Lower min_tokens"),
        ({"num_gpu_blocks": 4}, {"prompt": 13}, "give the KV cache more memory"),
        ({"num_gpu_blocks": 4}, {"prompt": 6, "max_tokens": 8}, "Lower max_tokens"),
        ({"num_gpu_blocks": 4, "num_lookahead_tokens": 4}, {"prompt": 6, "max_tokens": 4}, "Lower max_tokens"),
        ({}, {"lora_request": LoRARequest("x", "/x")}, "Set max_loras"),
    )

    @pytest.mark.parametrize(("settings", "fields", "remedy"), CASES)
    def test_it_is_refused_with_the_remedy_and_blocks_nobody(
        self, settings: dict[str, Any], fields: dict[str, Any], remedy: str
    ) -> None:
        scheduler = make_scheduler(**settings)
        with pytest.raises(ValueError, match="can never run") as refusal:
            add(scheduler, make_request("never", **fields))
        assert "'never'" in str(refusal.value)
        assert remedy in str(refusal.value)
        add(scheduler, make_request("a", 2, max_tokens=2))
        assert scheduled(scheduler) == {"a": 2}

    @pytest.mark.parametrize(("settings", "fields", "remedy"), CASES)
    def test_vllm_semantics_takes_it(self, settings: dict[str, Any], fields: dict[str, Any], remedy: str) -> None:
        scheduler = make_scheduler(semantics="vllm-0.27.1", **settings)
        add(scheduler, make_request("never", **fields))
        assert ids(scheduler.waiting) == ["never"]

    def test_what_just_fits_is_accepted_and_ends(self) -> None:
        scheduler = make_scheduler(num_gpu_blocks=4, max_model_len=16)  # 12 slots
        add(scheduler, make_request("a", 6, max_tokens=7))  # the 13th token is sampled and needs no slot
        assert sum(len(outputs) for _, outputs in steps(scheduler)) == 7

    def test_an_id_in_use_is_refused(self) -> None:
        scheduler = make_scheduler()
        add(scheduler, make_request("a"))
        with pytest.raises(ValueError, match="in use"):
            add(scheduler, make_request("a"))


class TestPlan:
    def test_new_requests_travel_whole_and_running_ones_as_deltas(self) -> None:
        scheduler = make_scheduler()
        add(scheduler, make_request("a", 7))
        plan, _ = step(scheduler)
        (new,) = plan.scheduled_new_reqs
        assert (new.req_id, new.prompt_token_ids, new.block_ids) == ("a", tokens_of("a", 7), [1, 2])
        deltas = []
        for _ in range(3):
            plan, _ = step(scheduler)
            cached = plan.scheduled_cached_reqs
            deltas.append((cached.new_block_ids, cached.num_computed_tokens, cached.num_output_tokens))
            assert not plan.scheduled_new_reqs
            assert not cached.all_token_ids
        assert deltas == [([None], [7], [1]), ([[3]], [8], [2]), ([None], [9], [3])]

    def test_who_finished_is_told_with_the_next_plan_and_once(self) -> None:
        scheduler = make_scheduler()
        add(scheduler, make_request("a", max_tokens=1), make_request("b", max_tokens=3))
        told = [plan.finished_req_ids for plan, _ in steps(scheduler)]
        assert told == [set(), {"a"}, set(), {"b"}]

    def test_columns_have_one_entry_a_request(self) -> None:
        scheduler = make_scheduler(num_gpu_blocks=10, max_model_len=36)
        add(scheduler, *(make_request(name, 9, max_tokens=12) for name in "abc"))
        seen_resumed = False
        for plan, _ in steps(scheduler):
            cached = plan.scheduled_cached_reqs
            lengths = {len(c) for c in (cached.new_block_ids, cached.num_computed_tokens, cached.num_output_tokens)}
            assert lengths == {len(cached.req_ids)}
            assert cached.resumed_req_ids == set(cached.all_token_ids) <= set(cached.req_ids)
            everyone = [new.req_id for new in plan.scheduled_new_reqs] + cached.req_ids
            assert sorted(everyone) == sorted(plan.num_scheduled_tokens)
            assert all(count > 0 for count in plan.num_scheduled_tokens.values())
            seen_resumed |= bool(cached.resumed_req_ids)
        assert seen_resumed
