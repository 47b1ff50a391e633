"""Owns the frontend's view of a request: its text. The core has finished a request when its last token is known; the
caller has it only when that token has become text here. And text can end a request, too: a stop string is found here,
and the core hears of it by an abort.

Upstream: vllm/v1/engine/output_processor.py.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from minivllm.core.admission import RequestRefusedError
from minivllm.core.messages import EngineCoreOutput, EngineCoreRequest, SchedulerStats
from minivllm.core.request import FinishReason
from minivllm.engine.detokenizer import IncrementalDetokenizer
from minivllm.engine.logprobs import LogprobsProcessor
from minivllm.engine.output_collector import RequestOutputCollector
from minivllm.engine.parallel_sampling import ParentRequest
from minivllm.outputs import CompletionOutput, RequestOutput
from minivllm.sampling_params import RequestOutputKind
from minivllm.sourcemap.registry import on_map
from minivllm.tokenizer import Tokenizer

if TYPE_CHECKING:
    from minivllm.metrics import EngineMetrics, RequestTimes

# Compared for every request in every step, and to look up a member of an enum takes longer than to compare it.
_FINAL_ONLY, _DELTA = RequestOutputKind.FINAL_ONLY, RequestOutputKind.DELTA


@dataclass(slots=True)
class RequestState:
    """One completion as the frontend sees it. Upstream: output_processor.py::RequestState.

    Attributes:
        request: What was sent to the core.
        external_req_id: The id that its caller knows.
        prompt: The prompt as text, if it was text.
        parent: Whose child it is, if its caller wants several completions.
        index: Its place among them.
        queue: Where its outputs go; None returns them to whoever processes outputs.
        detokenizer: Its tokens and its text.
        logprobs_processor: Its scores.
        stream_interval: Tokens from one output to the next.
        num_cached_tokens: Prompt tokens that came from the prefix cache.
        times: When what happened to it, if metrics are kept.
        output_kind: What its caller is told, and when.
        sent_chars, sent_tokens: How far its caller has been told.
    """

    request: EngineCoreRequest
    external_req_id: str
    prompt: str | None
    parent: ParentRequest | None
    index: int
    queue: RequestOutputCollector | None
    detokenizer: IncrementalDetokenizer
    logprobs_processor: LogprobsProcessor
    stream_interval: int
    num_cached_tokens: int | None = None
    times: RequestTimes | None = None
    sent_chars: int = 0
    sent_tokens: int = 0
    output_kind: RequestOutputKind = field(init=False)

    def __post_init__(self) -> None:
        self.output_kind = self.request.sampling_params.output_kind

    @property
    def request_id(self) -> str:
        return self.request.request_id

    @on_map(
        "make request output",
        vllm="vllm/v1/engine/output_processor.py::RequestState.make_request_output",
        process="frontend",
    )
    def make_request_output(
        self, finish_reason: FinishReason | None, stop_reason: int | str | None
    ) -> RequestOutput | None:
        """What its caller is told now; None if that is nothing."""
        if finish_reason is None and self.output_kind is _FINAL_ONLY:
            return None
        completion = self._make_completion(finish_reason, stop_reason)
        if completion is None:
            return None
        outputs, finished = [completion], completion.finished()
        if self.parent is not None:
            outputs, finished = self.parent.get_outputs(self.request_id, completion)
            if not outputs:
                return None
        return RequestOutput(
            self.external_req_id,
            self.prompt,
            self.request.prompt_token_ids,
            outputs,
            finished,
            self.num_cached_tokens,
            self.logprobs_processor.take_prompt_logprobs(once=self.output_kind is _DELTA),
            None if self.times is None else self.times.told(len(self.detokenizer.token_ids)),
        )

    def _make_completion(
        self, finish_reason: FinishReason | None, stop_reason: int | str | None
    ) -> CompletionOutput | None:
        finished = finish_reason is not None
        num_chars, num_tokens = self.detokenizer.settled(finished)
        if self.stream_interval > 1 and not finished and 0 < self.sent_tokens > num_tokens - self.stream_interval:
            return None
        is_delta = self.output_kind is _DELTA
        start_char, start_token = (self.sent_chars, self.sent_tokens) if is_delta else (0, 0)
        if is_delta and not finished and (num_chars, num_tokens) == (start_char, start_token):
            return None
        self.sent_chars, self.sent_tokens = num_chars, num_tokens
        detokenizer, logprobs = self.detokenizer, self.logprobs_processor.logprobs
        return CompletionOutput(
            self.index,
            detokenizer.output_text[start_char:num_chars],
            detokenizer.token_ids[start_token:num_tokens],
            str(finish_reason) if finish_reason is not None else None,
            stop_reason if finished else None,
            None if logprobs is None else logprobs[start_token:num_tokens],
            self.logprobs_processor.cumulative_logprob,
        )


@dataclass(frozen=True, slots=True)
class OutputProcessorOutput:
    """What came of a step's outputs.

    Attributes:
        request_outputs: For the caller; without those that went to a queue.
        reqs_to_abort: Requests that ended here by a stop string; the core does not know yet.
    """

    request_outputs: list[RequestOutput]
    reqs_to_abort: list[str]


class OutputProcessor:
    """Turns what the core puts out into what callers get.

    Args:
        tokenizer: The model's tokenizer; None leaves all text empty.
        stream_interval: Tokens from one output of a request to the next; the first and the last always come.
        metrics: Gets what happens to requests; None keeps no metrics.

    Attributes:
        request_states: Completions that go on, by the id that the core knows.
        parent_requests: Requests for several completions, while one of them goes on.
        external_req_ids: Ids of the completions of each id that a caller gave.
    """

    def __init__(
        self, tokenizer: Tokenizer | None, stream_interval: int = 1, metrics: EngineMetrics | None = None
    ) -> None:
        self.tokenizer = tokenizer
        self.metrics = metrics
        self.stream_interval = stream_interval
        self.request_states: dict[str, RequestState] = {}
        self.parent_requests: dict[str, ParentRequest] = {}
        self.external_req_ids: defaultdict[str, list[str]] = defaultdict(list)

    def add_request(
        self,
        request: EngineCoreRequest,
        prompt: str | None,
        external_req_id: str | None = None,
        queue: RequestOutputCollector | None = None,
    ) -> list[EngineCoreRequest]:
        """Register a request; before the core has it, so that no output finds nobody.

        Returns:
            The requests to send to the core: it alone, or one for each completion.
        """
        children = [request]
        parent = None
        if request.sampling_params.n > 1:
            parent = ParentRequest(request)
            self.parent_requests[parent.request_id] = parent
            children = parent.children
        external_req_id = request.request_id if external_req_id is None else external_req_id
        interval = max(request.sampling_params.stream_interval or 1, self.stream_interval)
        for index, child in enumerate(children):
            detokenizer = IncrementalDetokenizer(self.tokenizer, child.prompt_token_ids, child.sampling_params)
            # Who wants no text gets none beside the scores either, as in vLLM.
            logprobs = LogprobsProcessor(
                self.tokenizer if child.sampling_params.detokenize else None, child.sampling_params
            )
            self.request_states[child.request_id] = RequestState(
                child, external_req_id, prompt, parent, index, queue, detokenizer, logprobs, interval
            )
            if self.metrics is not None:
                self.request_states[child.request_id].times = self.metrics.record_arrival()
            self.external_req_ids[external_req_id].append(child.request_id)
        return children

    @on_map(
        "process outputs",
        vllm="vllm/v1/engine/output_processor.py::OutputProcessor.process_outputs",
        process="frontend",
    )
    def process_outputs(self, outputs: list[EngineCoreOutput], timestamp: float = 0.0) -> OutputProcessorOutput:
        """Extend every request by what a step brought, and forget those that are done.

        Args:
            outputs: What it brought.
            timestamp: When it ended, for the metrics.
        """
        processed = OutputProcessorOutput([], [])
        request_states, metrics = self.request_states, self.metrics
        for output in outputs:
            state = request_states.get(output.request_id)
            if state is None:
                continue  # its caller gave up, or it met a stop string
            if output.error is not None:
                self._refuse(state, output.error)
                continue
            if output.num_cached_tokens is not None:
                state.num_cached_tokens = output.num_cached_tokens
            new_token_ids, finish_reason, stop_reason = output.new_token_ids, output.finish_reason, output.stop_reason
            if metrics is not None and state.times is not None and new_token_ids:
                if state.times.first_token == 0.0:
                    prompt_len, num_cached = len(state.request.prompt_token_ids), state.num_cached_tokens or 0
                    metrics.record_first_token(state.times, timestamp, prompt_len, num_cached)
                metrics.note_tokens(state.times, timestamp, len(new_token_ids))
            has_stopped = finish_reason is not None and finish_reason is FinishReason.STOP
            stop_string = state.detokenizer.update(new_token_ids, has_stopped)
            if stop_string is not None:
                finish_reason, stop_reason = FinishReason.STOP, stop_string
                if output.finish_reason is None:
                    processed.reqs_to_abort.append(state.request_id)
            if output.new_logprobs is not None or output.new_prompt_logprobs is not None:
                state.logprobs_processor.update_from_output(output, len(state.detokenizer.token_ids))
            request_output = state.make_request_output(finish_reason, stop_reason)
            if request_output is not None and state.queue is not None:
                state.queue.put(request_output)
            elif request_output is not None:
                processed.request_outputs.append(request_output)
            if finish_reason is not None:
                self._forget(state)
                self._record_end(state, finish_reason)
        if metrics is not None:
            metrics.record_tokens()
        return processed

    def update_scheduler_stats(self, stats: SchedulerStats | None) -> float:
        """Take what came with a step's outputs, before those are processed. Returns when the step ended."""
        if stats is None or self.metrics is None:
            return 0.0
        for request_id, scheduled in stats.scheduled.items():
            state = self.request_states.get(request_id)
            if state is not None and state.times is not None:
                state.times.scheduled = scheduled
        self.metrics.record_step(stats)
        return stats.timestamp

    @on_map(
        "frontend abort",
        vllm="vllm/v1/engine/output_processor.py::OutputProcessor.abort_requests",
        process="frontend",
    )
    def abort_requests(self, request_ids: Iterable[str], internal: bool = False) -> list[str]:
        """End requests whose caller gave up. Ids that are unknown or done are ignored.

        Args:
            request_ids: Ids as callers gave them (each may stand for several requests), or, if `internal`, as the
                core or a queue has them.
            internal: Which of the two.

        Returns:
            The ids to abort in the core.
        """
        ended = []
        for request_id in request_ids:
            for child_id in self._completions_of(request_id, internal):
                state = self.request_states[child_id]
                request_output = state.make_request_output(FinishReason.ABORT, None)
                if state.queue is not None and request_output is not None:
                    state.queue.put(request_output)
                self._forget(state)
                self._record_end(state, FinishReason.ABORT)
                ended.append(child_id)
        return ended

    def propagate_error(self, error: Exception) -> None:
        """Raise an error at everyone who waits for output, and forget their requests."""
        for state in list(self.request_states.values()):
            if state.queue is not None:
                state.queue.put_error(error)
            self._forget(state)

    def _refuse(self, state: RequestState, why: str) -> None:
        """The core took a request and found that it could never run. (A core in this process raises at once.)"""
        refusal = RequestRefusedError(why.replace(repr(state.request_id), repr(state.external_req_id)))
        # What one child cannot have no sibling can: their caller hears of it once.
        root = state.request_id if state.parent is None else state.parent.request_id
        for child_id in self._completions_of(root, internal=True):
            self._forget(self.request_states[child_id])
        if state.queue is None:
            raise refusal
        state.queue.put_error(refusal)

    def _record_end(self, state: RequestState, reason: FinishReason) -> None:
        if self.metrics is None or state.times is None:
            return
        request, num_tokens = state.request, len(state.detokenizer.token_ids)
        prompt_len, num_cached = len(request.prompt_token_ids), state.num_cached_tokens or 0
        self.metrics.record_end(state.times, reason, prompt_len, num_cached, num_tokens)
        n, longest = 1, num_tokens
        if (parent := state.parent) is not None:
            parent.max_num_generation_tokens = longest = max(parent.max_num_generation_tokens, num_tokens)
            n = len(parent.children)
        if parent is None or not parent.child_requests:
            self.metrics.record_request(request.sampling_params, n, longest)

    def _completions_of(self, request_id: str, internal: bool) -> list[str]:
        if not internal:
            return list(self.external_req_ids.get(request_id, ()))
        if (parent := self.parent_requests.get(request_id)) is not None:
            return [child.request_id for child in parent.children if child.request_id in parent.child_requests]
        return [request_id] if request_id in self.request_states else []

    def _forget(self, state: RequestState) -> None:
        """Drop every trace of a completion, and of its parent with the last one."""
        del self.request_states[state.request_id]
        siblings = self.external_req_ids[state.external_req_id]
        siblings.remove(state.request_id)
        if not siblings:
            del self.external_req_ids[state.external_req_id]
        if state.parent is not None:
            state.parent.child_requests.discard(state.request_id)
            if not state.parent.child_requests:
                self.parent_requests.pop(state.parent.request_id, None)
