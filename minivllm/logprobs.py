"""Owns the form in which callers get scores. Upstream: vllm/logprobs.py."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Logprob:
    """The score of one token at one position.

    Attributes:
        logprob: Its log probability (or its logit: `logprobs_mode`).
        rank: Its place among all tokens; 1 is the most likely.
        decoded_token: Its text; None without a tokenizer.
    """

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


# By token id; the token that stands at the position comes first.
LogprobsOnePosition = dict[int, Logprob]
SampleLogprobs = list[LogprobsOnePosition]
# Nothing comes before the first token of a prompt, so nothing is known of it: None.
PromptLogprobs = list[LogprobsOnePosition | None]
