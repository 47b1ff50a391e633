"""Text ends where the first stop string ends, however tokens cut it; and callers never see a part of it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minivllm.core.messages import EngineCoreOutput, EngineCoreRequest
from minivllm.core.request import FinishReason
from minivllm.engine.detokenizer import DecodeStream, IncrementalDetokenizer, check_stop_strings
from minivllm.engine.output_processor import OutputProcessor
from minivllm.outputs import RequestOutput
from minivllm.sampling_params import RequestOutputKind, SamplingParams
from minivllm.tokenizer import Tokenizer
from tests.tokenizers import byte_level

TOKENIZER = Tokenizer(byte_level(), None, None, {})
PROMPT = TOKENIZER.encode("Once upon")


def expected(ids: list[int], params: SamplingParams) -> tuple[str, int, str | None]:
    """By brute force: after each token look at the whole text for every stop string.

    Returns:
        The text, how many tokens there are, and the stop string.
    """
    stream = DecodeStream(TOKENIZER, PROMPT, params.skip_special_tokens)
    text = ""
    for count, token_id in enumerate(ids, 1):
        before = len(text)
        text += stream.step(token_id)
        if count <= params.min_tokens:
            continue
        for end in range(before + 1, len(text) + 1):
            for stop in params.stop:
                if text[:end].endswith(stop):
                    return text[: end if params.include_stop_str_in_output else end - len(stop)], count, stop
    return text, len(ids), None


def process(steps: list[list[int]], params: SamplingParams, stream_interval: int = 1) -> list[RequestOutput]:
    """What a caller gets of a request whose core puts out these tokens, and then stops for its length."""
    processor = OutputProcessor(TOKENIZER, stream_interval)
    processor.add_request(EngineCoreRequest("r", PROMPT, params), "Once upon")
    outputs = []
    for number, tokens in enumerate(steps, 1):
        finish_reason = FinishReason.LENGTH if number == len(steps) else None
        processed = processor.process_outputs([EngineCoreOutput("r", tokens, finish_reason)])
        outputs += processed.request_outputs
        if outputs and outputs[-1].finished:
            stopped_here = outputs[-1].outputs[0].finish_reason == "stop" and finish_reason is None
            assert processed.reqs_to_abort == (["r"] if stopped_here else []), "the core must hear of it"
            assert not processor.request_states
            assert not processor.external_req_ids
            break
        assert not processed.reqs_to_abort
    return outputs


ids = st.lists(st.integers(0, TOKENIZER.vocab_size - 1), min_size=1, max_size=25)
words = st.sampled_from(
    ["Once upon a time", "日本語のテキスト 中文", "smile 😀 family 👨\u200d👩\u200d👧", "naïve café 100 €!"]
)
tokens_of_text = st.lists(words, min_size=1, max_size=3).map(lambda parts: TOKENIZER.encode("".join(parts)))
some_tokens = st.one_of(ids, tokens_of_text, st.tuples(tokens_of_text, ids).map(lambda pair: pair[0] + pair[1]))


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[int], list[list[int]], SamplingParams]:
    """Tokens, the same cut into steps, and parameters whose stop strings are likely to occur."""
    token_ids = draw(some_tokens)
    text = TOKENIZER.decode(token_ids)
    pieces = st.integers(0, max(0, len(text) - 1)).flatmap(
        lambda start: st.integers(1, 6).map(lambda size: text[start : start + size] or "e")
    )
    params = SamplingParams(
        stop=tuple(draw(st.lists(st.one_of(pieces, st.text("aeo 😀日", min_size=1, max_size=3)), max_size=4))),
        include_stop_str_in_output=draw(st.booleans()),
        min_tokens=draw(st.sampled_from([0, 0, 1, 3])),
        skip_special_tokens=draw(st.booleans()),
        max_tokens=100,
    )
    steps, start = [], 0
    while start < len(token_ids):
        size = draw(st.sampled_from([1, 1, 2, 3]))
        steps.append(token_ids[start : start + size])
        start += size
    return token_ids, steps, params


def with_kind(params: SamplingParams, kind: RequestOutputKind) -> SamplingParams:
    fields = {name: getattr(params, name) for name in SamplingParams.__struct_fields__}
    return SamplingParams(**{**fields, "output_kind": kind})


@settings(max_examples=300, deadline=None)
@given(cases(), st.integers(1, 4))
def test_all_kinds_of_output_tell_what_brute_force_finds(
    case: tuple[list[int], list[list[int]], SamplingParams], stream_interval: int
) -> None:
    token_ids, steps, params = case
    text, num_tokens, stop = expected(token_ids, params)
    reason = ("length", None) if stop is None else ("stop", stop)

    [final] = process(steps, with_kind(params, RequestOutputKind.FINAL_ONLY), stream_interval)
    completion = final.outputs[0]
    assert (completion.text, completion.token_ids) == (text, token_ids[:num_tokens])
    assert (completion.finish_reason, completion.stop_reason) == reason

    deltas = process(steps, with_kind(params, RequestOutputKind.DELTA), stream_interval)
    cumulative = process(steps, with_kind(params, RequestOutputKind.CUMULATIVE), stream_interval)
    assert cumulative[-1] == final
    sums = []
    seen_text, seen_ids = "", []
    for delta in deltas:
        new = delta.outputs[0]
        assert new.text or new.token_ids or delta.finished, "an output without news"
        seen_text, seen_ids = seen_text + new.text, seen_ids + new.token_ids
        sums.append((seen_text, seen_ids))
        assert text.startswith(seen_text), "what was sent is never taken back"
        if not delta.finished and params.stop and not params.include_stop_str_in_output:
            own = "".join(map(DecodeStream(TOKENIZER, PROMPT, params.skip_special_tokens).step, seen_ids))
            assert seen_text.startswith(own), "no token comes before its text"
    assert (seen_text, seen_ids) == (completion.text, completion.token_ids)
    assert (new.finish_reason, new.stop_reason) == reason
    totals = [(output.outputs[0].text, output.outputs[0].token_ids) for output in cumulative]
    assert [total for k, total in enumerate(totals) if total != (totals[k - 1] if k else ("", []))] == sums


@settings(max_examples=100, deadline=None)
@given(cases())
def test_at_most_one_less_than_the_longest_stop_string_is_held_back(
    case: tuple[list[int], list[list[int]], SamplingParams],
) -> None:
    token_ids, _, params = case
    detokenizer = IncrementalDetokenizer(TOKENIZER, PROMPT, params)
    longest = max(map(len, params.stop), default=1)
    for token_id in token_ids:
        if detokenizer.update([token_id], stop_terminated=False) is not None:
            break
        held = len(detokenizer.output_text) - detokenizer.settled(finished=False)[0]
        expected_held = 0 if params.include_stop_str_in_output else min(longest - 1, len(detokenizer.output_text))
        assert held == expected_held, "a fixed number, whether or not the end looks like a stop string"


@pytest.mark.parametrize(
    ("text", "num_new", "stop", "found"),
    [
        ("abcd", 4, ["d", "bc"], ("bc", 1)),  # ends first
        ("abcd", 4, ["bcd", "cd"], ("bcd", 1)),  # they end together: the list decides
        ("abcd", 4, ["cd", "bcd"], ("cd", 2)),
        ("abcd", 1, ["bc"], None),  # was there before
        ("abcd", 1, ["cd"], ("cd", 2)),  # begins in the old part
        ("aaaa", 2, ["aa"], ("aa", 1)),  # the first that ends in the new part
        ("ab", 2, ["abc"], None),
        ("ab", 0, ["b"], None),
    ],
)
def test_which_match_counts(text: str, num_new: int, stop: list[str], found: tuple[str, int] | None) -> None:
    assert check_stop_strings(text, num_new, stop, include_in_output=False) == found


def stopped(text: str, **params: object) -> RequestOutput:
    fields = {"max_tokens": 100, "output_kind": RequestOutputKind.FINAL_ONLY, **params}
    [final] = process([[i] for i in TOKENIZER.encode(text)], SamplingParams(**fields))  # type: ignore[arg-type]
    return final


def test_a_stop_string_may_lie_across_tokens_and_inside_one() -> None:
    assert stopped("Hello there, world", stop="o th").outputs[0].text == "Hell"
    assert stopped("Once upon a time", stop="nc").outputs[0].text == "O"
    assert stopped("Once upon a time", stop="nc", include_stop_str_in_output=True).outputs[0].text == "Onc"


def test_a_match_that_ends_within_min_tokens_does_not_count() -> None:
    length = len(TOKENIZER.encode("Once upon"))
    assert stopped("Once upon a time, upon", stop="upon", min_tokens=length).outputs[0].text == "Once upon a time, "
    assert stopped("Once upon a time, upon", stop="upon", min_tokens=length - 1).outputs[0].text == "Once "


def test_the_text_of_a_stop_token_is_shown_only_if_asked_for() -> None:
    for include, text in ((False, "a"), (True, "a<|end|>")):
        params = SamplingParams(include_stop_str_in_output=include, skip_special_tokens=False)
        detokenizer = IncrementalDetokenizer(TOKENIZER, PROMPT, params)
        detokenizer.update(TOKENIZER.encode("a<|end|>"), stop_terminated=True)
        assert (detokenizer.output_text, len(detokenizer.token_ids)) == (text, 2)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"stop": ""}, "a stop string must have at least 1 and at most 4096 characters, got 0"),
        ({"stop": "x" * 5000}, "at most 4096 characters, got 5000"),
        ({"stop": ["x"] * 2000}, "at most 1024 strings, got 2000"),
        ({"stop": [7]}, "stop must hold strings, got 7"),
        ({"stop": 7}, "stop must be a text or a list of texts, got 7"),
        ({"stop_token_ids": ["x"]}, "stop_token_ids must be a list of token ids"),
        ({"output_kind": "delta"}, "output_kind must be a RequestOutputKind, got 'delta'"),
        ({"ignore_eos": "no"}, "ignore_eos must be True or False, got 'no'"),
        ({"max_tokens": 2.5}, "max_tokens must be a whole number, got 2.5"),
        ({"n": "3"}, "got '3'"),
        ({"stop": "x", "detokenize": False}, "detokenize is False"),
        ({"n": 0}, "n must be at least 1 and at most 16384, got 0"),
        ({"n": 10**9}, "at most 16384, got 1000000000"),
        ({"n": 2, "temperature": 0.0}, "n must be 1 with temperature 0, got 2"),
    ],
)
def test_parameters_that_make_no_sense_are_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SamplingParams(**fields)  # type: ignore[arg-type]
