"""A model with a sliding window gives the same tokens however the engine cuts, caches and repeats its work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from minivllm import LLM, SamplingParams
from tests.models.checkpoints import VOCAB_SIZE, save_model

WINDOW = 6
PROMPTS = [
    {"prompt_token_ids": torch.randint(3, VOCAB_SIZE, (n,), generator=torch.Generator().manual_seed(n)).tolist()}
    for n in (5, 40, 23)
]
PARAMS = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True)
SMALL = {"max_model_len": 128, "num_gpu_blocks_override": 100, "block_size": 4, "skip_tokenizer_init": True}


@pytest.fixture(scope="module")
def mistral(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, PreTrainedModel]:
    folder = tmp_path_factory.mktemp("mistral")
    return folder, save_model("mistral", folder, sliding_window=WINDOW)


@torch.no_grad()
def expected(model: PreTrainedModel, token_ids: list[int]) -> list[int]:
    for _ in range(PARAMS.max_tokens or 0):
        token_ids = [*token_ids, int(model(torch.tensor([token_ids])).logits[0, -1].argmax())]
    return token_ids[-(PARAMS.max_tokens or 0) :]


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({}, id="together"),
        pytest.param({"max_num_batched_tokens": 7, "max_num_seqs": 3}, id="chunks"),
        pytest.param({"enable_prefix_caching": False}, id="no cache"),
        pytest.param({"num_gpu_blocks_override": 24, "scheduler_reserve_full_isl": False}, id="preempted"),
        pytest.param({"batch": "rows", "async_scheduling": True}, id="rows, async"),
    ],
)
def test_tokens_equal_the_reference_also_after_a_prefix_hit(
    mistral: tuple[Path, PreTrainedModel], settings: dict[str, Any]
) -> None:
    folder, reference = mistral
    llm = LLM(model=str(folder), **{**SMALL, **settings})
    wanted = [expected(reference, list(prompt["prompt_token_ids"])) for prompt in PROMPTS]
    for _ in range(2):
        outputs = llm.generate(PROMPTS, PARAMS)
        assert [output.outputs[0].token_ids for output in outputs] == wanted
    if settings.get("enable_prefix_caching", True) and "num_gpu_blocks_override" not in settings:
        assert outputs[1].num_cached_tokens == 36
