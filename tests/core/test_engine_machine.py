"""The whole core under random use: arrivals, aborts, steps, pauses, resets and drafts, planned ahead or not.

After every operation everything is checked (integrity, the decision record, the common prefix). At the end, when no
more requests come, everyone must end within a bound, exactly once, with the very tokens that the model gives to a
request that is alone in the world, and every block must be back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from minivllm.core.admission import RequestRefusedError
from minivllm.core.integrity import check_integrity
from minivllm.core.messages import EngineCoreOutputs, EngineCoreRequest
from minivllm.core.request import FinishReason
from minivllm.core.scheduler_output import SchedulerOutput
from minivllm.core.step import PauseState
from minivllm.engine.core import EngineCore
from minivllm.executor.sim import SimExecutor
from minivllm.sampling_params import SamplingParams
from tests.core.building import make_config
from tests.core.decision_rules import DecisionCheck

VOCAB_SIZE = 3  # so that answers repeat, prefixes are often equal, and stop ids are often met
SYSTEM_PROMPT = [0, 1, 2, 0, 0, 1, 1, 2, 2, 0]


def model(request_id: str, num_prompt_tokens: int, tokens: Sequence[int]) -> int:
    """The next token depends on every token before it and on its place, as a real model's does."""
    return (sum((i + 3) * token for i, token in enumerate(tokens)) * 7 + len(tokens)) % VOCAB_SIZE


