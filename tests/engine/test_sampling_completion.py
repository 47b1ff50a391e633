"""What sampling parameters become once the model is known, and which of them are refused then."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from minivllm import LLM, SamplingParams
from minivllm.engine.sampling_completion import bad_words_token_ids, complete, verify
from minivllm.tokenizer import Tokenizer, load_tokenizer

SMALL: dict[str, Any] = {"max_model_len": 256, "num_gpu_blocks_override": 129, "block_size": 4}
VOCAB = 512


@pytest.fixture(scope="module")
def llm(tiny_model: Path) -> LLM:
    return LLM(model=str(tiny_model), **SMALL)


@pytest.fixture(scope="module")
def tokenizer(tiny_model: Path) -> Tokenizer:
    return load_tokenizer(tiny_model)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"logprobs": 21}, "logprobs must be at most 20, got 21"),
        ({"prompt_logprobs": 21}, "prompt_logprobs must be at most 20, got 21"),
        ({"logprobs": -1}, r"logprobs must be at most 20, got 512 \(-1 is all of the vocabulary\)"),
        ({"stop_token_ids": [1] * 513}, "stop token ids: the vocabulary has 512 tokens, got 513 ids"),
        ({"stop_token_ids": [512]}, "stop token id 512 is out of range: the vocabulary has 512 tokens, 0 to 511"),
        ({"allowed_token_ids": [3, -1]}, "allowed token id -1 is out of range"),
        ({"logit_bias": {513: 1.0}}, "logit_bias token id 513 is out of range"),
        ({"max_tokens": None, "min_tokens": 9999}, r"min_tokens \(9999\) must not exceed max_tokens \(\d+\)"),
        ({"allowed_token_ids": [9], "stop_token_ids": [9], "min_tokens": 1}, "no token would be left to sample"),
        ({"allowed_token_ids": [0], "min_tokens": 1}, "no token would be left to sample"),  # 0 is the end of sequence
    ],
)
def test_what_the_model_cannot_do_is_refused_before_anything_runs(
    llm: LLM, params: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        llm.generate("Once", SamplingParams(**params))
    assert not llm.llm_engine.has_unfinished_requests()


def test_a_parameter_that_was_changed_is_checked_again(llm: LLM) -> None:
    params = SamplingParams(max_tokens=1)
    params.logprobs = "all"  # type: ignore[assignment]
    with pytest.raises(ValueError, match="logprobs must be a whole number, got 'all'"):
        llm.generate("Once", params)
    params.logprobs, params.prompt_logprobs, params.temperature = None, 1, 0.0
    for _ in range(2):
        [output] = llm.generate("Once upon a time there was", params)
        assert output.prompt_logprobs is not None
        assert len(output.prompt_logprobs) == len(output.prompt_token_ids), "nothing of it was read from the cache"


def test_no_limit_lets_a_request_ask_for_all_tokens(tiny_model: Path) -> None:
    verify(SamplingParams(logprobs=-1), VOCAB, -1)
    llm = LLM(model=str(tiny_model), **SMALL, max_logprobs=-1)
    [output] = llm.generate("Once", SamplingParams(temperature=0.0, max_tokens=1, logprobs=-1, prompt_logprobs=-1))
    assert output.outputs[0].logprobs is not None
    assert output.prompt_logprobs is not None
    assert [len(position) for position in output.outputs[0].logprobs] == [VOCAB]
    assert {len(position) for position in output.prompt_logprobs if position is not None} == {VOCAB}


def test_a_bad_word_is_also_forbidden_after_a_space_that_belongs_to_its_first_token(tokenizer: Tokenizer) -> None:
    def encode(text: str) -> tuple[int, ...]:
        return tuple(tokenizer.encode(text, add_special_tokens=False))

    assert len(encode("a")) == len(encode(" a")) == 1
    assert bad_words_token_ids([" a"], tokenizer) == (encode("a"), encode(" a"))
    assert bad_words_token_ids(["Once", "a"], tokenizer)[0] == encode("Once")
    # Like vLLM: not where the space makes it another number of tokens.
    assert len(encode("the")) != len(encode(" the"))
    assert bad_words_token_ids(["the"], tokenizer) == (encode("the"),)


def test_a_bad_word_never_stands_in_the_output(llm: LLM) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
    tokenizer = llm.get_tokenizer()
    [output] = llm.generate("Once upon a time", params)
    tokens = output.outputs[0].token_ids
    place, word = next(
        (place, word)
        for place, token_id in enumerate(tokens)
        if place > 0 and (word := tokenizer.piece(token_id)).isalpha() and tokenizer.encode(word) == [token_id]
    )
    [other] = llm.generate("Once upon a time", SamplingParams(**{**vars_of(params), "bad_words": [word]}))
    assert other.outputs[0].token_ids[:place] == tokens[:place]
    assert tokens[place] not in other.outputs[0].token_ids


def vars_of(params: SamplingParams) -> dict[str, Any]:
    return {name: getattr(params, name) for name in SamplingParams.__struct_fields__}


def test_bad_words_need_a_tokenizer() -> None:
    with pytest.raises(ValueError, match="no tokenizer, so bad_words"):
        complete(SamplingParams(bad_words=["a"]), 10, None, VOCAB, [0])


def test_min_tokens_holds_back_the_end_even_where_it_is_ignored() -> None:
    params = SamplingParams(min_tokens=2, ignore_eos=True, stop_token_ids=[7])
    completed = complete(params, 10, None, VOCAB, [0, 5])
    assert completed.eos_token_id is None
    assert completed.stop_token_ids == (7,)
    assert completed.all_stop_token_ids == (0, 5, 7)
    assert complete(SamplingParams(), 10, None, VOCAB, [0, 5]).all_stop_token_ids == (), "nothing to hold back"


def test_min_tokens_keeps_the_end_of_sequence_from_being_sampled(llm: LLM) -> None:
    eos = llm.get_tokenizer().eos_token_id
    assert eos is not None
    wants_to_end = {"temperature": 0.0, "logit_bias": {eos: 50.0}, "max_tokens": 8}
    [early] = llm.generate("Once", SamplingParams(**wants_to_end))
    assert early.outputs[0].token_ids == [eos]
    [late] = llm.generate("Once", SamplingParams(**wants_to_end, min_tokens=5))
    assert late.outputs[0].token_ids.index(eos) == 5
    assert late.outputs[0].finish_reason == "stop"


@pytest.mark.parametrize(
    ("field", "value"), [("bad_words_token_ids", "x"), ("all_stop_token_ids", (3,)), ("eos_token_id", 0)]
)
def test_what_the_engine_fills_in_is_not_for_callers(field: str, value: object) -> None:
    params = SamplingParams()
    msgspec.structs.force_setattr(params, field, value)
    with pytest.raises(ValueError, match=f"^{field} is for the engine to set: leave it out, got "):
        verify(params, vocab_size=10, max_logprobs=20)
