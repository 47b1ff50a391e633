"""Owns what sampling parameters become once the model is known: ids are checked, words become tokens, gaps are filled.

Upstream: SamplingParams.verify, update_from_generation_config and update_from_tokenizer in vllm/sampling_params.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Any

import msgspec

from minivllm.sampling_params import INTERNAL_FIELDS, SamplingParams
from minivllm.sourcemap.registry import on_map
from minivllm.tokenizer import Tokenizer


@on_map("verify sampling params", vllm="vllm/sampling_params.py::SamplingParams.verify", process="frontend")
def verify(params: SamplingParams, vocab_size: int, max_logprobs: int) -> None:
    """Refuse what is the engine's own to fill in, token ids and counts beyond the model's vocabulary, and counts beyond
    the engine's limit.

    Raises:
        ValueError: With the name, the value and the limit.
    """
    for name in sorted(INTERNAL_FIELDS):
        if (value := getattr(params, name)) not in (None, ()):
            raise ValueError(f"{name} is for the engine to set: leave it out, got {value!r:.60}")
    lists = {
        "stop": params.stop_token_ids,
        "allowed": params.allowed_token_ids,
        "logit_bias": params.logit_bias,
        "logprob": params.logprob_token_ids,
    }
    for name, token_ids in lists.items():
        if token_ids is not None and len(token_ids) > vocab_size:
            raise ValueError(f"{name} token ids: the vocabulary has {vocab_size} tokens, got {len(token_ids)} ids")
        for token_id in token_ids or ():
            if not 0 <= token_id < vocab_size:
                raise ValueError(
                    f"{name} token id {token_id} is out of range: the vocabulary has {vocab_size} tokens, "
                    f"0 to {vocab_size - 1}"
                )
    limit = vocab_size if max_logprobs == -1 else max_logprobs
    for name in ("logprobs", "prompt_logprobs"):
        count = getattr(params, name)
        asked = vocab_size if count == -1 else count
        if asked is not None and asked > limit:
            all_of = " (-1 is all of the vocabulary)" if count == -1 else ""
            raise ValueError(
                f"{name} must be at most {limit}, got {asked}{all_of}: "
                "ask for fewer, or raise the engine's max_logprobs"
            )


def complete(
    params: SamplingParams, room: int, tokenizer: Tokenizer | None, vocab_size: int, eos_token_ids: Sequence[int]
) -> SamplingParams:
    """Fill in what depends on the model, and refuse what would leave no token to sample.

    Args:
        params: Verified.
        room: Output tokens that the model's length leaves.
        tokenizer: The model's; None if it has none.
        vocab_size: The model's.
        eos_token_ids: The first ends a request without a stop reason, the others are stop ids.

    Raises:
        ValueError: Bad words without a tokenizer, more tokens at least than there is room for, or a request that might
            have to sample from nothing.
    """
    changes: dict[str, Any] = {"max_tokens": room if params.max_tokens is None else params.max_tokens}
    if params.min_tokens > changes["max_tokens"]:
        raise ValueError(f"min_tokens ({params.min_tokens}) must not exceed max_tokens ({changes['max_tokens']})")
    if eos_token_ids and not params.ignore_eos:
        first, *others = eos_token_ids
        changes["eos_token_id"] = first
        changes["stop_token_ids"] = tuple(dict.fromkeys([*params.stop_token_ids, *others]))
    if params.min_tokens:
        # Like vLLM: even where the end of sequence is ignored, it is not sampled before min_tokens.
        changes["all_stop_token_ids"] = tuple(dict.fromkeys([*eos_token_ids, *params.stop_token_ids]))
    if params.bad_words:
        if tokenizer is None:
            raise ValueError("this model has no tokenizer, so bad_words cannot be turned into tokens: leave them out")
        changes["bad_words_token_ids"] = bad_words_token_ids(params.bad_words, tokenizer)
    if params.logit_bias:
        changes["logit_bias"] = dict(params.logit_bias)  # the caller may go on changing its own
    for name in ("logprobs", "prompt_logprobs"):
        if getattr(params, name) == -1:
            changes[name] = vocab_size
    completed = copy(params)  # and not replaced: all that was not changed here has been checked
    for name, value in changes.items():
        msgspec.structs.force_setattr(completed, name, value)
    _check_that_a_token_is_left(completed, vocab_size)
    return completed


@on_map("bad words to tokens", vllm="vllm/sampling_params.py::SamplingParams.update_from_tokenizer", process="frontend")
def bad_words_token_ids(bad_words: Sequence[str], tokenizer: Tokenizer) -> tuple[tuple[int, ...], ...]:
    """The token sequences of each word, as it begins a text and as it follows a space."""
    sequences: list[tuple[int, ...]] = []
    for word in bad_words:
        at_start = tuple(tokenizer.encode(word.lstrip(), add_special_tokens=False))
        after_space = tuple(tokenizer.encode(" " + word.lstrip(), add_special_tokens=False))
        if at_start:
            sequences.append(at_start)
        # Like vLLM: only where the space became part of the first token.
        if at_start and len(after_space) == len(at_start) and after_space[0] != at_start[0]:
            sequences.append(after_space)
    return tuple(sequences)


def _check_that_a_token_is_left(params: SamplingParams, vocab_size: int) -> None:
    """Whatever the output will be: assume that every bad word is one token from being complete."""
    forbidden = {word[-1] for word in params.bad_words_token_ids}
    if params.min_tokens:
        forbidden.update(params.all_stop_token_ids)
    allowed = params.allowed_token_ids
    is_nothing_left = forbidden.issuperset(allowed) if allowed is not None else len(forbidden) >= vocab_size
    if is_nothing_left:
        what = f"allowed_token_ids allows {len(set(allowed))} tokens" if allowed else f"there are {vocab_size} tokens"
        raise ValueError(
            f"{what}, and bad_words and min_tokens (it forbids what stops a request) could forbid all of them: "
            "no token would be left to sample"
        )
