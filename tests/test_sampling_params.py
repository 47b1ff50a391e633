"""What may be asked of a draw: ranges, forms that mean the same, and one clear line for everything else."""

from __future__ import annotations

import re
from decimal import Decimal
from fractions import Fraction
from typing import Any

import msgspec
import numpy as np
import pytest

from minivllm.core.messages import EngineCoreRequest
from minivllm.engine.wire import encode
from minivllm.sampling_params import SamplingParams


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"temperature": -0.1}, "temperature must be in [0, 2], got -0.1"),
        ({"temperature": 2.01}, "temperature must be in [0, 2], got 2.01"),
        ({"temperature": float("nan")}, "temperature must be in [0, 2], got nan"),
        ({"temperature": "hot"}, "temperature must be a number, got 'hot'"),
        ({"temperature": Fraction(10**400)}, "temperature must be a number that a float can hold, got a larger one"),
        ({"max_tokens": 10**5000}, "max_tokens must be a smaller number, got one of 16610 bits"),
        ({"logit_bias": {1: 10**5000}}, "logit_bias must map token ids to finite numbers, got 1: one of 16610 bits"),
        ({"seed": np.array([1, 2])}, "seed must be a whole number, got array([1, 2])"),
        ({"seed": Decimal("sNaN")}, "seed must be a whole number, got Decimal('sNaN')"),
        ({"max_tokens": 2**31}, "max_tokens must be at most 2147483647, got 2147483648"),
        ({"max_tokens": None, "min_tokens": 2**40}, "min_tokens must be at most 2147483647, got 1099511627776"),
        ({"bad_words": ["x"] * 1025}, "bad_words must have at most 1024 words, got 1025"),
        ({"bad_words": ["x" * 4097]}, "a bad word must have at most 4096 characters, got 4097"),
        ({"structured_outputs": {"json": {}}}, "structured_outputs must be None, got {'json': {}}: there is no struct"),
        ({"logits_processors": [print]}, "logits_processors must be None or [], got [<built-in"),
        ({"best_of": 5}, "best_of must be None or 1, got 5: vLLM V1 has none either; take n"),
        ({"max_tokens": "5"}, "max_tokens must be a whole number, got '5'"),
        ({"min_tokens": True}, "min_tokens must be a whole number, got True"),
        ({"n": 2.5}, "n must be a whole number, got 2.5"),
        ({"top_p": [1]}, "top_p must be a number, got [1]"),
        ({"top_p": 0}, "top_p must be in (0, 1], got 0"),
        ({"top_k": -2}, "top_k must be -1 or 0 (keep all)"),
        ({"top_k": 1.5}, "got 1.5"),
        ({"min_p": 1.1}, "min_p must be in [0, 1], got 1.1"),
        ({"presence_penalty": 2.1}, "presence_penalty must be in [-2, 2], got 2.1"),
        ({"frequency_penalty": -2.1}, "frequency_penalty must be in [-2, 2], got -2.1"),
        ({"repetition_penalty": 0}, "repetition_penalty must be a finite number above 0, got 0"),
        ({"repetition_penalty": float("inf")}, "repetition_penalty must be a finite number above 0, got inf"),
        ({"seed": 2**64}, "seed must be an integer of 64 bits"),
        ({"seed": 0.5}, "seed must be a whole number, got 0.5"),
        ({"stop_token_ids": "ab"}, "stop_token_ids must be a list of token ids, got 'ab'"),
        ({"stop_token_ids": 5}, "stop_token_ids must be a list of token ids, got 5"),
        ({"logprobs": -2}, "logprobs must be 0 or more, or -1 for all tokens, got -2"),
        ({"prompt_logprobs": 1.0}, "prompt_logprobs must be a whole number, got 1.0"),
        ({"allowed_token_ids": []}, "allowed_token_ids is empty"),
        ({"allowed_token_ids": ["a"]}, "allowed_token_ids must be a list of token ids, got ('a',)"),
        ({"bad_words": ["good", " "]}, "bad_words must be a list of texts that are not blank"),
        ({"bad_words": "word"}, "bad_words must be a list of texts that are not blank, got 'word'"),
        ({"logit_bias": {1: float("inf")}}, "logit_bias must map token ids to finite numbers, got 1: inf"),
        ({"logit_bias": {"1": 1.0}}, "logit_bias must map token ids to finite numbers, got '1': 1.0"),
        ({"logit_bias": {1: 10**400}}, "logit_bias must map token ids to finite numbers, got 1: one of 1329 bits"),
        ({"repetition_penalty": 10**400}, "repetition_penalty must be a smaller number, got one of 1329 bits"),
        ({"repetition_detection": 5}, "repetition_detection must be RepetitionDetectionParams, got 5"),
        ({"logprob_token_ids": ["a"]}, "logprob_token_ids must be a list of token ids, got ('a',)"),
        ({"logprob_token_ids": range(129)}, "logprob_token_ids must have at most 128 ids, got 129"),
        ({"logprob_token_ids": [1], "logprobs": 2}, "logprobs must be 1, the number of logprob_token_ids, or left out"),
        ({"stream_interval": 0}, "stream_interval must be at least 1, got 0"),
        ({"flat_logprobs": 1}, "flat_logprobs must be True or False, got 1"),
        ({"spaces_between_special_tokens": None}, "spaces_between_special_tokens must be True or False, got None"),
        ({"logit_bias": [1]}, "logit_bias must map token ids to numbers, got [1]"),
    ],
)
def test_a_value_without_meaning_is_refused_with_its_limit(params: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        SamplingParams(**params)


@pytest.mark.parametrize(
    ("params", "name", "value"),
    [
        ({"temperature": 1e-7}, "temperature", 0.01),  # like vLLM: less would overflow
        ({"temperature": 0.009}, "temperature", 0.01),
        ({"temperature": 0}, "temperature", 0),
        ({"seed": -1}, "seed", None),
        ({"logprobs": True}, "logprobs", 1),
        ({"bad_words": None}, "bad_words", ()),
        ({"bad_words": ["a"]}, "bad_words", ("a",)),
        ({"allowed_token_ids": [3, 4]}, "allowed_token_ids", (3, 4)),
        ({"stop_token_ids": [3]}, "stop_token_ids", (3,)),
        # A cached position is not computed, so its scores would be missing.
        ({"prompt_logprobs": 0}, "skip_reading_prefix_cache", True),
        ({"logprobs": 0}, "skip_reading_prefix_cache", False),
        ({"logprob_token_ids": [4, 3]}, "logprob_token_ids", (4, 3)),
        ({"logprob_token_ids": [4, 3]}, "num_logprobs", 2),
        ({"logprob_token_ids": [], "logprobs": 0}, "num_logprobs", 0),
        ({"logprob_token_ids": []}, "num_logprobs", None),
    ],
)
def test_forms_that_mean_the_same_become_one(params: dict[str, Any], name: str, value: Any) -> None:
    assert getattr(SamplingParams(**params), name) == value


@pytest.mark.parametrize(
    ("name", "value", "plain"),
    [
        ("temperature", np.float64(0.5), 0.5),
        ("temperature", np.float32(0.001), 0.01),  # raised, as plain ones are
        ("max_tokens", np.int64(5), 5),
        ("seed", np.int32(3), 3),
        ("top_k", np.uint8(7), 7),
    ],
)
def test_numbers_of_numpy_are_numbers_in_every_process(name: str, value: Any, plain: float) -> None:
    params = SamplingParams(**{name: value})
    assert type(getattr(params, name)) is type(plain)
    assert getattr(params, name) == plain
    encode(EngineCoreRequest("a", [1], params))


def test_parameters_survive_the_way_to_the_core() -> None:
    params = SamplingParams(
        temperature=0.3,
        logit_bias={7: -1.5},
        allowed_token_ids=[1, 7],
        bad_words=["no"],
        bad_words_token_ids=((1, 2),),
        prompt_logprobs=2,
        presence_penalty=1,
    )
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(params), type=SamplingParams) == params


