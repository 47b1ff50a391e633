"""Sampling on the device: random mixtures of greedy, filtered and penalised rows against the reference, bit by bit."""

from __future__ import annotations

import torch

from minivllm.kernels import sample as module
from minivllm.kernels.gumbel import OF_TILES, gumbel_noise_reference
from minivllm.kernels.logprobs import token_logprobs, token_logprobs_reference
from minivllm.kernels.penalties import count_history, count_history_reference
from minivllm.kernels.sample import TILE, sample, sample_reference, tile_weights_reference
from minivllm.kernels.scores import SamplingParameters, SamplingRows, SamplingState, scores_reference
from minivllm.kernels.threshold import kept_reference
from tests.kernels.grids.setup import NAN, Setup, assert_near

SLOTS, LONGEST = 7, 64
# (vocabulary, are there penalties, are logits rounded so that many are equal)
CASES = [(1, False, False), (700, True, False), (1024, False, True), (5000, True, True), (4099, False, False)]
FULL = [(151_936, True, True), (32_000, False, False), (50_257, True, False), (128_256, False, True)]


def run(setup: Setup) -> int:
    cases = CASES + FULL if setup.full else CASES
    for index, (vocab_size, has_history, has_ties) in enumerate(cases):
        dtype = torch.float32 if index % 2 or not setup.is_gpu else torch.bfloat16
        compare(setup, vocab_size, has_history, has_ties, dtype, f"{vocab_size=} {has_history=} {has_ties=} {dtype=}")
    compare_ties(setup)
    compare_large(setup)
    compare_scores(setup)
    return len(cases) + 3


def choices(rows: int, *values: float) -> torch.Tensor:
    return torch.tensor(values)[torch.randint(len(values), (rows,))]


