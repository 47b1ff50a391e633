"""What min_p, top_k and top_p keep: rows of many shapes against the reference, token by token.

Sizes are small where kernels are interpreted, so that rows have several tiles, brackets, and too many candidates.
"""

from __future__ import annotations

import torch

from minivllm.kernels import threshold as module
from minivllm.kernels.scores import SamplingParameters, SamplingState, scores_reference
from minivllm.kernels.threshold import Thresholds, find_thresholds, kept_reference
from tests.kernels.grids.setup import NAN, Setup

# (tokens of a tile in the first launch, and in the second, room, programs)
SMALL = [(64, 32, 128, 1), (64, 64, 128, 100), (128, 64, 512, 30)]
VOCABULARIES, FULL = [1, 50, 300, 1001], [2, 128, 129, 4099]
ON_GPU = [1, 50, 4096, 8193, 32_000, 50_257, 128_256, 151_936]
CHOICES = {
    "min_p": [0.0, 0.0, 0.05, 1.0],
    "top_k": [0, 1, 5, 50, 300, 100_000],
    "top_p": [1.0, 0.99999, 0.95, 0.9, 0.5, 1e-6],
}


def rows_of(vocab_size: int) -> dict[str, torch.Tensor]:
    """Rows of logits by what they look like."""
    flat = torch.randn(vocab_size)
    falling = -torch.arange(1, vocab_size + 1).float().log() * 1.1  # natural text is about so
    one_hot = torch.zeros(vocab_size)
    one_hot[vocab_size // 3] = 12.0
    masked = torch.randn(vocab_size) * 3
    masked[torch.rand(vocab_size) < 0.97] = float("-inf")
    masked[vocab_size // 2] = 1.0
    two_groups = torch.where(torch.rand(vocab_size) < 0.5, torch.randn(vocab_size), torch.randn(vocab_size) - 1e4)
    broken = torch.randn(vocab_size)
    broken[vocab_size // 2] = NAN
    infinite = torch.randn(vocab_size)
    infinite[vocab_size // 2] = float("inf")
    return {
        "flat": flat,
        "flatter": flat * 0.01 + 20,
        "steep": flat * 6,
        "falling": falling[torch.randperm(vocab_size)] * 2 + 7,
        "one hot": one_hot,
        "equal": torch.full((vocab_size,), -3.0),
        "coarse": (flat * 2).round() / 2,
        "masked": masked,
        "two groups": two_groups,
        "none": torch.full((vocab_size,), float("-inf")),
        "broken": broken,
        "infinite": infinite,
    }


def run(setup: Setup) -> int:
    usual = module.TILE, module.COLLECT_TILE, module.ROOM, module.PROGRAMS
    vocabularies = ON_GPU if setup.is_gpu else VOCABULARIES + (FULL if setup.full else [])
    sizes = [usual, (*usual[:3], 30)] if setup.is_gpu else SMALL
    cases = setup.choose([(v, s, h) for v in vocabularies for s in sizes for h in (False, True)], 5, 100)
    try:
        for index, (vocab_size, constants, has_history) in enumerate(cases):
            module.TILE, module.COLLECT_TILE, module.ROOM, module.PROGRAMS = constants
            compare(setup, vocab_size, has_history, torch.bfloat16 if setup.is_gpu and index % 3 else torch.float32)
    finally:
        module.TILE, module.COLLECT_TILE, module.ROOM, module.PROGRAMS = usual
    return len(cases)


def compare(setup: Setup, vocab_size: int, has_history: bool, dtype: torch.dtype) -> None:
    shapes = rows_of(vocab_size)
    names = [name for name in shapes for _ in range(4 if setup.is_gpu else 1)]
    slots = len(names)
    logits = torch.stack([shapes[name] for name in names]).to(dtype)

    def choose(*values: float) -> torch.Tensor:
        return torch.tensor(values)[torch.randint(len(values), (slots,))]

    parameters = SamplingParameters(
        temperature=choose(0.6, 1.0, 1.0, 2.5),
        min_p=choose(*CHOICES["min_p"]),
        top_k=choose(*CHOICES["top_k"]).int(),
        top_p=choose(*CHOICES["top_p"]),
        seed=torch.zeros(slots, dtype=torch.int64),
        repetition=choose(1.0, 1.0, 1.5),
        frequency=choose(0.0, 0.0, 0.7, -1.0),
        presence=choose(0.0, 0.3, -0.2),
    )
    parameters.temperature[::11] = 0.0
    slot = torch.randperm(slots).int()
    slot[5] = -1
    history = torch.randint(0, 4, (slots, vocab_size), dtype=torch.int32) if has_history else None
    state = SamplingState(torch.zeros(slots, 1, dtype=torch.int32), history)
    on_device = SamplingState(*(None if part is None else part.to(setup.device) for part in state))
    what = SamplingParameters(*(column.to(setup.device) for column in parameters))
    found = find_thresholds(logits.to(setup.device), slot.to(setup.device), what, on_device)
    if setup.compile_only:
        return
    found = Thresholds(*(column.cpu() for column in found))
    for row, at in enumerate(slot.tolist()):
        if at >= 0:
            scores = scores_reference(logits[row].float(), at, parameters, state)
            how = {name: float(getattr(parameters, name)[at]) for name in ("temperature", *CHOICES)}
            check_row(scores, row, at, parameters, found, f"{names[row]} {vocab_size=} {has_history=} {dtype=} {how}")


def check_row(
    scores: torch.Tensor, row: int, slot: int, parameters: SamplingParameters, found: Thresholds, what: str
) -> None:
    """Which tokens are kept equals the reference, but for what a sum of float64 and one of integers may differ in."""
    token = torch.arange(len(scores))
    lowest, last_tie = found.lowest[row], found.last_tie[row]
    kept = ((scores > lowest) | ((scores == lowest) & (token <= last_tie))) & (scores > float("-inf"))
    is_drawn = parameters.temperature[slot] > 0 and scores.max().isfinite()
    if not is_drawn:
        assert lowest == float("-inf"), f"{what}: nothing is searched for"
        return
    expected = kept_reference(scores, slot, parameters) & (scores > float("-inf"))
    differs = kept != expected
    if differs.any():
        # Of an edge that is hit as good as exactly, both sides are right: a token more or less, whatever it weighs.
        top_p = float(parameters.top_p[slot])
        assert top_p < 1, f"{what}: {int(differs.sum())} tokens differ"
        probability = scores.double().masked_fill(~(kept | expected), float("-inf")).softmax(dim=-1)
        off = probability[differs].sum()
        candidates = kept_reference(scores, slot, parameters._replace(top_p=torch.ones_like(parameters.top_p)))
        held = scores.double().masked_fill(~candidates, float("-inf")).softmax(dim=-1)[kept & expected].sum()
        is_edge = differs.sum() == 1 and abs(held - top_p) < 1e-6
        assert off < 1e-5 or is_edge, f"{what}: {int(differs.sum())} tokens differ, of {off:.1e} of the probability"
