"""Owns what a caller may ask of generation. Checked when it is made, and again when a request is made with it: a caller
may change it between the two. The request has a copy, which nobody changes.

Upstream: vllm/sampling_params.py::SamplingParams. A field that this engine does not implement does not exist here:
an accepted option that does nothing is worse than an error.
"""

from __future__ import annotations

import enum
import numbers
from typing import Any

import msgspec

from minivllm.output_checks import check_output, normalize_output
from minivllm.sampling_checks import check, normalize

# Temperatures below this are greedy: the argmax, no draw. vLLM uses the same threshold.
SAMPLING_EPS = 1e-5
# Filled in by the frontend; no caller sets them.
INTERNAL_FIELDS = frozenset({"eos_token_id", "all_stop_token_ids", "bad_words_token_ids"})


class RequestOutputKind(enum.Enum):
    """What each output of a request holds. Upstream: vllm/sampling_params.py::RequestOutputKind."""

    CUMULATIVE = 0  # everything so far
    DELTA = 1  # what is new since the last output
    FINAL_ONLY = 2  # one output, when all is done


class RepetitionDetectionParams(msgspec.Struct, frozen=True, kw_only=True):
    """Stop when the tail of the output is one pattern, repeated.

    The output stops when, for some size p in [min_pattern_size, max_pattern_size], its last p * min_count tokens
    are the same p tokens min_count times.
    """

    max_pattern_size: int
    min_count: int = 2
    min_pattern_size: int = 1

    def __post_init__(self) -> None:
        if self.min_count < 2:
            raise ValueError(f"min_count must be at least 2, got {self.min_count}")
        if not 1 <= self.min_pattern_size <= self.max_pattern_size:
            raise ValueError(
                "min_pattern_size must be at least 1 and at most max_pattern_size, "
                f"got {self.min_pattern_size} and {self.max_pattern_size}"
            )


# What vLLM's parameters have beyond these: the values that ask for nothing, and why there are no others.
_NOT_HERE: dict[str, tuple[tuple[object, ...], str]] = {
    "structured_outputs": ((None,), "there is no structured output"),
    "thinking_token_budget": ((None,), "thinking is not told from answering"),
    "logits_processors": ((None, []), "there are no plugins of the sampler"),
    "extra_args": ((None, {}), "there are no plugins of the sampler"),
    "skip_clone": ((False, True), "every request has a copy of its own"),
    "best_of": ((None, 1), "vLLM V1 has none either; take n"),
}


class _ParamsMeta(msgspec.StructMeta):
    """Lets a caller name what is not here, as long as that asks for nothing."""

    def __call__(cls, **given: Any) -> Any:  # noqa: N805 (a class is made by its metaclass)
        for name in _NOT_HERE.keys() & given:
            values, why = _NOT_HERE[name]
            if (value := given.pop(name)) not in values:
                raise ValueError(f"{name} must be {' or '.join(map(repr, values))}, got {value!r:.60}: {why}")
        return super().__call__(**given)