def compare(setup: Setup, vocab_size: int, has_history: bool, has_ties: bool, dtype, what: str) -> None:
    device, rows = setup.device, 12
    logits = torch.randn(rows, vocab_size + 3)[:, :vocab_size] * 3
    logits[4] *= 8  # one tile has nearly all of the mass
    if has_ties:
        logits = (logits * 2).round() / 2
    logits = logits.to(dtype)
    logits[0, vocab_size // 2] = NAN
    logits[1] = float("-inf")
    logits[2:, 3::5] = float("-inf")  # forbidden tokens
    slot = torch.arange(rows, dtype=torch.int32) % SLOTS
    slot[3] = -1
    slot[SLOTS:] = -1 if has_history else slot[SLOTS:]  # a slot has one history, so one row
    how = SamplingRows(slot, torch.randperm(LONGEST)[:rows].int())
    temperature = choices(SLOTS, 0.0, 0.7, 1.0, 3.0)
    temperature[:2] = 1.0
    parameters = SamplingParameters(
        temperature=temperature,
        min_p=choices(SLOTS, 0.0, 0.0, 0.05, 1.0),
        top_k=choices(SLOTS, 0, 1, 5, 50, 100_000).int(),
        top_p=choices(SLOTS, 1.0, 0.9, 0.5, 1e-6),
        seed=torch.randint(-(2**63), 2**63 - 1, (SLOTS,)),
        repetition=choices(SLOTS, 1.0, 1.0, 1.5, 0.5),
        frequency=choices(SLOTS, 0.0, 0.0, 0.7, -1.0),
        presence=choices(SLOTS, 0.0, 0.3, -0.2),
    )
    token_ids = torch.randint(0, vocab_size, (SLOTS, LONGEST), dtype=torch.int32)
    state = SamplingState(token_ids, fill_history(setup, token_ids, vocab_size) if has_history else None)
    before = SamplingState(*(None if part is None else part.clone() for part in state))
    moved = SamplingState(*(None if part is None else part.clone().to(device) for part in state))

    expected = sample_reference(logits, how, parameters, state)
    on_device = SamplingRows(*(column.to(device) for column in how))
    parameters_on_device = SamplingParameters(*(column.to(device) for column in parameters))
    padded = torch.full((rows, vocab_size + 3), NAN, dtype=dtype, device=device)
    padded[:, :vocab_size] = logits.to(device)
    again = SamplingState(*(None if part is None else part.clone() for part in moved))
    got = sample(padded[:, :vocab_size], on_device, parameters_on_device, moved).cpu()
    if setup.compile_only:
        return
    if vocab_size > TILE:
        got_by_few = with_programs(2 * rows, padded[:, :vocab_size], on_device, parameters_on_device, again)
        assert torch.equal(got, got_by_few), f"{what}: a draw depends on how many programs share a row"
    assert expected[:2].tolist() == [-1, -1], "a row of NaN and a row of minus infinity have no token"
    assert torch.equal(got < 0, expected < 0), f"{what}: rows without a token differ"
    for row in torch.nonzero(got != expected).flatten().tolist():
        # The last bit of a logarithm may decide between two tokens that are as good as equal.
        at = int(slot[row])
        scores = scores_reference(logits[row].float(), at, parameters, before)
        assert temperature[at] > 0, f"{what}: row {row} is greedy, and took {got[row]} instead of {expected[row]}"
        assert kept_reference(scores, at, parameters)[got[row]], f"{what}: row {row} drew a token that is not kept"
        kept = scores.masked_fill(~kept_reference(scores, at, parameters), float("-inf"))
        gap = gap_between(kept, parameters.seed[[at]], how.position[[row]].long(), int(expected[row]), int(got[row]))
        assert gap < 1e-4, f"{what}: row {row} drew {got[row]} instead of {expected[row]}"
    if torch.equal(got, expected):
        assert torch.equal(moved.token_ids.cpu(), state.token_ids), f"{what}: tokens are put where they belong"
        if state.history is not None:
            assert torch.equal(moved.history.cpu(), state.history), f"{what}: histories count the new tokens"


def gap_between(kept: torch.Tensor, seed: torch.Tensor, position: torch.Tensor, wanted: int, got: int) -> float:
    """By how much one token was better than another: by its tile's weight and noise, or by its own in the same tile."""
    if wanted // TILE == got // TILE:
        noisy = kept + gumbel_noise_reference(seed, position, len(kept))[0]
        return float(noisy[wanted] - noisy[got])
    weights = tile_weights_reference(kept)
    noisy = weights + gumbel_noise_reference(seed, position, len(weights), OF_TILES)[0]
    return float(noisy[wanted // TILE] - noisy[got // TILE])


def with_programs(programs: int, *arguments) -> torch.Tensor:
    """Sample with another number of programs: some of them go over several tiles then."""
    usual, module.PROGRAMS = module.PROGRAMS, programs
    try:
        return sample(*arguments).cpu()
    finally:
        module.PROGRAMS = usual


def fill_history(setup: Setup, token_ids: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """Histories of slots with prompts of several lengths, counted by the kernel and by its reference."""
    expected = torch.full((SLOTS, vocab_size), 77, dtype=torch.int32)
    got = expected.to(setup.device)
    for slot in range(SLOTS):
        prompt, tokens = slot * 5, min(LONGEST, slot * 9)
        count_history_reference(expected, slot, token_ids[slot, :tokens], prompt)
        count_history(got, slot, token_ids[slot, :tokens].to(setup.device), prompt)
    assert torch.equal(got.cpu(), expected), "histories differ"
    return expected


def compare_ties(setup: Setup) -> None:
    """Of 64 equal scores a top_p of 0.3 needs 20: the first ones."""
    device, slots = setup.device, 7
    columns = [torch.zeros(slots, device=device) for _ in SamplingParameters._fields]
    parameters = SamplingParameters(*columns)._replace(
        temperature=torch.ones(slots, device=device),
        top_k=torch.zeros(slots, dtype=torch.int32, device=device),
        top_p=torch.full((slots,), 0.3, device=device),
        seed=torch.arange(slots, device=device),
        repetition=torch.ones(slots, device=device),
    )
    rows = SamplingRows(*(torch.arange(slots, dtype=torch.int32, device=device) for _ in range(2)))
    state = SamplingState(torch.zeros(slots, LONGEST, dtype=torch.int32, device=device), None)
    tokens = sample(torch.zeros(slots, 64, device=device), rows, parameters, state)
    assert tokens.max() < 20, f"ties beyond what top_p needs were kept: {tokens.tolist()}"
    expected = sample_reference(torch.zeros(slots, 64, device=device), rows, parameters, state)
    assert torch.equal(tokens, expected), "a draw among ties differs"


def compare_large(setup: Setup) -> None:
    """Where scores are so far apart that no noise matters, as a penalty can make them, the highest is drawn: also as
    the only one of its tile, or beside tiles whose scores are very low."""
    slots, vocab_size = 6, 2 * TILE + 3
    columns = [torch.zeros(slots) for _ in SamplingParameters._fields]
    parameters = SamplingParameters(*columns)._replace(
        temperature=torch.ones(slots),
        top_k=torch.zeros(slots, dtype=torch.int32),
        top_p=torch.ones(slots),
        seed=torch.arange(slots),
        repetition=torch.ones(slots),
    )
    logits = torch.randn(slots, vocab_size) * torch.tensor([1e4, 1e9, 1.7e12, 3e20, 1e30, 1e30])[:, None]
    logits[5] = -logits[5].abs()
    logits[5, -1] = -1e9
    on_device = SamplingParameters(*(column.to(setup.device) for column in parameters))
    rows = SamplingRows(*(torch.arange(slots, dtype=torch.int32, device=setup.device) for _ in range(2)))
    state = SamplingState(torch.zeros(slots, LONGEST, dtype=torch.int32, device=setup.device), None)
    got = sample(logits.to(setup.device), rows, on_device, state).cpu()
    if not setup.compile_only:
        assert torch.equal(got, logits.argmax(-1)), f"large scores: {got.tolist()}"


def compare_scores(setup: Setup) -> None:
    for rows, vocab_size in [(0, 10), (3, 1), (5, 9000)]:
        logits = torch.randn(rows, vocab_size) * 5
        logits[:, 1::7] = float("-inf")
        tokens = torch.randint(0, vocab_size, (rows,)) // 7 * 7
        logprobs, ranks = token_logprobs(logits.to(setup.device), tokens.to(setup.device))
        expected, expected_ranks = token_logprobs_reference(logits.double(), tokens)
        assert_near(logprobs, expected, f"scores {rows=} {vocab_size=}")
        assert torch.equal(ranks.cpu(), expected_ranks), f"ranks {rows=} {vocab_size=}"
