"""Two tiny models with random weights give vLLM's tokens, text and log probabilities.

MINIVLLM_TINY_MODELS names a folder with tiny-qwen3 and tiny-llama. Both are made by transformers after
`torch.manual_seed(0)`: vocabulary 49152, width 128, MLP 256, 4 layers, 4 heads of 32 with 2 KV heads, tied, rope theta
1e6 and 1e4, eps 1e-6, initializer_range 0.1, then every norm weight 1 + 0.1 * randn; SmolLM2's tokenizer beside them.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from minivllm import LLM, SamplingParams
from minivllm.models.loader import ModelLoader
from minivllm.models.model_zoo import find_model
from tests.models.forward import all_logits

GOLDEN: dict[str, Any] = json.loads((Path(__file__).parent.parent / "data" / "golden_tiny.json").read_text("utf-8"))
FOLDER = os.environ.get("MINIVLLM_TINY_MODELS")
# The first digits of each checkpoint's SHA-256: other weights would give other tokens.
DIGESTS = {"tiny-qwen3": "37a47e5179b5fb27", "tiny-llama": "78d3721fd75c3c87"}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(FOLDER is None, reason="set MINIVLLM_TINY_MODELS to a folder with tiny-qwen3 and tiny-llama"),
    pytest.mark.parametrize("name", list(DIGESTS)),
]


@pytest.fixture
def folder(name: str) -> Path:
    folder = Path(FOLDER or "") / name
    digest = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    assert digest.startswith(DIGESTS[name]), "these are other weights than those of the golden outputs"
    return folder


@pytest.mark.parametrize("settings", [{}, {"max_num_batched_tokens": 16, "max_num_seqs": 8}], ids=["whole", "chunks"])
def test_greedy_tokens_and_text_equal_vllms(name: str, folder: Path, settings: dict[str, Any]) -> None:
    llm = LLM(model=str(folder), max_model_len=1024, **settings)
    cases = [case for case in GOLDEN[name] if "logprobs" not in case]
    outputs = llm.generate([case["prompt"] for case in cases], SamplingParams(temperature=0.0, max_tokens=32))
    assert len(cases) == 24
    for case, output in zip(cases, outputs, strict=True):
        assert output.prompt_token_ids == case["prompt_token_ids"]
        assert output.outputs[0].token_ids == case["token_ids"]
        assert output.outputs[0].text == case["text"]
        assert output.outputs[0].finish_reason == case["finish_reason"]


def test_log_probabilities_equal_vllms(name: str, folder: Path) -> None:
    model = ModelLoader(find_model(str(folder))).load(torch.device("cpu"), torch.float32)
    cases = [case for case in GOLDEN[name] if "logprobs" in case]
    assert len(cases) == 3
    for case in cases:
        prompt, output = case["prompt_token_ids"], case["token_ids"]
        logprobs = all_logits(model, prompt + output)[len(prompt) - 1 :].log_softmax(dim=-1)  # (outputs + 1, vocab)
        for row, expected in zip(logprobs, case["logprobs"], strict=False):
            for token_id, (logprob, rank) in expected.items():
                assert row[int(token_id)].item() == pytest.approx(logprob, abs=2e-4)
                assert int((row > row[int(token_id)]).sum()) + 1 == rank
