"""Owns which values of the parameters that say how an output ends, and how it is told, make sense.

Upstream: SamplingParams._verify_args in vllm/sampling_params.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from minivllm.sampling_params import SamplingParams

# Each completion is a request of its own, and each stop string is searched for at every token.
MAX_N = 16384
MAX_STOP_STRINGS = 1024
MAX_STOP_CHARS = 4096
# Lengths are counted in 32 bits.
MAX_LENGTH = 2**31 - 1

_SWITCHES = (
    "include_stop_str_in_output",
    "ignore_eos",
    "detokenize",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "flat_logprobs",
    "skip_reading_prefix_cache",
)


def normalize_output(params: SamplingParams) -> None:
    """Bring what means the same into one form."""
    for name in ("stop", "stop_token_ids"):
        value = getattr(params, name)
        if value is None or isinstance(value, list | set):
            msgspec.structs.force_setattr(params, name, tuple(value or ()))
    if isinstance(params.stop, str):
        msgspec.structs.force_setattr(params, "stop", (params.stop,))


def check_output(params: SamplingParams) -> None:
    """Refuse what no output can follow.

    Raises:
        ValueError: With the name, the value and the limit.
    """
    from minivllm.sampling_params import RepetitionDetectionParams, RequestOutputKind

    for name in _SWITCHES:
        if not isinstance(getattr(params, name), bool):
            raise ValueError(f"{name} must be True or False, got {getattr(params, name)!r}")
    if not isinstance(params.output_kind, RequestOutputKind):
        raise ValueError(f"output_kind must be a RequestOutputKind, got {params.output_kind!r}")
    if not isinstance(params.repetition_detection, RepetitionDetectionParams | None):
        raise ValueError(f"repetition_detection must be RepetitionDetectionParams, got {params.repetition_detection!r}")
    if not (_is_integer(params.n) and 1 <= params.n <= MAX_N):
        raise ValueError(f"n must be at least 1 and at most {MAX_N}, got {params.n!r}")
    if params.n > 1 and params.is_greedy:
        raise ValueError(f"n must be 1 with temperature 0, got {params.n}: greedy completions would all be the same")
    _check_lengths(params)
    _check_stop(params)


def _check_lengths(params: SamplingParams) -> None:
    shortest, longest = params.min_tokens, params.max_tokens
    if longest is not None and not (_is_integer(longest) and longest >= 1):
        raise ValueError(f"max_tokens must be at least 1, got {longest!r}")
    if not (_is_integer(shortest) and shortest >= 0):
        raise ValueError(f"min_tokens must be 0 or more, got {shortest!r}")
    interval = params.stream_interval
    if interval is not None and not (_is_integer(interval) and interval >= 1):
        raise ValueError(f"stream_interval must be at least 1, got {interval!r}")
    for name, length in (("max_tokens", longest), ("min_tokens", shortest), ("stream_interval", interval)):
        if length is not None and length > MAX_LENGTH:
            raise ValueError(f"{name} must be at most {MAX_LENGTH}, got {length}")
    if longest is not None and shortest > longest:
        raise ValueError(f"min_tokens ({shortest}) must not exceed max_tokens ({longest})")


def _check_stop(params: SamplingParams) -> None:
    if not isinstance(params.stop_token_ids, tuple) or not all(map(_is_integer, params.stop_token_ids)):
        raise ValueError(f"stop_token_ids must be a list of token ids, got {params.stop_token_ids!r:.80}")
    if not isinstance(params.stop, tuple):
        raise ValueError(f"stop must be a text or a list of texts, got {params.stop!r}")
    if len(params.stop) > MAX_STOP_STRINGS:
        raise ValueError(f"stop must have at most {MAX_STOP_STRINGS} strings, got {len(params.stop)}")
    for text in params.stop:
        if not isinstance(text, str):
            raise ValueError(f"stop must hold strings, got {text!r}; for token ids there is stop_token_ids")
        if not 0 < len(text) <= MAX_STOP_CHARS:
            raise ValueError(
                f"a stop string must have at least 1 and at most {MAX_STOP_CHARS} characters, got {len(text)}"
            )
    if params.stop and not params.detokenize:
        raise ValueError("stop needs text to search in, and detokenize is False: leave one of them out")


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
