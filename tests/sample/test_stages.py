"""Every stage gives what its definition says, and the stages stand in the order of V1's sampler."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minivllm.sample.sampler import apply_logits_processors
from minivllm.sampling_params import SamplingParams
from tests.sample import reference
from tests.sample.reference import Row

VOCAB = 12
TOKEN = st.integers(0, VOCAB - 1)
TOKENS = st.lists(TOKEN, max_size=8)
# Different enough that rounding never decides what is kept.
LOGITS = st.permutations([round(-3.0 + 0.61 * i, 2) for i in range(VOCAB)])

PARAMS = st.fixed_dictionaries(
    {},
    optional={
        "allowed_token_ids": st.sets(TOKEN, min_size=6, max_size=VOCAB).map(tuple),
        "bad_words_token_ids": st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=3).map(tuple), max_size=2).map(
            tuple
        ),
        "all_stop_token_ids": st.lists(st.integers(4, 5), max_size=2).map(tuple),
        "min_tokens": st.integers(0, 6),
        "logit_bias": st.dictionaries(TOKEN, st.sampled_from([-2.3, 1.7, 4.1]), max_size=3),
        "repetition_penalty": st.sampled_from([0.7, 1.3, 2.0]),
        "frequency_penalty": st.sampled_from([-0.7, 0.4, 1.9]),
        "presence_penalty": st.sampled_from([-1.1, 0.6]),
        "temperature": st.sampled_from([0.0, 0.37, 1.0, 1.9]),
        "min_p": st.sampled_from([0.03, 0.21, 0.5]),
        "top_k": st.integers(-1, VOCAB + 1),
        "top_p": st.sampled_from([0.11, 0.43, 0.87]),
    },
)
ROWS = st.builds(
    lambda logits, params, prompt, output: Row(logits, SamplingParams(max_tokens=None, **params), prompt, output),
    LOGITS,
    PARAMS,
    TOKENS,
    TOKENS,
)


def assert_same(ours: list[float], expected: list[float]) -> None:
    for x, y in zip(ours, expected, strict=True):
        assert math.isinf(x) == math.isinf(y)
        assert math.isinf(y) or abs(x - y) < 1e-4


def is_decided_by_rounding(row: Row) -> bool:
    """Whether two tokens tie, or a bound is hit exactly: then either answer is right."""
    logits = reference.run(row, reference.BEFORE_ARGMAX)
    finite = sorted(x for x in logits if x > reference.NEVER)
    if any(b - a < 1e-4 for a, b in itertools.pairwise(finite)) or not finite:
        return True
    if not row.params.temperature:
        return False
    hot = reference.temperature(logits, row)
    least = max(hot) + math.log(row.params.min_p) if row.params.min_p else reference.NEVER
    narrowed = reference.run(Row(hot, row.params), [lambda x, r: reference.min_p(x, r), reference.top_k])
    masses = itertools.accumulate(sorted(reference.softmax(narrowed), reverse=True))
    return any(abs(x - least) < 1e-4 for x in hot) or any(abs(mass - row.params.top_p) < 1e-5 for mass in masses)


@given(rows=st.lists(ROWS, min_size=1, max_size=4))
def test_all_stages_together_equal_their_definitions(rows: list[Row]) -> None:
    rows = [row for row in rows if not is_decided_by_rounding(row)]
    if rows:
        for ours, row in zip(reference.ours(rows), rows, strict=True):
            assert_same(ours, reference.run(row))


@settings(max_examples=50)
@given(rows=st.lists(ROWS, min_size=1, max_size=4))
def test_a_greedy_row_takes_the_most_likely_token_that_is_left(rows: list[Row]) -> None:
    for row in rows:
        row.params = SamplingParams(**{**_given(row.params), "temperature": 0.0})
    rows = [row for row in rows if not is_decided_by_rounding(row)]
    if rows:
        expected = [reference.run(row, reference.BEFORE_ARGMAX) for row in rows]
        assert reference.sample(rows) == [logits.index(max(logits)) for logits in expected]


def _given(params: SamplingParams) -> dict[str, Any]:
    return {name: getattr(params, name) for name in SamplingParams.__struct_fields__}


THREE = [math.log(p) for p in (0.5, 0.3, 0.2)]


@pytest.mark.parametrize(
    ("earlier", "later", "row"),
    [
        # 2 - 4 = -2 is multiplied: -4; and 2 would have been divided: -3.
        ("logit_bias", "repetition", Row([2.0, 1.0], SamplingParams(logit_bias={0: -4.0}, repetition_penalty=2.0))),
        # 2 / 2 - 1.5 = -0.5, and (2 - 1.5) / 2 = 0.25.
        (
            "repetition",
            "frequency_and_presence",
            Row([2.0, 1.0], SamplingParams(frequency_penalty=1.5, repetition_penalty=2.0), output=[0]),
        ),
        (
            "frequency_and_presence",
            "temperature",
            Row([2.0, 1.0], SamplingParams(presence_penalty=1.0, temperature=0.5), output=[0]),
        ),
        # At temperature 0.5 the ratio of the second to the first is 0.36, below 0.4; before it was 0.6.
        ("temperature", "min_p", Row(THREE, SamplingParams(temperature=0.5, min_p=0.4))),
        # min_p leaves the first two, and of them the first has 0.625 of the mass: enough for 0.6.
        ("min_p", "top_p", Row(THREE, SamplingParams(min_p=0.5, top_p=0.6))),
        # top_k leaves the first two, with the same masses.
        ("top_k", "top_p", Row(THREE, SamplingParams(top_k=2, top_p=0.6))),
        ("temperature", "top_p", Row(THREE, SamplingParams(temperature=0.4, top_p=0.6))),
    ],
)
def test_two_stages_in_the_other_order_would_give_something_else(earlier: str, later: str, row: Row) -> None:
    names = [stage.__name__ for stage in reference.ORDER]
    swapped = list(reference.ORDER)
    moved = swapped.pop(names.index(later))
    swapped.insert(names.index(earlier), moved)
    [ours] = reference.ours([row])
    assert_same(ours, reference.run(row))
    assert [x > reference.NEVER and round(x, 3) for x in reference.run(row, swapped)] != [
        x > reference.NEVER and round(x, 3) for x in ours
    ]


def test_penalties_come_before_the_argmax() -> None:
    row = Row([2.0, 1.5, 0.0], SamplingParams(temperature=0.0, presence_penalty=1.0), output=[0])
    assert reference.sample([row]) == [1]


def test_a_prompt_counts_for_repetition_only() -> None:
    both = SamplingParams(repetition_penalty=2.0, frequency_penalty=1.0, presence_penalty=1.0, temperature=0.0)
    [logits] = reference.ours([Row([4.0, 4.0, -4.0], both, prompt=[0, 0, 2], output=[1, 1])])
    assert logits == [2.0, -1.0, -8.0]


def test_a_bad_word_is_stopped_at_its_last_token_only() -> None:
    params = SamplingParams(bad_words_token_ids=((1, 2, 3),), temperature=0.0)
    likely = [0.0, 1.0, 2.0, 3.0]
    assert reference.sample([Row(likely, params, output=output) for output in ([], [1], [2], [1, 2], [3, 1, 2])]) == [
        3,
        3,
        3,
        2,
        2,
    ]


def test_stop_tokens_wait_for_min_tokens() -> None:
    params = SamplingParams(min_tokens=2, all_stop_token_ids=(3,), temperature=0.0)
    rows = [Row([0.0, 1.0, 2.0, 3.0], params, output=[0] * count) for count in (0, 1, 2, 3)]
    assert reference.sample(rows) == [2, 2, 3, 3]


def test_masked_greedy_rows_beside_random_rows_stay_numbers() -> None:
    masked = SamplingParams(temperature=0.0, allowed_token_ids=[2])
    rows = [Row([1.0, 2.0, 0.5], masked), Row([1.0, 2.0, 0.5], SamplingParams(temperature=0.5, seed=1))]
    assert reference.sample(rows)[0] == 2


@pytest.mark.parametrize("temperature", [0.0, 0.01, 1.0])
@pytest.mark.parametrize(
    "extreme",
    [
        {"repetition_penalty": 1e-300},
        {"repetition_penalty": 1e300},
        {"logit_bias": {1: 1e300}, "repetition_penalty": 1e-300},
        {"logit_bias": {1: -1e300}, "repetition_penalty": 1e300, "frequency_penalty": 2.0},
    ],
)
@pytest.mark.parametrize("filters", [{}, {"top_p": 0.5}, {"top_k": 1, "min_p": 1.0}])
def test_extreme_values_never_leave_nothing_to_sample(
    temperature: float, extreme: dict[str, Any], filters: dict[str, Any]
) -> None:
    params = SamplingParams(**extreme, **filters, temperature=temperature, allowed_token_ids=[1])
    for logit in (-2.0, 0.0, 2.0):
        assert reference.sample([Row([3.0, logit, 1.0], params, prompt=[1], output=[1])]) == [1]


def test_a_penalty_does_not_bring_back_what_is_forbidden() -> None:
    params = SamplingParams(
        repetition_penalty=0.5, frequency_penalty=-2.0, presence_penalty=-2.0, allowed_token_ids=[1]
    )
    [logits] = reference.ours([Row([3.0, 2.0, 1.0], params, prompt=[0], output=[2, 2])])
    assert logits == [reference.NEVER, 2.0, reference.NEVER]


def test_rows_without_rules_are_left_alone() -> None:
    logits = torch.randn(3, 8, generator=torch.Generator().manual_seed(0))
    row = Row([0.0] * 8, SamplingParams(logit_bias={2: 5.0}))
    [rule] = reference.rules_of([row])
    changed = apply_logits_processors(logits.clone(), [rule])
    assert torch.equal(changed[1:], logits[1:])
    assert apply_logits_processors(logits, []) is logits


def test_draws_follow_the_filtered_distribution() -> None:
    params = SamplingParams(temperature=0.8, top_k=5, top_p=0.9, min_p=0.02, logit_bias={3: 1.0}, seed=1)
    row = Row([round(0.4 * i, 2) for i in range(8)], params)
    draws = 8_000
    counts = torch.bincount(torch.tensor(reference.sample([row] * draws, seed=5)), minlength=8).tolist()
    expected = [draws * p for p in reference.softmax(reference.run(row))]
    assert all(count == 0 for count, mean in zip(counts, expected, strict=True) if mean == 0)
    kept = [(count, mean) for count, mean in zip(counts, expected, strict=True) if mean > 0]
    chi_squared = sum((count - mean) ** 2 / mean for count, mean in kept)
    assert len(kept) == 4
    assert chi_squared < 16.3  # 3 degrees of freedom: 1 in 1000
