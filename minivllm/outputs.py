"""Owns what a caller gets back. Upstream: vllm/outputs.py."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class CompletionOutput:
    """One completion of a prompt.

    Attributes:
        index: Its place among the completions of the prompt.
        text: The text so far.
        token_ids: The tokens so far, the one that ended it included.
        finish_reason: None while it goes on; else "stop", "length", "abort", "error" or "repetition".
        stop_reason: The stop id that ended it; None for the end-of-sequence token.
    """

    index: int
    text: str
    token_ids: list[int]
    finish_reason: str | None = None
    stop_reason: int | str | None = None

    def finished(self) -> bool:
        return self.finish_reason is not None


@dataclass(slots=True)
class RequestOutput:
    """The state of one request.

    Attributes:
        request_id: Its id.
        prompt: The text, if the prompt was text.
        prompt_token_ids: The prompt's tokens.
        outputs: Its completions.
        finished: Whether all of them are done.
        num_cached_tokens: Prompt tokens that came from the prefix cache; None before the first output.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    num_cached_tokens: int | None = None
