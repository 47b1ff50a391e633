"""Owns which values of the parameters that shape a draw make sense, and the forms that mean the same.

Upstream: SamplingParams.__post_init__ and SamplingParams._verify_args in vllm/sampling_params.py.
"""

from __future__ import annotations

import math
import numbers
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from minivllm.sampling_params import SamplingParams

# Dividing by less overflows where probabilities are computed; vLLM raises lower temperatures to it, too.
MIN_TEMPERATURE = 1e-2
# Each is compared with the end of the output at every token.
MAX_BAD_WORDS = 1024
MAX_BAD_WORD_CHARS = 4096
# Rows of scores are as wide as the longest list in the batch.
MAX_LOGPROB_TOKEN_IDS = 128
# The worker keeps parameters in arrays of 32 bits.
_MAX_INT32 = 2**31 - 1
_MAX_NUMBER = 2**1000
_NUMBERS = (
    "frequency_penalty",
    "logprobs",
    "max_tokens",
    "min_p",
    "min_tokens",
    "n",
    "presence_penalty",
    "prompt_logprobs",
    "repetition_penalty",
    "seed",
    "stream_interval",
    "temperature",
    "top_k",
    "top_p",
)
# Of these, all others are whole.
_FRACTIONS = frozenset(["temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty"])

_PLAIN = (int, float, bool, type(None))


def normalize(params: SamplingParams) -> None:
    """Bring what means the same into one form."""
    for name in _NUMBERS:
        value = getattr(params, name)
        if type(value) is int:
            if abs(value) >= _MAX_NUMBER:
                raise ValueError(f"{name} must be a smaller number, got one of {value.bit_length()} bits")
        elif type(value) not in _PLAIN and isinstance(value, numbers.Real):  # NumPy's, which no message takes
            try:
                plain: int | float = int(value) if isinstance(value, numbers.Integral) else float(value)
            except OverflowError:
                raise ValueError(f"{name} must be a number that a float can hold, got a larger one") from None
            msgspec.structs.force_setattr(params, name, plain)
    changes: dict[str, Any] = {}
    lists = {"stop_token_ids": (), "bad_words": (), "allowed_token_ids": None, "logprob_token_ids": None}
    for name, off in lists.items():
        value = getattr(params, name)
        if value is None or isinstance(value, list | set | range):
            changes[name] = off if value is None else tuple(value)
    if type(params.seed) is int and params.seed == -1:
        changes["seed"] = None
    for name in ("logprobs", "prompt_logprobs"):
        if getattr(params, name) is True:
            changes[name] = 1
    if params.prompt_logprobs is not None:
        # A cached position is not computed, and then nothing is known of the token that follows it.
        changes["skip_reading_prefix_cache"] = True
    if _is_number(params.temperature) and 0 < params.temperature < MIN_TEMPERATURE:
        changes["temperature"] = MIN_TEMPERATURE
    for name, value in changes.items():
        msgspec.structs.force_setattr(params, name, value)


def check(params: SamplingParams) -> None:
    """Refuse what no draw can follow.

    Raises:
        ValueError: With the name, the value and the limit.
    """
    _check_types(params)
    _check_numbers(params)
    _check_token_lists(params)


def _check_types(params: SamplingParams) -> None:
    """Name a wrong type as such: that '5' is no number is not a question of its size."""
    for name in _NUMBERS:
        value = getattr(params, name)
        if type(value) is int or (type(value) is float and name in _FRACTIONS):
            continue  # to ask an abstract class costs a request ten times as much
        kind, text = (numbers.Real, "number") if name in _FRACTIONS else (numbers.Integral, "whole number")
        if value is not None and (isinstance(value, bool) or not isinstance(value, kind)):
            raise ValueError(f"{name} must be a {text}, got {value!r:.60}")


