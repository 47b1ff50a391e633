"""Scores are told of the rows that ask, from the logits that the mode names, with the rank of the token itself."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from minivllm.config import LogprobsMode
from minivllm.core.scheduler_output import LogprobsLists
from minivllm.sample.logprobs import gather_logprobs
from minivllm.sample.sampler import Sampler
from minivllm.sampling_params import SamplingParams
from tests.sample import reference
from tests.sample.reference import Row

LOGITS = [2.0, 0.5, -1.0, 3.0, 0.0]


def told(rows: list[Row], counts: list[int], mode: LogprobsMode = "raw_logprobs") -> tuple[list[int], LogprobsLists]:
    output = Sampler(mode).forward(reference.tensor_of(rows), reference.metadata_of(rows, counts))
    assert output.logprobs is not None
    return output.sampled_token_ids.tolist(), output.logprobs


@given(
    rows=st.lists(
        st.lists(st.integers(-3, 3).map(float), min_size=6, max_size=6).flatmap(
            lambda row: st.tuples(st.just(row), st.integers(0, 5), st.integers(0, 6))
        ),
        min_size=1,
        max_size=5,
    )
)
def test_the_most_likely_tokens_and_the_rank_equal_a_sort(rows: list[tuple[list[float], int, int]]) -> None:
    scores = torch.tensor([row for row, _, _ in rows])
    tokens = torch.tensor([token for _, token, _ in rows])
    got = gather_logprobs(scores, [count for _, _, count in rows], tokens)
    for i, (row, token, count) in enumerate(rows):
        assert got.logprobs[i] == [row[token], *sorted(row, reverse=True)[:count]]
        assert got.logprob_token_ids[i][0] == token
        assert [row[t] for t in got.logprob_token_ids[i]] == got.logprobs[i]
        assert len(set(got.logprob_token_ids[i][1:])) == count
        assert got.sampled_token_ranks[i] == sum(x >= row[token] for x in row)


def test_only_rows_that_ask_are_told_each_as_much_as_it_asks() -> None:
    greedy = SamplingParams(temperature=0.0)
    tokens, scores = told([Row(LOGITS, greedy)] * 4, [2, -1, 0, 5])
    assert tokens == [3, 3, 3, 3]
    assert [len(row) for row in scores.logprobs] == [3, 1, 6]
    assert scores.logprob_token_ids[0] == [3, 3, 0]
    assert scores.sampled_token_ranks == [1, 1, 1]


def test_nobody_asks_nothing_is_told() -> None:
    rows = [Row(LOGITS, SamplingParams(temperature=0.0))]
    assert Sampler().forward(reference.tensor_of(rows), reference.metadata_of(rows)).logprobs is None


CHANGED = SamplingParams(temperature=0.5, top_k=2, logit_bias={3: -100.0}, seed=0)
LOG_SUM = math.log(sum(math.exp(x) for x in LOGITS))


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("raw_logprobs", [3.0 - LOG_SUM, 2.0 - LOG_SUM]),
        ("raw_logits", [3.0, 2.0]),
        # Token 3 is out; 2 and 0.5 are doubled by the temperature.
        ("processed_logprobs", [4.0 - math.log(math.exp(4) + math.exp(1)), 1.0 - math.log(math.exp(4) + math.exp(1))]),
        ("processed_logits", [4.0, 1.0]),
    ],
)
def test_a_mode_names_the_logits_and_the_unit(mode: LogprobsMode, expected: list[float]) -> None:
    _, scores = told([Row(LOGITS, CHANGED)], [2], mode)
    assert scores.logprobs[0][1:] == pytest.approx(expected)


@pytest.mark.parametrize("mode", ["processed_logprobs", "processed_logits"])
def test_processed_scores_of_a_greedy_row_have_its_penalties(mode: LogprobsMode) -> None:
    rows = [Row(LOGITS, SamplingParams(temperature=0.0, presence_penalty=2.0), output=[3]), Row(LOGITS, CHANGED)]
    tokens, scores = told(rows, [1, 1], mode)
    assert tokens[0] == scores.logprob_token_ids[0][0] == 0
    processed = reference.run(rows[0])
    value = processed[0] if mode == "processed_logits" else math.log(reference.softmax(processed)[0])
    assert scores.logprobs[0] == pytest.approx([value, value])


def test_raw_scores_are_those_before_the_rules_even_of_the_rows_own_token() -> None:
    rows = [Row(LOGITS, SamplingParams(temperature=0.0, allowed_token_ids=[2]))]
    tokens, scores = told(rows, [1])
    assert tokens == [2]
    assert scores.logprob_token_ids == [[2, 3]]
    assert scores.logprobs[0] == pytest.approx([-1.0 - LOG_SUM, 3.0 - LOG_SUM])
    assert scores.sampled_token_ranks == [5]


@pytest.mark.parametrize("extreme", [reference.NEVER, math.inf])
def test_a_row_without_a_finite_maximum_names_its_request(extreme: float) -> None:
    with pytest.raises(FloatingPointError, match=r"request r1: .* at position 1 have [+-]inf as their maximum"):
        reference.sample([Row([x] * 3, SamplingParams(temperature=0.0)) for x in (0.0, extreme)])