class SamplingParams(msgspec.Struct, kw_only=True, omit_defaults=True, metaclass=_ParamsMeta):
    """How to sample one request.

    Attributes:
        n: Completions to generate for the prompt, each with a draw of its own.
        temperature: 0 is greedy. Logits are divided by it before the draw. At most 2; above 0 at least 0.01.
        top_p: Keep the smallest set of tokens whose probability reaches this. 1 keeps all.
        top_k: Keep this many most likely tokens. 0 or -1 keeps all.
        min_p: Drop tokens less likely than this times the most likely one. 0 keeps all.
        presence_penalty: Subtracted once from the logit of every token that the output has. In [-2, 2].
        frequency_penalty: Subtracted for each time that the output has the token. In [-2, 2].
        repetition_penalty: Positive logits of tokens in the prompt or the output are divided by it, negative ones
            multiplied. Above 0; 1 is off.
        seed: Makes the draw depend on (seed, position) only, not on the batch or on earlier requests. Completion i
            of several draws with seed + i.
        logit_bias: Added to the logits of these token ids.
        allowed_token_ids: Nothing else is sampled.
        bad_words: Texts that the output must not contain: the last token of one is never sampled where it would
            complete it.
        logprobs: Return the log probabilities of this many most likely tokens, and of the sampled one. -1 is all.
        prompt_logprobs: The same for each prompt token. The whole prompt is computed then, cached or not.
        logprob_token_ids: Return the log probabilities of these tokens, and of the sampled one, instead of the most
            likely ones. At most 128. As in vLLM, the rank of each is its place in this list, from 1.
        flat_logprobs: Return log probabilities as `FlatLogprobs`: few large lists, not many small dictionaries.
        max_tokens: Output length limit; None means up to the model's length.
        min_tokens: No stop by end-of-sequence or stop id before this many output tokens.
        stop: Strings that finish the request when the text contains one. The text ends before it.
        include_stop_str_in_output: Let the text end after the stop string, and show the text of a stop token.
        stop_token_ids: Token ids that finish the request. They count as output.
        ignore_eos: Go on after the end-of-sequence token.
        repetition_detection: Finish a request whose output only repeats itself.
        detokenize: Turn the output into text.
        skip_special_tokens: Leave special tokens out of the text.
        spaces_between_special_tokens: Let the tokenizer put spaces between added tokens that follow each other, if it
            does. Matters only where special tokens are not left out.
        output_kind: What each output holds.
        stream_interval: Tokens from one output to the next; not less than the engine's own. None takes that.
        skip_reading_prefix_cache: Compute the whole prompt even if parts of it are cached.
        eos_token_id: Set by the frontend from the model; callers leave it alone.
        all_stop_token_ids: Set by the frontend: what min_tokens keeps from being sampled.
        bad_words_token_ids: Set by the frontend: the token sequences of bad_words.
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: tuple[int, ...] | None = None
    bad_words: tuple[str, ...] = ()
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logprob_token_ids: tuple[int, ...] | None = None
    flat_logprobs: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    stop: str | tuple[str, ...] = ()
    include_stop_str_in_output: bool = False
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    repetition_detection: RepetitionDetectionParams | None = None
    detokenize: bool = True
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE
    stream_interval: int | None = None
    skip_reading_prefix_cache: bool = False
    eos_token_id: int | None = None
    all_stop_token_ids: tuple[int, ...] = ()
    bad_words_token_ids: tuple[tuple[int, ...], ...] = ()

    def __post_init__(self) -> None:
        normalize(self)
        normalize_output(self)
        check(self)
        check_output(self)

    @classmethod
    def from_optional(cls, logit_bias: dict[Any, float] | None = None, **given: Any) -> SamplingParams:
        """Make parameters from what a client's request holds: None stands for the default (but `max_tokens=None` for
        the model's length), and the keys of `logit_bias` may be texts, as JSON has them. Biases are cut to [-100, 100].

        Raises:
            ValueError: A key is no token id, or a value makes no sense.
        """
        if not isinstance(logit_bias, dict | None):
            raise ValueError(f"logit_bias must map token ids to numbers, got {logit_bias!r:.60}")
        biases = {_token_id(key): _cut_bias(key, bias) for key, bias in (logit_bias or {}).items()}
        asked = {name: value for name, value in given.items() if value is not None or name == "max_tokens"}
        return cls(logit_bias=biases or None, **asked)

    def clone(self) -> SamplingParams:
        """A copy that shares nothing that can change."""
        return msgspec.structs.replace(self, logit_bias=dict(self.logit_bias) if self.logit_bias else self.logit_bias)

    @property
    def is_greedy(self) -> bool:
        return self.temperature < SAMPLING_EPS

    @property
    def num_logprobs(self) -> int | None:
        """How many scores beside its own each output token comes with; None for no scores."""
        if self.logprob_token_ids:
            return len(self.logprob_token_ids)
        return self.logprobs


def _token_id(key: Any) -> int:
    try:
        return int(key)
    except (ValueError, TypeError):
        raise ValueError(f"logit_bias must map token ids to numbers, got the key {key!r:.60}") from None


def _cut_bias(key: Any, bias: Any) -> Any:
    if not isinstance(bias, numbers.Real) or bias != bias:  # NaN is neither more nor less: it would look cut
        raise ValueError(f"logit_bias must map token ids to numbers, got {key!r:.60}: {bias!r:.60}")
    return min(100.0, max(-100.0, bias))