def _check_numbers(params: SamplingParams) -> None:
    _check_range("presence_penalty", params.presence_penalty, -2, 2)
    _check_range("frequency_penalty", params.frequency_penalty, -2, 2)
    if not (_is_number(params.repetition_penalty) and 0 < params.repetition_penalty < math.inf):
        raise ValueError(f"repetition_penalty must be a finite number above 0, got {params.repetition_penalty!r}")
    _check_range("temperature", params.temperature, 0, 2)
    if not (_is_number(params.top_p) and 0 < params.top_p <= 1):
        raise ValueError(f"top_p must be in (0, 1], got {params.top_p!r}")
    if not (_is_integer(params.top_k) and -1 <= params.top_k <= _MAX_INT32):
        raise ValueError(f"top_k must be -1 or 0 (keep all), or 1 to {_MAX_INT32}, got {params.top_k!r}")
    _check_range("min_p", params.min_p, 0, 1)
    if params.seed is not None and not (_is_integer(params.seed) and -(2**63) <= params.seed < 2**64):
        raise ValueError(f"seed must be an integer of 64 bits, got {params.seed!r}")
    for name in ("logprobs", "prompt_logprobs"):
        count = getattr(params, name)
        if count is not None and not (_is_integer(count) and count >= -1):
            raise ValueError(f"{name} must be 0 or more, or -1 for all tokens, got {count!r}")


def _check_token_lists(params: SamplingParams) -> None:
    stop, allowed, bias = params.stop_token_ids, params.allowed_token_ids, params.logit_bias
    if not isinstance(stop, tuple) or not all(map(_is_integer, stop)):
        raise ValueError(f"stop_token_ids must be a list of token ids, got {stop!r:.80}")
    if allowed is not None:
        if not isinstance(allowed, tuple) or not all(map(_is_integer, allowed)):
            raise ValueError(f"allowed_token_ids must be a list of token ids, got {allowed!r:.80}")
        if not allowed:
            raise ValueError("allowed_token_ids is empty, so no token could be sampled: leave it out to allow all")
    _check_logprob_token_ids(params)
    if not isinstance(params.bad_words, tuple) or not all(isinstance(w, str) and w.strip() for w in params.bad_words):
        raise ValueError(f"bad_words must be a list of texts that are not blank, got {params.bad_words!r:.80}")
    if len(params.bad_words) > MAX_BAD_WORDS:
        raise ValueError(f"bad_words must have at most {MAX_BAD_WORDS} words, got {len(params.bad_words)}")
    if (longest := max(map(len, params.bad_words), default=0)) > MAX_BAD_WORD_CHARS:
        raise ValueError(f"a bad word must have at most {MAX_BAD_WORD_CHARS} characters, got {longest}")
    if bias is not None and not isinstance(bias, dict):
        raise ValueError(f"logit_bias must map token ids to numbers, got {bias!r:.80}")
    for token_id, value in (bias or {}).items():
        if not (_is_integer(token_id) and _is_number(value) and math.isfinite(value)):
            is_large = isinstance(value, int) and abs(value) >= _MAX_NUMBER
            shown = f"one of {int(value).bit_length()} bits" if is_large else f"{value!r:.60}"
            raise ValueError(f"logit_bias must map token ids to finite numbers, got {token_id!r:.60}: {shown}")


def _check_logprob_token_ids(params: SamplingParams) -> None:
    wanted = params.logprob_token_ids
    if wanted is None:
        return
    if not isinstance(wanted, tuple) or not all(map(_is_integer, wanted)):
        raise ValueError(f"logprob_token_ids must be a list of token ids, got {wanted!r:.80}")
    if len(wanted) > MAX_LOGPROB_TOKEN_IDS:
        raise ValueError(f"logprob_token_ids must have at most {MAX_LOGPROB_TOKEN_IDS} ids, got {len(wanted)}")
    if params.logprobs is not None and params.logprobs != len(wanted):
        raise ValueError(
            f"logprobs must be {len(wanted)}, the number of logprob_token_ids, or left out, got {params.logprobs}"
        )


def _is_number(value: Any) -> bool:
    """Whether it is a number that arithmetic can take: integers have no limit, and floats have."""
    if isinstance(value, int):
        return not isinstance(value, bool) and abs(value) < _MAX_NUMBER
    return isinstance(value, float)


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _check_range(name: str, value: Any, low: float, high: float) -> None:
    if not (_is_number(value) and low <= value <= high):
        raise ValueError(f"{name} must be in [{low}, {high}], got {value!r}")
