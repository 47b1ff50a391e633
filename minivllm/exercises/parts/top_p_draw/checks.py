"""Which tokens stay, how often each is drawn, and what the engine says with both."""

from __future__ import annotations

import math

import numpy as np
import torch

from minivllm.exercises.bench import Bench, Run, WrongError
from minivllm.sample.noise import gumbel_noise
from minivllm.scenarios.definition import GO_ON, Scenario, ScenarioRequest

DRAWS = Scenario(
    name="three-ways-to-draw",
    title="The same prompt with different top_p, and one that is greedy",
    teaches="top_p leaves the likely tokens, and a draw depends on seed and position only.",
    engine={"max_model_len": 64, "block_size": 8, "num_gpu_blocks_override": 33, "max_num_seqs": 4},
    requests=(
        ScenarioRequest("R0", "Once upon a time", 12, sampling={"temperature": 1.3, "top_p": 0.5, "seed": 1, **GO_ON}),
        ScenarioRequest("R1", "Once upon a time", 12, sampling={"temperature": 1.3, "top_p": 0.9, "seed": 2, **GO_ON}),
        ScenarioRequest("R2", "Once upon a time", 12, sampling={"temperature": 1.0, "seed": 3, **GO_ON}),
        ScenarioRequest("R3", "Once upon a time", 12, sampling=GO_ON),
    ),
)

# Probabilities of five tokens.
_SHARES = [0.1, 0.4, 0.05, 0.25, 0.2]
_DRAWS = 3000


def engine(bench: Bench) -> list[Run]:
    """The runs that must change when the solution is broken."""
    return [bench.run(DRAWS)]


def _kept(bench: Bench, shares: list[list[float]], top_p: list[float]) -> tuple[str, list[list[int]]]:
    logits = torch.tensor(shares).log()
    text = f"keep_top_p(log({shares}), {[[p] for p in top_p]})"
    called = bench.call("keep_top_p", logits.clone(), torch.tensor(top_p).unsqueeze(1), text=text)
    out = called.value
    called.is_true(isinstance(out, torch.Tensor) and out.shape == logits.shape, f"a tensor {tuple(logits.shape)}")
    stays = out > -math.inf
    called.is_true(bool((out[stays] == logits[stays]).all()), "the logits that stay are as they were, where they were")
    return text, [row.nonzero().flatten().tolist() for row in stays]


def test_the_likely_tokens_stay(bench: Bench) -> None:
    """Tokens stay while those before them have less than top_p; each at its place."""
    for top_p, expected in ((0.5, [1, 3]), (0.3, [1]), (0.84, [1, 3, 4]), (0.94, [0, 1, 3, 4])):
        text, kept = _kept(bench, [_SHARES], [top_p])
        bench.same(f"{text}; tokens that stay", kept[0], expected)


def test_one_always_stays(bench: Bench) -> None:
    """However small top_p is, the most likely token stays."""
    text, kept = _kept(bench, [_SHARES], [0.001])
    bench.same(f"{text}; tokens that stay", kept[0], [1])


def test_each_row_has_its_own(bench: Bench) -> None:
    """Each row has its own top_p, and 1 keeps everything."""
    text, kept = _kept(bench, [_SHARES, _SHARES[::-1], _SHARES], [0.5, 0.5, 1.0])
    bench.same(f"{text}; tokens that stay", kept, [[1, 3], [1, 3], [0, 1, 2, 3, 4]])
    steep = torch.linspace(0, -60, 500).unsqueeze(0)  # the sum is 1, in 32 bits, long before the end
    text = "keep_top_p(500 logits from 0 to -60, [[1.0]])"
    out = bench.call("keep_top_p", steep, torch.ones(1, 1), text=text).value
    bench.same(f"{text}; tokens that stay", int((out > -math.inf).sum()), 500)


def test_draws_have_the_right_shares(bench: Bench) -> None:
    """Over many rows, each token is drawn as often as its probability says."""
    rows = torch.tensor([_SHARES]).log().repeat(_DRAWS, 1) + 3.0  # softmax does not mind a constant
    noise = gumbel_noise(np.arange(_DRAWS, dtype=np.uint64), np.arange(_DRAWS), len(_SHARES))
    text = f"draw({_DRAWS} rows of log({_SHARES}), ...)"
    called = bench.call("draw", rows, (-noise).exp(), text=text)
    value = called.value
    called.is_true(isinstance(value, torch.Tensor) and value.shape == (_DRAWS,), f"a tensor ({_DRAWS},)")
    shares = [float((value == token).float().mean()) for token in range(len(_SHARES))]
    # Four standard deviations of the share of a token with probability 0.4 are 0.036.
    if any(abs(got - wanted) > 0.04 for got, wanted in zip(shares, _SHARES, strict=True)):
        told = "[" + ", ".join(f"{share:.2f}" for share in shares) + "]"
        raise WrongError("The shares are others.", call=text, expected=str(_SHARES), got=told)


def test_what_was_left_out_is_never_drawn(bench: Bench) -> None:
    """A token with the logit -inf is not drawn, whatever its noise."""
    rows = torch.tensor([[-math.inf, 0.0, -math.inf]]).repeat(4, 1)
    called = bench.call(
        "draw", rows, torch.tensor([[1e-6, 3.0, 1e-6]]).repeat(4, 1), text="draw([[-inf, 0, -inf]] * 4)"
    )
    called.gives([1, 1, 1, 1], got=called.value.tolist())


def test_the_engine_says_the_same(bench: Bench) -> None:
    """In the engine: three requests draw, one is greedy, and each says what it always says."""
    run = bench.run(DRAWS)
    bench.same_tokens(run)
    bench.sound(run)
