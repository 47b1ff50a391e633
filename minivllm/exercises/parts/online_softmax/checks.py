"""Pieces and their merging against plain softmax, and an engine that decodes with them."""

from __future__ import annotations

import math

import torch

from minivllm.exercises.bench import Bench, Run, WrongError
from minivllm.exercises.parts.online_softmax.seam import whole
from minivllm.scenarios.definition import GO_ON, Scenario, ScenarioRequest

SHORT = Scenario(
    name="two-decodes",
    title="Two requests, a few tokens each",
    teaches="Attention in pieces gives what attention as a whole gives.",
    engine={"max_model_len": 64, "block_size": 8, "num_gpu_blocks_override": 33, "max_num_seqs": 4},
    requests=(
        ScenarioRequest("R0", "Once upon a time", max_tokens=6, sampling=GO_ON),
        ScenarioRequest("R1", "The cat sat on the wall and", max_tokens=4, arrival_step=1, sampling=GO_ON),
    ),
)


def engine(bench: Bench) -> list[Run]:
    """The runs that must change when the solution is broken."""
    return [bench.run(SHORT)]


def _close(call: str, got: object, expected: torch.Tensor, why: str = "") -> None:
    if not isinstance(got, torch.Tensor) or got.shape != expected.shape:
        raise WrongError(why, call=call, expected=f"a tensor {tuple(expected.shape)}", got=repr(got)[:200])
    if not torch.allclose(got, expected, rtol=1e-4, atol=1e-5):
        raise WrongError(why, call=call, expected=_told(expected), got=_told(got))


def _told(values: torch.Tensor) -> str:
    return "[" + ", ".join(f"{value:.4f}" for value in values.tolist()) + "]"


def test_a_piece_is_relative_to_its_highest_score(bench: Bench) -> None:
    """One piece gives its highest score, the sum, and the weighted sum of values."""
    scores, values = torch.tensor([1.0, 3.0, 2.0]), torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    called = bench.call("attend_piece", scores, values, text="attend_piece([1, 3, 2], [[1, 0], [0, 1], [1, 1]])")
    called.is_true(isinstance(called.value, tuple) and len(called.value) == 3, "(highest, total, out)")
    highest, total, out = called.value
    bench.same(f"{called.call}; highest", round(float(highest), 4), 3.0)
    bench.same(f"{called.call}; total", round(float(total), 4), 1.5032)
    _close(f"{called.call}; out", out, torch.tensor([0.5032, 1.3679]))


def test_pieces_make_a_whole(bench: Bench) -> None:
    """However a context is cut, the pieces give what plain softmax gives."""
    generator = torch.Generator().manual_seed(3)
    scores, values = 4 * torch.randn(23, generator=generator), torch.randn(23, 4, generator=generator)
    for piece in (23, 10, 5, 1):
        text = f"attention over 23 tokens, in pieces of {piece}"
        got = bench.call("", whole, bench.part, scores, values, piece, text=text).value
        _close(text, got, scores.softmax(0) @ values)


def test_either_piece_may_have_the_higher_score(bench: Bench) -> None:
    """merge(a, b) and merge(b, a) give the same."""
    low, high = (1.0, 2.0, torch.tensor([1.0, 3.0])), (5.0, 1.5, torch.tensor([2.0, 0.5]))
    shrunk = math.exp(-4)
    for a, b in ((low, high), (high, low)):
        text = f"merge(({a[0]}, {a[1]}, {a[2].tolist()}), ({b[0]}, {b[1]}, {b[2].tolist()}))"
        highest, total, out = bench.call("merge", a, b, text=text).value
        bench.same(f"{text}; highest", float(highest), 5.0)
        bench.same(f"{text}; total", round(float(total), 4), round(1.5 + 2 * shrunk, 4))
        _close(f"{text}; out", out, torch.tensor([2 + shrunk, 0.5 + 3 * shrunk]))


def test_large_scores_are_no_trouble(bench: Bench) -> None:
    """Scores of 1,000 give finite numbers, whichever piece comes first."""
    scores, values = torch.tensor([1000.0, -1000.0, 999.0, 1001.0]), torch.eye(4)
    for piece in (1, 2, 3):
        text = f"attention with the scores [1000, -1000, 999, 1001], in pieces of {piece}"
        got = bench.call("", whole, bench.part, scores, values, piece, text=text).value
        _close(text, got, scores.softmax(0) @ values)


def test_a_piece_may_be_empty(bench: Bench) -> None:
    """A piece of no tokens changes nothing, and two of them are one of no tokens."""
    nothing, some = (-math.inf, 0.0, torch.zeros(2)), (2.0, 1.5, torch.tensor([1.0, 3.0]))
    for a, b in ((nothing, some), (some, nothing), (nothing, nothing)):
        text = f"merge(({a[0]}, {a[1]}, {a[2].tolist()}), ({b[0]}, {b[1]}, {b[2].tolist()}))"
        expected = some if some in (a, b) else nothing
        highest, total, out = bench.call("merge", a, b, text=text).value
        bench.same(f"{text}; highest", float(highest), expected[0])
        bench.same(f"{text}; total", float(total), expected[1])
        _close(f"{text}; out", out, expected[2])


def test_the_engine_says_the_same(bench: Bench) -> None:
    """In the engine: decode tokens are computed in pieces, in every layer and head, and the text is the same."""
    run = bench.run(SHORT)
    bench.same_tokens(run)
    bench.sound(run)
