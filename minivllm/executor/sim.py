"""Owns running plans without a model: tokens come from a rule, or from the record of a real run.

The same engine core drives it, so what is planned here is what would be planned for a real model that samples the
same tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TypeVar

from minivllm.core.scheduler_output import ModelRunnerOutput, SchedulerOutput

T = TypeVar("T")

# Gets the request id, its prompt's length and all its tokens so far; returns the next token.
TokenRule = Callable[[str, int, Sequence[int]], int]


def fake_token_rule(vocab_size: int) -> TokenRule:
    """The rule of the scheduler oracle: the next token depends on the last three and the length."""

    def rule(request_id: str, num_prompt_tokens: int, tokens: Sequence[int]) -> int:
        return (sum(tokens[-3:]) * 31 + len(tokens)) % vocab_size

    return rule


def recorded_token_rule(outputs: dict[str, list[int]]) -> TokenRule:
    """Replay what a real run sampled.

    Args:
        outputs: Per request id the tokens that the recorded run sampled, in order.
    """

    def rule(request_id: str, num_prompt_tokens: int, tokens: Sequence[int]) -> int:
        recorded = outputs.get(request_id, [])
        position = len(tokens) - num_prompt_tokens
        # A changed setting can let a request run on beyond what was recorded; 0 stands for "not known".
        return recorded[position] if position < len(recorded) else 0

    return rule


class SimExecutor:
    """An executor with tokens and no tensors.

    Args:
        token_rule: Picks the next token of a request.
    """

    def __init__(self, token_rule: TokenRule) -> None:
        self._token_rule = token_rule
        self._tokens: dict[str, list[int]] = {}
        self._num_prompt_tokens: dict[str, int] = {}
        self._pending: ModelRunnerOutput | None = None

    def execute_model(self, scheduler_output: SchedulerOutput) -> Future[ModelRunnerOutput | None]:
        """Advance every scheduled request; those that reach the end of their known tokens sample one more."""
        for request_id in scheduler_output.finished_req_ids:
            self._tokens.pop(request_id, None)
            self._num_prompt_tokens.pop(request_id, None)
        num_computed = {}
        for new in scheduler_output.scheduled_new_reqs:
            self._tokens[new.req_id] = list(new.prompt_token_ids)
            self._num_prompt_tokens[new.req_id] = len(new.prompt_token_ids)
            num_computed[new.req_id] = new.num_computed_tokens
        cached = scheduler_output.scheduled_cached_reqs
        num_computed.update(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        self._tokens.update({req_id: list(tokens) for req_id, tokens in cached.all_token_ids.items()})

        req_ids = list(scheduler_output.num_scheduled_tokens)
        sampled = []
        for request_id, num_scheduled in scheduler_output.num_scheduled_tokens.items():
            drafts = scheduler_output.scheduled_spec_decode_tokens.get(request_id, [])
            sampled.append(self._advance(request_id, num_computed[request_id] + num_scheduled, drafts))
        output = ModelRunnerOutput(req_ids, {req_id: i for i, req_id in enumerate(req_ids)}, sampled)
        self._pending = output
        return _done(None if req_ids else output)

    def sample_tokens(self) -> Future[ModelRunnerOutput]:
        """Hand out what `execute_model` prepared."""
        assert self._pending is not None, "sample_tokens follows execute_model"
        output, self._pending = self._pending, None
        return _done(output)

    def shutdown(self) -> None:
        """Nothing to release."""

    def _advance(self, request_id: str, end: int, drafts: list[int]) -> list[int]:
        """Sample one token, and one more for each draft that it confirms."""
        tokens = self._tokens[request_id]
        if end < len(tokens):
            return []  # a chunk that does not reach the end of the known tokens
        sampled: list[int] = []
        for draft in [*drafts, None]:
            token = self._token_rule(request_id, self._num_prompt_tokens[request_id], tokens)
            tokens.append(token)
            sampled.append(token)
            if token != draft:
                break
        return sampled


def _done(value: T) -> Future[T]:
    future: Future[T] = Future()
    future.set_result(value)
    return future
