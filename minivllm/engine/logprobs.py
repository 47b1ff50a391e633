"""Owns the scores of one request as its caller gets them: token ids become text, lists become dicts.

Upstream: vllm/v1/engine/logprobs.py::LogprobsProcessor.
"""

from __future__ import annotations

from collections.abc import Sequence

from minivllm.core.messages import EngineCoreOutput
from minivllm.core.scheduler_output import LogprobsLists
from minivllm.logprobs import FlatLogprobs, Logprob, PromptLogprobs, SampleLogprobs
from minivllm.sampling_params import SamplingParams
from minivllm.tokenizer import Tokenizer

# Tokens before a position that may hold the first bytes of a character that ends there: it has at most 4.
_CONTEXT = 4
# What decoding puts for bytes that are no character.
_REPLACEMENT = "\ufffd"


class LogprobsProcessor:
    """What a request has been told, and its scores so far.

    Args:
        tokenizer: The model's tokenizer; None leaves the texts None.
        params: What its caller asked for.

    Attributes:
        logprobs: One entry for each output token; None if not asked for.
        cumulative_logprob: Sum over the output tokens; None if not asked for.
        prompt_logprobs: One entry for each prompt token, the first None; None if not asked for or not known yet.
    """

    def __init__(self, tokenizer: Tokenizer | None, params: SamplingParams) -> None:
        self._tokenizer = tokenizer
        self._flat = params.flat_logprobs
        is_asked = params.num_logprobs is not None
        self.logprobs: SampleLogprobs | None = (FlatLogprobs() if self._flat else []) if is_asked else None
        self.cumulative_logprob: float | None = 0.0 if is_asked else None
        self.prompt_logprobs: PromptLogprobs | None = None

    def update_from_output(self, output: EngineCoreOutput, num_tokens: int) -> None:
        """Take what a step brought.

        Args:
            output: What the core puts out.
            num_tokens: Output tokens so far; a stop string can cut off the last ones.
        """
        if output.new_logprobs is not None and self.logprobs is not None:
            new = output.new_logprobs.slice(0, num_tokens - len(self.logprobs))
            self._append(self.logprobs, new)
            self.cumulative_logprob = (self.cumulative_logprob or 0.0) + sum(row[0] for row in new.logprobs)
        # A request that was preempted computes its prompt again, and tells it again.
        if output.new_prompt_logprobs is not None and self.prompt_logprobs is None:
            self.prompt_logprobs = FlatLogprobs() if self._flat else []
            self.prompt_logprobs.append(None)
            self._append(self.prompt_logprobs, output.new_prompt_logprobs)

    def take_prompt_logprobs(self, once: bool) -> PromptLogprobs | None:
        """The scores of the prompt; after the first time an empty list, if they are wanted only once."""
        prompt_logprobs = self.prompt_logprobs
        if once and prompt_logprobs:
            self.prompt_logprobs = []
        return prompt_logprobs

    def _append(self, positions: SampleLogprobs | PromptLogprobs, new: LogprobsLists) -> None:
        for token_ids, logprobs, rank in zip(new.logprob_token_ids, new.logprobs, new.sampled_token_ranks, strict=True):
            before = [next(iter(position)) for position in positions[-_CONTEXT:] if position]
            ranks = [rank, *range(1, len(token_ids))]
            texts = [self._decode(token_id, before) for token_id in token_ids]
            if isinstance(positions, FlatLogprobs):
                positions.append_fast(token_ids, logprobs, ranks, texts)
                continue
            # The token itself comes first, and may come again among the most likely ones, with the same rank unless
            # others tie with it.
            entries = zip(token_ids, logprobs, ranks, texts, strict=True)
            positions.append({token_id: Logprob(*entry) for token_id, *entry in entries})

    def _decode(self, token_id: int, before: Sequence[int]) -> str | None:
        """The text of one token. One that ends inside a character has none: the one that completes it has all of it."""
        if self._tokenizer is None:
            return None
        text = self._tokenizer.piece(token_id)
        if not text.endswith(_REPLACEMENT):
            return text
        for length in range(1, len(before) + 1):
            context = list(before[-length:])
            text = self._tokenizer.decode([*context, token_id], skip_special_tokens=False)
            if not text.endswith(_REPLACEMENT):
                return text.removeprefix(self._settled(context))
        return ""

    def _settled(self, context: list[int]) -> str:
        """The text that the tokens of a context were told with: those at its end that hold no whole character, none."""
        assert self._tokenizer is not None, "only a tokenizer gives texts"
        told = len(context)
        while told and self._tokenizer.piece(context[told - 1]).endswith(_REPLACEMENT):
            told -= 1
        return self._tokenizer.decode(context[:told], skip_special_tokens=False)
