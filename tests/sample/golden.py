"""Compares what the engine gives with recordings of vLLM: tokens, scores, ranks and kept sets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from minivllm import LLM, SamplingParams
from minivllm.logprobs import LogprobsOnePosition

DATA = Path(__file__).parent.parent / "data"
# Two float32 engines differ by rounding, and so do ranks of tokens whose scores differ by less.
TOLERANCE = 2e-3


def load(name: str) -> list[dict[str, Any]]:
    cases: list[dict[str, Any]] = json.loads((DATA / name).read_text())["cases"]
    return cases


def params_of(case: dict[str, Any]) -> SamplingParams:
    bias = case["params"].get("logit_bias")
    given = {} if bias is None else {"logit_bias": {int(token_id): value for token_id, value in bias.items()}}
    return SamplingParams(**{**case["params"], **given})


def check_case(llm: LLM, case: dict[str, Any], *, draws: bool) -> None:
    """Run a case and compare everything that the recording has.

    Args:
        llm: With the recording's model and `logprobs_mode`.
        case: The recording.
        draws: The tokens were drawn at random, by another generator: only the scores of the others are compared.
    """
    [output] = llm.generate({"prompt_token_ids": case["prompt_token_ids"]}, params_of(case))
    completion, expected = output.outputs[0], case["outputs"][0]
    about = f"{case['name']} {case['params']}"
    if not draws:
        assert completion.token_ids == expected["token_ids"], about
        assert (completion.finish_reason, completion.stop_reason) == (
            expected["finish_reason"],
            expected["stop_reason"],
        ), about
    if "logprobs" in expected:
        assert completion.logprobs is not None
        for ours, theirs in zip(completion.logprobs, expected["logprobs"], strict=True):
            check_position(ours, theirs, about, is_whole=len(theirs) < case["params"]["logprobs"])
        if not draws:
            assert completion.cumulative_logprob is not None
            assert abs(completion.cumulative_logprob - expected["cumulative_logprob"]) < TOLERANCE, about
    if "prompt_logprobs" in case:
        assert output.prompt_logprobs is not None
        assert output.prompt_logprobs[0] is case["prompt_logprobs"][0] is None
        for ours_or_none, theirs in zip(output.prompt_logprobs[1:], case["prompt_logprobs"][1:], strict=True):
            assert ours_or_none is not None
            check_position(ours_or_none, theirs, about, is_whole=False)


def check_position(ours: LogprobsOnePosition, theirs: dict[str, list[float]], about: str, *, is_whole: bool) -> None:
    """Compare one position. If the recording is whole, it lists every token that was kept."""
    kept = {token_id: entry for token_id, entry in ours.items() if entry.logprob > -1e30}
    if is_whole:
        assert set(kept) == {int(token_id) for token_id in theirs}, about
    common = set(kept) & {int(token_id) for token_id in theirs}
    assert len(common) >= len(theirs) - 1, f"{about}: at most the least likely token may be another one, by rounding"
    for token_id in common:
        logprob, rank = theirs[str(token_id)]
        assert abs(kept[token_id].logprob - logprob) < TOLERANCE, (about, token_id)
        near = sum(abs(entry.logprob - logprob) < TOLERANCE for entry in kept.values())
        assert abs((kept[token_id].rank or 0) - rank) < near, (about, token_id)


def save_golden_llama(folder: Path) -> None:
    """Make the random Llama of the recordings again."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=49152,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=2048,
        rms_norm_eps=1e-6,
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=2,
        initializer_range=0.1,
    )
    config.rope_parameters = {"rope_type": "default", "rope_theta": 1e4}
    model = LlamaForCausalLM(config).float()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.copy_(1 + 0.1 * torch.randn_like(parameter))
    model.save_pretrained(folder)
