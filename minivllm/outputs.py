"""Owns what a caller gets back. Upstream: vllm/outputs.py."""

from __future__ import annotations

from dataclasses import dataclass, field

from minivllm.logprobs import PromptLogprobs, SampleLogprobs


@dataclass(slots=True)
class CompletionOutput:
    """One completion of a prompt.

    Attributes:
        index: Its place among the completions of the prompt.
        text: The text so far, or what is new of it (`RequestOutputKind.DELTA`).
        token_ids: Likewise the tokens, the one that ended it included.
        finish_reason: None while it goes on; else "stop", "length", "abort", "error" or "repetition".
        stop_reason: The stop id or the stop string that ended it; None for the end-of-sequence token.
        logprobs: The scores of `token_ids`, if asked for.
        cumulative_logprob: The sum of the scores of all tokens so far, if asked for.
    """

    index: int
    text: str
    token_ids: list[int]
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    logprobs: SampleLogprobs | None = None
    cumulative_logprob: float | None = None

    def finished(self) -> bool:
        return self.finish_reason is not None

    def extend(self, new: CompletionOutput) -> None:
        """Append what came later."""
        self.text += new.text
        self.token_ids = self.token_ids + new.token_ids
        if self.logprobs is not None and new.logprobs is not None:
            self.logprobs = (
                [*self.logprobs, *new.logprobs] if isinstance(self.logprobs, list) else self.logprobs + new.logprobs
            )
        self.cumulative_logprob = new.cumulative_logprob
        self.finish_reason = new.finish_reason
        self.stop_reason = new.stop_reason


@dataclass(slots=True)  # made for every output of every step, and a frozen one takes three times as long to make
class RequestStateStats:
    """When what happened to a request. Upstream: vllm/v1/metrics/stats.py::RequestStateStats.

    Attributes:
        num_generation_tokens: Output tokens so far, of the completion that brought this.
        arrival_time: When it came, by the wall clock.
        scheduled_ts: When it was first planned; this and what follows by the monotonic clock, 0 for not yet.
        first_token_ts: When its first token was there.
        last_token_ts: When its last token so far was there.
        first_token_latency: Seconds from its arrival to its first token.
    """

    num_generation_tokens: int
    arrival_time: float
    scheduled_ts: float
    first_token_ts: float
    last_token_ts: float
    first_token_latency: float


@dataclass(slots=True)
class RequestOutput:
    """The state of one request.

    Attributes:
        request_id: Its id, as its caller gave it.
        prompt: The text, if the prompt was text.
        prompt_token_ids: The prompt's tokens.
        outputs: Its completions; while it goes on, those that have something new.
        finished: Whether all of them are done.
        num_cached_tokens: Prompt tokens that came from the prefix cache; None before the first output.
        prompt_logprobs: The scores of the prompt's tokens, if asked for. Nothing is known of the first one: None.
        metrics: When what happened; None if the engine keeps no metrics (`disable_log_stats`).
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    num_cached_tokens: int | None = None
    prompt_logprobs: PromptLogprobs | None = None
    # Two runs that give the same tokens give the same outputs, however long they took.
    metrics: RequestStateStats | None = field(default=None, compare=False)

    def add(self, next_output: RequestOutput, aggregate: bool) -> None:
        """Merge a later output into this one.

        Args:
            next_output: The later output.
            aggregate: Append its completions to those with the same index; else they replace them.
        """
        self.finished |= next_output.finished
        if next_output.num_cached_tokens is not None:
            self.num_cached_tokens = next_output.num_cached_tokens
        self.metrics = next_output.metrics
        self.prompt_logprobs = self.prompt_logprobs or next_output.prompt_logprobs
        places = {completion.index: place for place, completion in enumerate(self.outputs)}
        for completion in next_output.outputs:
            place = places.get(completion.index)
            if place is None:
                self.outputs.append(completion)
            elif aggregate:
                self.outputs[place].extend(completion)
            else:
                self.outputs[place] = completion
