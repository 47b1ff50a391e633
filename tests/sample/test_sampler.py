"""A draw follows the filtered distribution, and depends on (seed, position) alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from minivllm.sample.filters import filtered
from minivllm.sample.metadata import SamplingMetadata
from minivllm.sample.noise import gumbel_noise
from minivllm.sample.sampler import Sampler

PROBABILITIES = torch.tensor([0.4, 0.25, 0.15, 0.1, 0.06, 0.04])


def metadata(rows: int, **columns: Any) -> SamplingMetadata:
    def column(name: str, default: float, dtype: type) -> Any:
        return np.broadcast_to(np.asarray(columns.get(name, default), dtype=dtype), (rows,)).copy()

    return SamplingMetadata(
        req_ids=[f"r{row}" for row in range(rows)],
        temperature=column("temperature", 1.0, np.float32),
        top_k=column("top_k", 0, np.int32),
        top_p=column("top_p", 1.0, np.float32),
        min_p=column("min_p", 0.0, np.float32),
        seed=column("seed", 0, np.uint64),
        position=column("position", 0, np.int64),
    )


def sample(logits: torch.Tensor, how: SamplingMetadata) -> list[int]:
    tokens: list[int] = Sampler().forward(logits, how).sampled_token_ids.tolist()
    return tokens


@pytest.mark.parametrize(
    ("columns", "kept"),
    [
        ({}, {0, 1, 2, 3, 4, 5}),
        ({"top_k": 3}, {0, 1, 2}),
        ({"top_k": 100}, {0, 1, 2, 3, 4, 5}),
        ({"top_p": 0.6}, {0, 1}),  # 0.4 does not reach 0.6, 0.65 does
        ({"top_p": 0.3}, {0}),  # at least one
        ({"top_p": 1e-6}, {0}),
        ({"min_p": 0.3}, {0, 1, 2}),  # at least 0.3 * 0.4 = 0.12
        ({"min_p": 1.0}, {0}),
        ({"top_k": 4, "top_p": 0.9}, {0, 1, 2, 3}),  # of the four that are left 0.89 reaches 0.8, not 0.9
        ({"top_k": 4, "top_p": 0.7}, {0, 1}),  # 0.65 / 0.9 = 0.72
        ({"temperature": 0.5, "top_p": 0.6}, {0}),  # sharper: 0.16 of 0.2662
    ],
)
def test_each_filter_keeps_what_its_definition_says(columns: dict[str, float], kept: set[int]) -> None:
    order = torch.tensor([3, 0, 5, 1, 4, 2])  # not sorted
    logits = filtered(PROBABILITIES[order].log()[None], metadata(1, **columns))
    assert {int(order[i]) for i in logits[0].isfinite().nonzero()} == kept


def test_rows_are_filtered_by_their_own_parameters() -> None:
    logits = PROBABILITIES.log().repeat(3, 1)
    how = metadata(3, top_k=[2, 0, 0], top_p=[1.0, 0.3, 1.0])
    assert filtered(logits, how).isfinite().sum(dim=1).tolist() == [2, 1, 6]


def test_a_flat_distribution_keeps_more_tokens_than_are_tried_first() -> None:
    logits = torch.arange(4000, 0, -1).float()[None] / 1000
    kept = filtered(logits, metadata(1, top_p=0.9)).isfinite().sum()
    mass = logits[0].softmax(dim=0).cumsum(dim=0)
    assert int(kept) == int((mass < 0.9).sum()) + 1 > 512


@pytest.mark.parametrize("vocab_size", [8, 3000])
def test_tokens_that_tie_with_the_last_of_top_k_stay(vocab_size: int) -> None:
    logits = torch.full((2, vocab_size), -1.0)
    logits[:, 1] = 2.0
    logits[0, 3:6] = 1.0
    kept = filtered(logits, metadata(2, top_k=2)).isfinite()
    assert kept[0].nonzero().flatten().tolist() == [1, 3, 4, 5]
    assert int(kept[1].sum()) == vocab_size, "all the others tie, however many"


def test_switched_off_filters_drop_nothing_from_a_long_tail() -> None:
    logits = torch.linspace(0, -60, 5000)[None].repeat(2, 1)
    assert filtered(logits, metadata(2, top_k=[3, 0]))[1].isfinite().all()


def test_greedy_and_random_rows_share_a_batch() -> None:
    logits = torch.randn(4, 50, generator=torch.Generator().manual_seed(0))
    how = metadata(4, temperature=[0.0, 1.0, 0.0, 1.0], seed=[1, 2, 3, 4], position=[5, 6, 7, 8])
    tokens = sample(logits, how)
    greedy = logits.argmax(dim=1).tolist()
    assert [tokens[0], tokens[2]] == [greedy[0], greedy[2]]
    alone = sample(logits[3:], metadata(1, seed=4, position=8))
    assert tokens[3] == alone[0]


def test_a_draw_does_not_depend_on_the_batch_or_the_row() -> None:
    logits = torch.randn(8, 300, generator=torch.Generator().manual_seed(0))
    seeds, positions = list(range(8)), list(range(10, 18))
    together = sample(logits, metadata(8, seed=seeds, position=positions))
    order = [5, 2, 7, 0, 1, 6, 3, 4]
    shuffled = sample(
        logits[order], metadata(8, seed=[seeds[i] for i in order], position=[positions[i] for i in order])
    )
    assert shuffled == [together[i] for i in order]


def test_seeds_and_positions_give_different_noise() -> None:
    noise = gumbel_noise(np.array([1, 1, 2, 2**64 - 1], dtype=np.uint64), np.array([1, 2, 1, 1]), 64)
    assert len({tuple(row.tolist()) for row in noise}) == 4


def test_noise_is_finite_even_where_the_generator_gives_zero() -> None:
    seed, position, token = 157, 5, 45_997  # a place where it does
    exponential = np.random.Generator(np.random.Philox(key=seed, counter=position << 128)).standard_exponential(
        50_000, dtype=np.float32
    )
    assert exponential[token] == 0
    noise = gumbel_noise(np.array([seed], dtype=np.uint64), np.array([position]), 50_000)
    assert noise.isfinite().all()
    logits = torch.full((1, 50_000), float("-inf"))
    logits[0, 3] = 0.0
    assert sample(logits, metadata(1, seed=seed, position=position)) == [3]


def test_draws_follow_the_distribution() -> None:
    draws = 20_000
    how = metadata(draws, seed=7, position=np.arange(draws), temperature=0.7)
    counts = np.bincount(sample(PROBABILITIES.log().repeat(draws, 1), how), minlength=6)
    expected = (PROBABILITIES ** (1 / 0.7)).numpy()
    expected = expected / expected.sum() * draws
    chi_squared = float(((counts - expected) ** 2 / expected).sum())
    assert chi_squared < 20.5  # 5 degrees of freedom: 1 in 1000


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_not_numbers_name_their_request(temperature: float) -> None:
    logits = torch.zeros(3, 10)
    logits[1, 4] = float("nan")
    with pytest.raises(FloatingPointError, match="request r1: its logits at position 42 are not numbers"):
        sample(logits, metadata(3, temperature=temperature, position=[41, 42, 43]))


def test_minus_infinity_is_a_number() -> None:
    logits = torch.full((1, 10), float("-inf"))
    logits[0, 3] = 1.0
    assert sample(logits, metadata(1)) == [3]
