"""The numbers of docs/sampling.md are those of a run, and its rows are the sampler's own stages."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from minivllm.sample.filters import filtered
from minivllm.sample.logits_processor import (
    apply_allowed_token_ids,
    apply_bad_words,
    apply_logit_bias,
    apply_min_tokens,
)
from minivllm.sample.metadata import SamplingMetadata
from minivllm.sample.noise import gumbel_noise
from minivllm.sample.penalties import apply_all_penalties
from minivllm.sample.sampler import Sampler
from minivllm.sampling_params import SamplingParams
from tests.sample.reference import Row, metadata_of, rules_of, tensor_of

PAGE = Path(__file__).parents[2] / "docs" / "sampling.md"
WORDS = ["(end)", "cat", "dog", "sat", "mat", "the", "ran", "hat"]
PARAMS = SamplingParams(
    allowed_token_ids=[0, 1, 2, 3, 4, 5, 7],
    bad_words_token_ids=((5, 5),),
    min_tokens=4,
    all_stop_token_ids=(0,),
    logit_bias={4: 1.5},
    repetition_penalty=1.2,
    frequency_penalty=0.3,
    presence_penalty=0.2,
    temperature=0.8,
    min_p=0.05,
    top_k=3,
    top_p=0.7,
    seed=1,
    logprobs=2,
)
# "the cat" has been continued by "sat the".
ROW = Row([1.5, 2.4, 1.6, 2.0, 0.7, 3.0, 1.1, -1.0], PARAMS, prompt=[5, 1], output=[3, 5])


def line(name: str, values: torch.Tensor) -> str:
    cells = ["-" if x == float("-inf") else f"{x:.2f}" for x in values.flatten().tolist()]
    return f"{name:<22}" + "".join(f"{cell:>7}" for cell in cells)


def narrowed(logits: torch.Tensor, *kept: str) -> torch.Tensor:
    """The logits after only some of the filters."""
    off = {"min_p": 0.0, "top_k": 0, "top_p": 1.0}
    on = {name: getattr(PARAMS, name) for name in ("temperature", *kept)}
    params = SamplingParams(**{**off, **on})
    return filtered(logits, metadata_of([Row(ROW.logits, params)]))


def table() -> list[str]:
    logits, rules = tensor_of([ROW]), rules_of([ROW])
    lines = [f"{'':<22}" + "".join(f"{word:>7}" for word in WORDS), line("logits", logits)]
    lines.append(line("raw logprobs", logits.log_softmax(dim=-1)))
    for name, stage in (
        ("allowed ids", apply_allowed_token_ids),
        ("bad words", apply_bad_words),
        ("min_tokens", apply_min_tokens),
        ("logit bias", apply_logit_bias),
        ("penalties", apply_all_penalties),
    ):
        stage(logits, rules)
        lines.append(line(name, logits))
    lines.append(line("temperature", narrowed(logits)))
    lines.append(line("min_p", narrowed(logits, "min_p")))
    lines.append(line("top_k", narrowed(logits, "min_p", "top_k")))
    kept = narrowed(logits, "min_p", "top_k", "top_p")
    lines.append(line("top_p", kept))
    lines.append(line("probabilities", kept.softmax(dim=-1)))
    noise = gumbel_noise(np.array([PARAMS.seed], dtype=np.uint64), np.array([0]), len(WORDS))
    lines.append(line("noise of (seed, pos.)", noise))
    lines.append(line("sum", kept + noise))
    return lines


def metadata() -> SamplingMetadata:
    assert PARAMS.seed is not None
    return metadata_of([ROW], [2], seed=PARAMS.seed)


def test_the_page_shows_this_run() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert "\n".join(line.rstrip() for line in table()) in text
    output = Sampler().forward(tensor_of([ROW]), metadata())
    assert output.logprobs is not None
    [token], [rank] = output.sampled_token_ids.tolist(), output.logprobs.sampled_token_ranks
    [ids], [scores] = output.logprobs.logprob_token_ids, output.logprobs.logprobs
    told = ", ".join(f"{WORDS[i]} {score:.2f}" for i, score in zip(ids, scores, strict=True))
    assert f"sampled: {WORDS[token]}, rank {rank}; told: {told}" in text


def test_the_stages_of_the_page_are_the_whole_way() -> None:
    total = table()[-1].split()[1:]
    highest = max(
        range(len(WORDS)), key=lambda i: float(total[i].replace("-", "-inf") if total[i] == "-" else total[i])
    )
    assert Sampler().forward(tensor_of([ROW]), metadata()).sampled_token_ids.tolist() == [highest]
