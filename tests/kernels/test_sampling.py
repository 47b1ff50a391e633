"""The noise and the references of sampling: a standard's own numbers, distributions, and hand-made rows."""

from __future__ import annotations

import pytest
import torch

from minivllm.kernels.fp8 import fp8_kv_dtype, into_cache_reference
from minivllm.kernels.gumbel import OF_TILES, OF_TOKENS, gumbel_noise_reference, philox_reference
from minivllm.kernels.sample import TILE, sample_reference
from minivllm.kernels.scores import SamplingParameters, SamplingRows, SamplingState
from minivllm.kernels.threshold import kept_reference

ALL_ONES = 0xFFFFFFFF
# Random123's known answers for philox4x32-10: (counter, key, words).
KNOWN = [
    ([0, 0, 0, 0], [0, 0], [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    ([ALL_ONES] * 4, [ALL_ONES] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    (
        [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
        [0xA4093822, 0x299F31D0],
        [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
    ),
]


def plain(slots: int, **changed: object) -> SamplingParameters:
    """Plain random sampling, with some columns changed."""
    values = dict.fromkeys(SamplingParameters._fields, 0.0) | {
        "temperature": 1.0, "top_k": 0, "top_p": 1.0, "seed": 1, "repetition": 1.0, **changed,
    }  # fmt: skip
    return SamplingParameters(**{name: torch.full((slots,), value) for name, value in values.items()})


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN)
def test_philox_gives_the_standards_own_words(counter, key, words):
    key64 = torch.tensor([key[0] | key[1] << 32]) if key[1] < 2**31 else torch.tensor([(key[0] | key[1] << 32) - 2**64])
    got = philox_reference(key64, tuple(torch.tensor([word]) for word in counter))
    assert [int(word) for word in got] == words


def test_noise_depends_on_seed_position_and_token_only():
    seeds, positions = torch.tensor([3, -9, 3]), torch.tensor([5, 5, 2**33])
    together = gumbel_noise_reference(seeds, positions, 1001)
    for row in range(3):
        alone = gumbel_noise_reference(seeds[[row]], positions[[row]], 997)
        assert torch.equal(together[row, :997], alone[0])
    assert together.isfinite().all()
    assert len(together.flatten().unique()) > 3000, "rows do not repeat each other"


def test_noise_of_tiles_is_none_of_tokens():
    seed, position = torch.tensor([3]), torch.tensor([5])
    of_tiles, of_tokens = (gumbel_noise_reference(seed, position, 1000, stream) for stream in (OF_TILES, OF_TOKENS))
    assert (of_tiles != of_tokens).all()


def test_draws_follow_the_softmax():
    """Two tokens of a tile, three of another, and a third that is forbidden as a whole."""
    logits = torch.full((1, 2 * TILE + 5), float("-inf"))
    places = [0, TILE - 1, TILE, TILE + 7, 2 * TILE - 1]
    logits[0, places] = torch.tensor([2.0, 1.0, 0.0, -1.0, 0.5])
    draws = 4000
    rows = SamplingRows(slot=torch.arange(draws) % 40, position=torch.arange(draws) // 40)
    state = SamplingState(torch.zeros(40, draws // 40, dtype=torch.int32), None)
    parameters = plain(40)._replace(seed=torch.arange(40) - 20)
    tokens = sample_reference(logits.expand(draws, -1), rows, parameters, state)
    counts = torch.bincount(tokens, minlength=logits.shape[1]).double()
    assert counts.sum() == counts[places].sum() == draws
    expected = logits[0, places].double().softmax(dim=-1) * draws
    chi_square = ((counts[places] - expected).square() / expected).sum()
    assert chi_square < 18.5, "4 degrees of freedom: more happens once in 1000 seeds, and this seed is fixed"


@pytest.mark.parametrize(
    ("how", "kept"),
    [
        ({}, [0, 1, 2, 3, 4]),
        ({"top_k": 1}, [2]),
        ({"top_k": 2}, [0, 1, 2]),  # tokens 0 and 1 tie for the second place: both stay
        ({"top_k": 99}, [0, 1, 2, 3, 4]),
        ({"top_p": 1e-6}, [2]),
        ({"top_p": 0.5}, [0, 2]),  # 0.4, then one of the two with 0.2: the lower token
        ({"top_p": 0.61}, [0, 1, 2]),
        ({"min_p": 0.4}, [0, 1, 2]),
        ({"min_p": 1.0}, [2]),
        ({"top_k": 2, "top_p": 0.6}, [0, 2]),  # of 0.8 that top_k left, 0.4 and 0.2 are 0.75
    ],
)
def test_what_is_kept(how, kept):
    scores = torch.tensor([0.2, 0.2, 0.4, 0.15, 0.05]).log()
    assert torch.nonzero(kept_reference(scores, 0, plain(1, **how))).flatten().tolist() == kept


def test_a_token_goes_to_its_place_and_into_the_history():
    state = SamplingState(torch.zeros(2, 10, dtype=torch.int32), torch.zeros(2, 4, dtype=torch.int32))
    logits = torch.tensor([[0.0, 9.0, 0.0, 8.5], [0.0, 0.0, 7.0, 0.0], [float("nan"), 0.0, 0.0, 0.0]])
    state.history[1, 1] = 2 * 3 + 1  # token 1: three times in the output, and in the prompt
    rows = SamplingRows(slot=torch.tensor([1, -1, 0]), position=torch.tensor([7, 8, 9]))
    parameters = plain(2, temperature=0.0, frequency=0.25)
    assert sample_reference(logits, rows, parameters, state).tolist() == [3, -1, -1]  # 9 - 3 * 0.25 < 8.5
    assert state.token_ids[1, 7] == 3
    assert state.token_ids.count_nonzero() == 1
    assert state.history.tolist() == [[0, 0, 0, 0], [0, 7, 0, 2]]


def test_an_fp8_cache_takes_the_format_that_the_gpu_can_read():
    assert fp8_kv_dtype("fp8", 90) == fp8_kv_dtype("fp8_e4m3", 89) == torch.float8_e4m3fn
    assert fp8_kv_dtype("fp8", 80) == fp8_kv_dtype("fp8_e5m2", 90) == torch.float8_e5m2
    with pytest.raises(ValueError, match=r"compute capability 8.0\) cannot convert e4m3"):
        fp8_kv_dtype("fp8_e4m3", 80)
    with pytest.raises(ValueError, match="needs an NVIDIA GPU"):
        fp8_kv_dtype("fp8", 0)
    with pytest.raises(ValueError, match="unknown FP8 format 'int8'"):
        fp8_kv_dtype("int8", 90)


def test_what_an_fp8_cache_cannot_hold_is_clamped():
    stored = into_cache_reference(torch.tensor([1e6, -1e6, 3.0]), torch.float8_e4m3fn, scale=2.0)
    assert stored.float().tolist() == [448.0, -448.0, 1.5]
    assert into_cache_reference(torch.tensor([1e6]), torch.float32, 1.0).item() == 1e6
