"""Whatever one calls it, the row that is meant comes first."""

from __future__ import annotations

import pytest

from minivllm.sourcemap.rows import Row, not_built, rows
from minivllm.sourcemap.search import search, suggestions

FIRST = {
    # concepts, in English, in Chinese, in part, misspelt
    "token budget": "token budget",
    "token bugdet": "token budget",
    "Token Budget?": "token budget",
    "preemtion": "preemption",
    "prefix cache": "prefix cache",
    "前缀缓存": "prefix cache",
    "调度": "scheduler",
    "块表": "block table",
    "batching": "continuous batching",
    "speculative decoding": "draft tokens",
    "GQA": "grouped-query heads",
    "RoPE": "rotary embedding",
    "hold back": "hold-back buffer",
    "where is the token budget": "token budget",
    # our symbols and files
    "Scheduler.schedule": "schedule one step",
    "schedule": "schedule one step",
    "minivllm.core.scheduler:Scheduler": "scheduler",
    "minivllm/core/scheduler.py": "scheduler",
    "core/scheduler.py": "scheduler",
    "BlockPool": "block pool",
    "slot_mapping": "slot mapping",
    "prepare_inputs": "prepare the inputs",
    "KVCacheManager.allocate_slots": "allocate slots",
    "allocate_slots()": "allocate slots",
    # vLLM's, old and new
    "vllm/v1/core/sched/scheduler.py::Scheduler.schedule": "schedule one step",
    "gpu_model_runner": "runner",
    "gpu_model_runner.py": "runner",
    "model_runner": "runner",
    "GPUModelRunner": "runner",
    "_prepare_inputs": "prepare the inputs",
    "_update_states": "update the batch",
    "_preempt_request": "preemption",
    "skipped_waiting": "skipped waiting queue",
    "deferred_waiting": "skipped waiting queue",
    "_handle_blocked_waiting_request": "promotion of a blocked request",
    "PromptLogprobsWorker": "prompt logprobs",
    "FreeKVCacheBlockQueue": "free queue",
    "RequestStatus": "request status",
    # what is not built
    "tensor parallel": "tensor parallel",
    "TP": "tensor parallel",
    "张量并行": "tensor parallel",
    "MLA": "MLA",
}


@pytest.mark.parametrize(("query", "concept"), FIRST.items(), ids=FIRST)
def test_the_row_that_is_meant_comes_first(query: str, concept: str) -> None:
    found = search(query)
    assert found
    assert found[0].concept == concept


@pytest.mark.parametrize("row", [*rows(), *not_built()], ids=lambda row: row.concept)
def test_every_row_is_found_by_each_of_its_names(row: Row) -> None:
    assert search(row.concept)[0] is row
    names = [row.chinese, *filter(None, (name.strip() for name in row.also.split(";")))]
    for name in names:
        assert row in search(name)[:8], name


def test_nothing_is_found_for_nonsense_and_the_nearest_names_are_told() -> None:
    for query in ("qqqxx", "zzz", "paint the fence", "!!!", ""):
        assert search(query) == []
    assert suggestions("schedulr one stepp")[0] == "schedule one step"
    assert suggestions("qqqxx")
