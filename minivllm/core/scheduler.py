"""Owns who runs in the next step and with how many tokens.

There is no prefill phase and no decode phase. Every request has known tokens and computed tokens, and each step lets
the computed ones catch up with the known ones, within a budget. What leaves here is the plan (`SchedulerOutput`), what
comes back is `ModelRunnerOutput`. Upstream: vllm/v1/core/sched/scheduler.py::Scheduler.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from minivllm.config import CacheConfig, SchedulerConfig
from minivllm.core.admission import RequestRefusedError, why_never
from minivllm.core.decisions import StepDecisions
from minivllm.core.kv_cache_manager import KVCacheManager
from minivllm.core.messages import EngineCoreOutput, EngineCoreOutputs
from minivllm.core.plan_builder import build_plan
from minivllm.core.request import Request, RequestStatus
from minivllm.core.request_queue import RequestQueue, create_request_queue
from minivllm.core.schedule_running import schedule_running
from minivllm.core.schedule_waiting import schedule_waiting
from minivllm.core.scheduler_output import ModelRunnerOutput, SchedulerOutput
from minivllm.core.step import PauseState, Step
from minivllm.core.stop_check import check_stop
from minivllm.sourcemap.registry import on_map


class Scheduler:
    """Plans one step at a time.

    Args:
        config: Limits and policy.
        cache_config: Block size and prefix caching; `num_gpu_blocks` must be set.
    """

    def __init__(self, config: SchedulerConfig, cache_config: CacheConfig) -> None:
        assert cache_config.num_gpu_blocks is not None, "the worker sizes the KV cache before there is a scheduler"
        self.config = config
        self.max_model_len = config.max_model_len
        self.kv_cache_manager = KVCacheManager(
            cache_config.num_gpu_blocks,
            cache_config.block_size,
            config.max_model_len,
            cache_config.enable_prefix_caching,
            config.watermark,
        )
        self.requests: dict[str, Request] = {}
        self.running: list[Request] = []
        self.waiting: RequestQueue = create_request_queue(config.policy)
        # Blocked requests, and those that were looked at and passed over. They go before `waiting` (first come, first
        # served), or compete with it by their key (priority).
        self.skipped_waiting: RequestQueue = create_request_queue(config.policy)
        # Finished since the last plan: the worker still keeps a place for them.
        self.finished_req_ids: set[str] = set()
        self.preempted_req_ids: set[str] = set()
        # Tokens that steps in flight will still bring for requests that have ended: their ids are not free yet.
        self.ended_in_flight: dict[str, int] = {}
        self.pause_state = PauseState.UNPAUSED
        self.last_decisions = StepDecisions()

    # ---- requests come and go -------------------------------------------------------------------------------------

    @on_map("add request", vllm="vllm/v1/core/sched/scheduler.py::Scheduler.add_request")
    def add_request(self, request: Request) -> None:
        """Put a request into the queue; nothing runs yet.

        Raises:
            RequestRefusedError: It could never run; it would block everyone behind it for ever.
            ValueError: Its id is in use, by a request or by output of an ended one that is still on its way.
        """
        if request.request_id in self.requests or request.request_id in self.ended_in_flight:
            raise ValueError(f"request id {request.request_id!r} is in use: give every request its own id")
        if self.config.semantics == "fixed" and (why := why_never(request, self.config, self.kv_cache_manager)):
            raise RequestRefusedError(f"request {request.request_id!r} can never run: {why}")
        self.requests[request.request_id] = request
        (self.skipped_waiting if request.status.is_blocked else self.waiting).add_request(request)

    @on_map("finish requests", vllm="vllm/v1/core/sched/scheduler.py::Scheduler.finish_requests")
    def finish_requests(self, request_ids: Iterable[str], status: RequestStatus) -> list[Request]:
        """End requests from outside (abort, stop string). Idempotent: ids that are unknown or ended are ignored.

        Blocks return to the pool in the order of `request_ids`. (vLLM goes through a set there, so that order
        depends on its hash seed.)

        Returns:
            The requests that ended now.
        """
        assert status.is_finished, f"{status.name} does not end a request"
        ended = []
        for request_id in dict.fromkeys(request_ids):
            request = self.requests.get(request_id)
            if request is None or request.is_finished:
                continue
            if request.status == RequestStatus.RUNNING:
                self.running.remove(request)
            else:
                self.waiting.remove_requests({request})
                self.skipped_waiting.remove_requests({request})
            request.status = status
            self._free_request(request)
            ended.append(request)
        return ended

    def has_requests(self) -> bool:
        """Whether a plan is due: someone can go on, or the worker must be told who finished."""
        return self.get_num_unfinished_requests() > 0 or bool(self.finished_req_ids)

    def get_num_unfinished_requests(self) -> int:
        """Requests that the current pause state lets go on."""
        if self.pause_state == PauseState.PAUSED_ALL:
            return 0
        if self.pause_state == PauseState.PAUSED_NEW:
            return len(self.running)
        return len(self.running) + len(self.waiting) + len(self.skipped_waiting)

    def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        """Forget all cached prefixes. With running requests it is refused, unless they may be preempted for it."""
        if reset_running_requests:
            while self.running:  # from the end, so that the queue has them in their old order
                self.preempt_request(self.running.pop(), drop_stale_output=True)
        return self.kv_cache_manager.reset_prefix_cache()

    # ---- one step -------------------------------------------------------------------------------------------------

    @on_map("schedule one step", vllm="vllm/v1/core/sched/scheduler.py::Scheduler.schedule")
    def schedule(self) -> SchedulerOutput:
        """Plan the next step: running requests first, then, if nobody had to be preempted, waiting ones."""
        budget = 0 if self.pause_state == PauseState.PAUSED_ALL else self.config.max_num_batched_tokens
        step = Step(budget, StepDecisions(budget))
        schedule_running(self, step)
        schedule_waiting(self, step)
        assert step.token_budget >= 0, "INV-03: a step never spends more than its token budget"
        assert len(self.running) <= self.config.max_num_seqs, "INV-04: at most max_num_seqs requests run"

        plan = build_plan(step, self.running, self.kv_cache_manager, self.finished_req_ids, self.preempted_req_ids)
        self._update_after_schedule(plan)
        self.last_decisions = step.decisions
        return plan

    # ---- after the step is planned, and after it has run ----------------------------------------------------------

    def preempt_request(self, request: Request, *, drop_stale_output: bool = False) -> None:
        """Take all blocks from a request and queue it again; its tokens are kept and will be computed anew.

        Args:
            request: Already off the running list.
            drop_stale_output: Discard output that is still in flight, instead of delivering it. For a request that
                may be planned again before that output arrives.
        """
        assert request.status == RequestStatus.RUNNING, "only a running request can be preempted"
        self.kv_cache_manager.free(request)
        request.status = RequestStatus.PREEMPTED
        request.num_computed_tokens = 0
        request.spec_token_ids = []
        # What is in flight now was planned before this preemption. If some of it was to be dropped already, all is.
        request.drop_stale_output = drop_stale_output or (
            request.drop_stale_output and request.num_stale_output_tokens > 0
        )
        request.num_stale_output_tokens = request.num_in_flight_tokens
        request.num_output_placeholders = 0
        request.num_preemptions += 1
        self.waiting.prepend_request(request)
        self.preempted_req_ids.add(request.request_id)

    @on_map("after-schedule advance", vllm="vllm/v1/core/sched/scheduler.py::Scheduler._update_after_schedule")
    def _update_after_schedule(self, plan: SchedulerOutput) -> None:
        """Count the planned tokens as computed now, so that the next step can be planned before this one has run."""
        requests = self.requests
        for request_id, num_tokens in plan.num_scheduled_tokens.items():
            request = requests[request_id]
            request.num_computed_tokens = num_computed = request.num_computed_tokens + num_tokens
            request.num_in_flight_tokens += num_tokens
            request.is_prefill_chunk = num_computed < request.num_tokens + request.num_output_placeholders
        # The plan keeps the old sets.
        self.finished_req_ids = set()
        self.preempted_req_ids = set()

    def update_draft_token_ids(self, draft_token_ids: dict[str, list[int]]) -> None:
        """Take the drafts to verify in the next step; those for unknown or still prefilling requests are dropped."""
        for request_id, drafts in draft_token_ids.items():
            request = self.requests.get(request_id)
            if request is not None:
                request.spec_token_ids = [] if request.is_prefill_chunk else list(drafts)

    @on_map("update from output", vllm="vllm/v1/core/sched/scheduler.py::Scheduler.update_from_output")
    def update_from_output(self, plan: SchedulerOutput, output: ModelRunnerOutput) -> EngineCoreOutputs:
        """Commit what a step produced: append tokens, check stops, take back rejected drafts, free who is done.

        Args:
            plan: The plan that ran; with async scheduling younger plans may exist already.
            output: What it produced.
        """
        outputs: list[EngineCoreOutput] = []
        stopped: list[Request] = []
        requests, all_drafts = self.requests, plan.scheduled_spec_decode_tokens
        sampled, index_of = output.sampled_token_ids, output.req_id_to_index
        for request_id, num_scheduled in plan.num_scheduled_tokens.items():
            request = requests.get(request_id)
            if request is None:
                self._drop_late_output(request_id, num_scheduled)
                continue
            request.num_in_flight_tokens -= num_scheduled
            is_stale = request.num_stale_output_tokens > 0
            if is_stale:
                request.num_stale_output_tokens -= num_scheduled
                if request.drop_stale_output:
                    continue
            new_token_ids = sampled[index_of[request_id]]
            if not new_token_ids:
                continue  # a chunk of a prompt that goes on
            if all_drafts and request_id in all_drafts and not is_stale:
                self._take_back_rejected(request, len(all_drafts[request_id]) - (len(new_token_ids) - 1))
            new_token_ids, has_stopped = self._update_request_with_output(request, new_token_ids, is_stale)
            if has_stopped:
                stopped.append(request)
                self._free_request(request)
            outputs.append(_make_output(request, new_token_ids, has_stopped))
        self._remove_stopped(stopped)
        if output.logprobs is not None or output.prompt_logprobs_dict is not None:
            outputs = [_with_scores(made, output) for made in outputs]
        return EngineCoreOutputs(outputs)

    def _drop_late_output(self, request_id: str, num_scheduled: int) -> None:
        """A request ended while a step of it ran, by an abort or a step early: its tokens are not wanted."""
        self.ended_in_flight[request_id] -= num_scheduled
        if self.ended_in_flight[request_id] == 0:
            del self.ended_in_flight[request_id]

    def _take_back_rejected(self, request: Request, num_rejected: int) -> None:
        if request.num_computed_tokens > 0:
            request.num_computed_tokens -= num_rejected
        if request.num_output_placeholders > 0:
            request.num_output_placeholders -= num_rejected

    def _update_request_with_output(
        self, request: Request, new_token_ids: list[int], is_stale: bool
    ) -> tuple[list[int], bool]:
        """Append tokens one by one, up to the first that ends the request.

        Returns:
            The tokens that were kept, and whether the request ended.
        """
        num_before = request.num_tokens
        for token_id in new_token_ids:
            request.append_output_token_ids(token_id)
            if check_stop(request, self.max_model_len):
                return new_token_ids[: request.num_tokens - num_before], True
        return new_token_ids, False

    def _remove_stopped(self, stopped: list[Request]) -> None:
        if not stopped:
            return
        gone = set(stopped)
        self.running = [r for r in self.running if r not in gone]
        # A preempted request can end, too, by output that was in flight when it lost its blocks.
        if any(r in gone for r in self.waiting):
            self.waiting.remove_requests(gone)
        if any(r in gone for r in self.skipped_waiting):
            self.skipped_waiting.remove_requests(gone)

    def _free_request(self, request: Request) -> None:
        """Forget an ended request; the worker hears of it with the next plan."""
        assert request.is_finished, "INV-12: only an ended request is forgotten"
        self.kv_cache_manager.free(request)
        self.finished_req_ids.add(request.request_id)
        if request.num_in_flight_tokens > 0:
            self.ended_in_flight[request.request_id] = request.num_in_flight_tokens
        del self.requests[request.request_id]


def _make_output(request: Request, new_token_ids: list[int], has_stopped: bool) -> EngineCoreOutput:
    num_cached_tokens = request.num_cached_tokens
    if num_cached_tokens is not None:  # told once, with the first output
        request.num_cached_tokens = None
    finish_reason = request.status.finish_reason if has_stopped else None
    return EngineCoreOutput(request.request_id, new_token_ids, finish_reason, request.stop_reason, num_cached_tokens)


def _with_scores(made: EngineCoreOutput, output: ModelRunnerOutput) -> EngineCoreOutput:
    """Add what its request asked for; scores of tokens after a stop are cut with them."""
    scores = (output.logprobs or {}).get(made.request_id)
    return msgspec.structs.replace(
        made,
        new_logprobs=None if scores is None else scores.slice(0, len(made.new_token_ids)),
        new_prompt_logprobs=(output.prompt_logprobs_dict or {}).get(made.request_id),
    )