class EngineMachine(RuleBasedStateMachine):
    @initialize(data=st.data())
    def start(self, data: st.DataObject) -> None:
        def draw(*values: Any) -> Any:
            return data.draw(st.sampled_from(values))

        max_num_seqs = draw(1, 2, 3, 6)
        max_model_len = draw(12, 24, 40)
        chunked = draw(True, True, False)
        budget = max(draw(2, 5, 9, 20, 64), max_num_seqs, 0 if chunked else max_model_len)
        block_size = draw(1, 2, 3, 4, 8)
        longest = -(-max_model_len // block_size)
        self.is_async = draw(False, True)
        self.config = make_config(
            max_num_seqs=max_num_seqs,
            max_model_len=max_model_len,
            max_num_batched_tokens=budget,
            enable_chunked_prefill=chunked,
            block_size=block_size,
            num_gpu_blocks=longest + draw(1, 2, 3, longest),
            enable_prefix_caching=draw(True, True, False),
            policy=draw("fcfs", "priority"),
            long_prefill_token_threshold=draw(0, 0, 3, 8),
            watermark=draw(0.0, 0.0, 0.2),
            scheduler_reserve_full_isl=draw(True, False),
            num_lookahead_tokens=draw(0, 0, 2),
            async_scheduling=self.is_async,
        )
        self.core = EngineCore(self.config, SimExecutor(model))
        self.scheduler = self.core.scheduler
        self.is_whole = True
        self._watch_schedule()
        self.asked: dict[str, EngineCoreRequest] = {}
        self.outputs: dict[str, list[int]] = {}
        self.ends: dict[str, FinishReason] = {}
        self.clock = 0

    def _watch_schedule(self) -> None:
        plain = self.scheduler.schedule

        def watched() -> SchedulerOutput:
            check = DecisionCheck(self.scheduler)
            self.is_whole = False  # if a check fails, the plan is never run: nothing can be said of the end
            plan = plain()
            check.check(plan)
            check_integrity(self.scheduler)
            assert plan.total_num_scheduled_tokens <= self.config.scheduler_config.max_num_batched_tokens
            assert plan.num_common_prefix_blocks == self._common_prefix()
            self._check_plan(plan)
            self.is_whole = True
            return plan

        self.scheduler.schedule = watched  # type: ignore[method-assign]

    def _check_plan(self, plan: SchedulerOutput) -> None:
        cached = plan.scheduled_cached_reqs
        scheduled = set(plan.num_scheduled_tokens)
        assert {n.req_id for n in plan.scheduled_new_reqs} | set(cached.req_ids) == scheduled
        assert set(plan.scheduled_spec_decode_tokens) <= scheduled
        # Only a reset of the cache preempts between two plans, so that its victims can be back in the next one.
        assert plan.preempted_req_ids & scheduled <= cached.resumed_req_ids
        assert not plan.finished_req_ids & scheduled
        computed = {n.req_id: n.num_computed_tokens for n in plan.scheduled_new_reqs}
        computed.update(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        for request_id, count in plan.num_scheduled_tokens.items():
            table = self.scheduler.kv_cache_manager.get_block_ids(request_id)
            end = computed[request_id] + count
            assert end <= len(table) * self.config.cache_config.block_size, "a scheduled token has no slot"
            assert len(plan.scheduled_spec_decode_tokens.get(request_id, ())) < count, "drafts need a known token"

    def _common_prefix(self) -> int:
        tables = [self.scheduler.kv_cache_manager.get_block_ids(r.request_id) for r in self.scheduler.running]
        if not tables or not self.config.cache_config.enable_prefix_caching:
            return 0
        common = 0
        while all(len(table) > common and table[common] == tables[0][common] for table in tables):
            common += 1
        return common

    # ---- what can happen ------------------------------------------------------------------------------------------

    @rule(
        prefix=st.sampled_from([0, 0, 4, 8, 10]),
        prompt=st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=1, max_size=14),
        max_tokens=st.integers(1, 16),
        priority=st.integers(0, 2),
        stop_token_ids=st.sampled_from([(), (), (1,), (0, 2)]),
        min_tokens=st.integers(0, 3),
    )
    def arrive(
        self, prefix: int, prompt: list[int], max_tokens: int, priority: int, stop_token_ids: tuple[int, ...],
        min_tokens: int,
    ) -> None:  # fmt: skip
        params = SamplingParams(
            temperature=0.0,
            max_tokens=max_tokens,
            stop_token_ids=stop_token_ids,
            min_tokens=min(min_tokens, max_tokens),
        )
        self.clock += 1
        request = EngineCoreRequest(
            f"r{len(self.asked)}",
            SYSTEM_PROMPT[:prefix] + prompt,
            params,
            arrival_time=float(self.clock // 2),  # some arrive at the same time
            priority=priority,
        )
        try:
            self.core.add_request(request)
        except RequestRefusedError:
            return
        self.asked[request.request_id] = request

    @rule(count=st.integers(1, 5))
    def step(self, count: int) -> None:
        for _ in range(count):
            self._commit(self.core.step())
            check_integrity(self.scheduler)

    @precondition(lambda self: self.asked)
    @rule(data=st.data(), mid=st.booleans())
    def abort(self, data: st.DataObject, mid: bool) -> None:
        """Someone, ended already or not; at once, or after the model's next run and before its output counts."""
        request_id = data.draw(st.sampled_from(sorted(self.asked)))
        known = request_id in self.scheduler.requests
        if mid:
            self.core.aborts_queue.append([request_id, "nobody"])
            self._commit(self.core.step())
            self.core._process_aborts_queue()
            if request_id not in self.ends:
                assert known
                self.ends[request_id] = FinishReason.ABORT
        else:
            assert self.core.abort_requests([request_id, "nobody"]) == ([request_id] if known else [])
            if known:
                self.ends[request_id] = FinishReason.ABORT

    @rule(state=st.sampled_from(list(PauseState)))
    def pause(self, state: PauseState) -> None:
        self.scheduler.pause_state = state

    @rule(running_too=st.booleans())
    def reset_prefix_cache(self, running_too: bool) -> None:
        idle = not self.scheduler.running
        assert self.scheduler.reset_prefix_cache(running_too) == (idle or running_too)

    @precondition(lambda self: not self.is_async and self.scheduler.running)
    @rule(num_right=st.integers(0, 3), num_wrong=st.integers(0, 2))
    def draft(self, num_right: int, num_wrong: int) -> None:
        drafts: dict[str, list[int]] = {}
        for request in self.scheduler.running:
            tokens = list(request.all_token_ids)
            for _ in range(num_right):
                tokens.append(model("", 0, tokens))
            for _ in range(num_wrong):
                tokens.append((model("", 0, tokens) + 1) % VOCAB_SIZE)
            drafts[request.request_id] = tokens[request.num_tokens :]
        self.scheduler.update_draft_token_ids(drafts)

    def _commit(self, outputs: EngineCoreOutputs | None) -> None:
        for output in outputs.outputs if outputs else ():
            assert output.request_id not in self.ends, "output after the end"
            self.outputs.setdefault(output.request_id, []).extend(output.new_token_ids)
            if output.finish_reason is not None:
                self.ends[output.request_id] = output.finish_reason

    # ---- what must hold -------------------------------------------------------------------------------------------

    @invariant()
    def integrity(self) -> None:
        if hasattr(self, "scheduler"):
            check_integrity(self.scheduler)

    def teardown(self) -> None:
        if not hasattr(self, "scheduler") or not self.is_whole:
            return
        self.scheduler.pause_state = PauseState.UNPAUSED
        # Every step computes at least one token or frees someone; recomputation after preemptions costs the most.
        bound = 50 + 40 * len(self.asked)
        for _ in range(bound):
            if not self.core.has_work():
                break
            self._commit(self.core.step())
            check_integrity(self.scheduler)
        assert not self.core.has_work(), f"after {bound} steps still there: {list(self.scheduler.requests.values())}"
        assert not self.scheduler.requests
        assert not self.core.batch_queue
        pool = self.scheduler.kv_cache_manager.block_pool
        assert pool.get_num_free_blocks() == pool.num_gpu_blocks - 1
        assert set(self.ends) == set(self.asked), "everyone who was accepted ends"
        for request_id, request in self.asked.items():
            expected, reason = _alone(request, self.config.scheduler_config.max_model_len)
            got = self.outputs.get(request_id, [])
            if self.ends[request_id] == FinishReason.ABORT:
                assert got == expected[: len(got)]
            else:
                assert (got, self.ends[request_id]) == (expected, reason)


def _alone(request: EngineCoreRequest, max_model_len: int) -> tuple[list[int], FinishReason]:
    """What the model says to a request, token by token, with no scheduler in between."""
    tokens, output = list(request.prompt_token_ids), []
    params = request.sampling_params
    while True:
        tokens.append(model("", 0, tokens))
        output.append(tokens[-1])
        if len(output) >= params.min_tokens:
            if output[-1] in params.stop_token_ids:
                return output, FinishReason.STOP
            if len(tokens) >= max_model_len or len(output) >= (params.max_tokens or 1 << 62):
                return output, FinishReason.LENGTH


TestEngineMachine = EngineMachine.TestCase
