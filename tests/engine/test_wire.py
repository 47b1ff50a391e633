"""What is written on one side is what is read on the other, whatever it holds."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minivllm.config import CacheConfig, ModelConfig, SchedulerConfig, VllmConfig
from minivllm.core.messages import EngineCoreOutput, EngineCoreOutputs, EngineCoreRequest, SchedulerStats
from minivllm.core.request import FinishReason, LoRARequest, MultiModalItem
from minivllm.core.scheduler_output import LogprobsLists
from minivllm.engine.wire import (
    AbortRequests,
    CoreStart,
    EngineCoreFailure,
    EngineCoreReadyResponse,
    UtilityCall,
    UtilityOutput,
    decode_from_core,
    decode_start,
    decode_to_core,
    encode,
)
from minivllm.sampling_params import RepetitionDetectionParams, RequestOutputKind, SamplingParams

ids = st.text(max_size=12)
token = st.integers(0, 2**31 - 1)
tokens = st.lists(token, max_size=8)
some_tokens = st.lists(token, min_size=1, max_size=4)
score = st.floats(allow_nan=False, width=32)
plain = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(max_size=5) | score | tokens

sampling_params = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.5, 1.0, 2.0]),
    top_p=st.floats(0.01, 1.0),
    top_k=st.integers(0, 100),
    seed=st.none() | st.integers(0, 2**31 - 1),
    logit_bias=st.none() | st.dictionaries(token, st.floats(-5, 5), min_size=1, max_size=3),
    allowed_token_ids=st.none() | some_tokens.map(lambda i: tuple(sorted(set(i)))),
    max_tokens=st.none() | st.integers(1, 2**20),
    stop=st.lists(st.text(min_size=1, max_size=3), max_size=3).map(tuple),
    stop_token_ids=some_tokens.map(tuple),
    repetition_detection=st.none() | st.builds(RepetitionDetectionParams, max_pattern_size=st.integers(1, 9)),
    output_kind=st.sampled_from(RequestOutputKind),
    eos_token_id=st.none() | token,
    bad_words_token_ids=st.lists(some_tokens.map(tuple), max_size=2).map(tuple),
)
requests = st.builds(
    EngineCoreRequest,
    ids,
    tokens,
    sampling_params,
    arrival_time=score,
    priority=st.integers(-(2**31), 2**31),
    cache_salt=st.none() | ids,
    lora_request=st.none() | st.builds(LoRARequest, ids, ids),
    mm_features=st.lists(st.builds(MultiModalItem, ids, token, token), max_size=2).map(tuple),
)
logprobs = st.builds(LogprobsLists, st.lists(tokens, max_size=2), st.lists(st.lists(score, max_size=3)), tokens)
outputs = st.builds(
    EngineCoreOutput,
    ids,
    tokens,
    finish_reason=st.none() | st.sampled_from(FinishReason),
    stop_reason=st.none() | token | ids,
    num_cached_tokens=st.none() | token,
    new_logprobs=st.none() | logprobs,
    new_prompt_logprobs=st.none() | logprobs,
    error=st.none() | ids,
)
stats = st.builds(
    SchedulerStats,
    token,
    token,
    token,
    score,
    token,
    token,
    token,
    st.dictionaries(ids, score, max_size=2),
    tokens,
    score,
)
to_core = requests | st.builds(AbortRequests, st.lists(ids)) | st.builds(UtilityCall, token, ids, st.lists(plain))
from_core = (
    st.builds(EngineCoreOutputs, st.lists(outputs, max_size=4), scheduler_stats=st.none() | stats)
    | st.builds(UtilityOutput, token, plain, st.none() | ids)
    | st.builds(EngineCoreReadyResponse, token, token, tokens.map(tuple), token)
    | st.builds(EngineCoreFailure, st.lists(ids), ids)
)


@given(to_core)
def test_what_a_frontend_sends_is_what_the_core_reads(message: Any) -> None:
    read = decode_to_core(encode(message))
    assert read == message
    assert type(read) is type(message)


@given(from_core)
def test_what_the_core_sends_is_what_the_frontend_reads(message: Any) -> None:
    read = decode_from_core(encode(message))
    assert read == message
    assert type(read) is type(message)


def test_settings_reach_a_new_process_whole() -> None:
    config = VllmConfig(
        model_config=ModelConfig(model="somewhere", tokenizer="else", dtype="bfloat16", device="cpu", seed=3),
        cache_config=CacheConfig(block_size=4, num_gpu_blocks=9, hash_seed=b"\x00\xff", enable_prefix_caching=False),
        scheduler_config=SchedulerConfig(max_num_seqs=3, policy="priority", async_scheduling=True, watermark=0.25),
        batch="rows",
    )
    start = CoreStart(config, "/a/folder", 7)
    assert decode_start(encode(start)) == start


@pytest.mark.parametrize(
    "message",
    [
        EngineCoreRequest("a", [2**64], SamplingParams()),
        EngineCoreRequest("a", [1], SamplingParams(), cache_salt="\ud800"),
        UtilityCall(0, "a", [object()]),
    ],
    ids=["a number of 65 bits", "half a character", "an object"],
)
def test_what_cannot_be_written_is_a_value_error(message: Any) -> None:
    with pytest.raises(ValueError, match=r"cannot be sent|surrogates not allowed"):
        encode(message)


@pytest.mark.parametrize("frame", [b"", b"\x80", b"\x91\xa3now", b"\x93\xa3add\xa1a\xa1b"])
def test_a_frame_that_is_no_message_is_not_read(frame: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_to_core(frame)


def test_a_decode_steps_output_is_a_few_bytes_a_request() -> None:
    frame = encode(EngineCoreOutputs([EngineCoreOutput(f"{i:08}", [12345]) for i in range(100)]))
    assert len(frame) < 100 * 25