def test_what_is_not_here_can_be_named_as_long_as_it_asks_for_nothing() -> None:
    named = SamplingParams(structured_outputs=None, best_of=1, thinking_token_budget=None, extra_args={}, top_k=3)
    assert named == SamplingParams(top_k=3)
    with pytest.raises(TypeError, match="Unexpected keyword argument 'guided_json'"):
        SamplingParams(guided_json={})


def test_a_clients_request_may_leave_things_open() -> None:
    made = SamplingParams.from_optional(
        n=None, temperature=None, top_p=0.5, stop=None, max_tokens=None, logit_bias={"3": 400, 4: -2}
    )
    assert made == SamplingParams(top_p=0.5, max_tokens=None, logit_bias={3: 100.0, 4: -2})
    with pytest.raises(ValueError, match="got the key 'a'"):
        SamplingParams.from_optional(logit_bias={"a": 1})
    for wrong in ("much", None, float("nan")):
        with pytest.raises(ValueError, match="numbers, got '3': "):
            SamplingParams.from_optional(logit_bias={"3": wrong})  # type: ignore[dict-item]
    with pytest.raises(ValueError, match="logit_bias must map"):
        SamplingParams.from_optional(logit_bias=[3])  # type: ignore[arg-type]


def test_a_clone_shares_nothing_that_can_change() -> None:
    params = SamplingParams(logit_bias={1: 2.0}, stop=["a"])
    clone = params.clone()
    assert clone == params
    assert clone.logit_bias is not params.logit_bias
