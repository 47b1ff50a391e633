"""Each thing that can happen in an iteration has its sentence."""

from __future__ import annotations

from typing import Any

import pytest

from minivllm.maps.narrate import narrate
from minivllm.maps.plan import plan_map
from minivllm.trace.reader import read_log
from tests.trace.workloads import mixed_workload, simulated_log

REQUESTS = {i: {"request": i, "num_prompt_tokens": 10} for i in ("R0", "R1", "R2")}


def entry(request: str, kind: str, before: int, now: int, known: int, **more: int) -> dict[str, Any]:
    numbers = {"num_computed_before": before, "num_tokens": now, "num_tokens_known": known}
    return {"request": request, "kind": kind, **numbers, "num_cached": 0, "num_drafts": 0, **more}


def sentences(**facts: Any) -> list[str]:
    lists = ("arrived", "refused", "aborted", "scheduled", "not_scheduled", "told_finished", "cut", "preemptions")
    nothing: dict[str, Any] = {name: [] for name in (*lists, "finished")}
    return narrate({**nothing, "idle": False, "sampled": {}, "token_texts": {}, **facts}, REQUESTS)


TABLE: dict[str, tuple[dict[str, Any], list[str]]] = {
    "decode": (
        {"scheduled": [entry("R0", "running", 12, 1, 13)], "sampled": {"R0": [7]}, "token_texts": {"R0": [" dog"]}},
        ['R0 decoded one token: 13 known, 12 computed before; it sampled " dog".'],
    ),
    "token ids where there is no text": (
        {"scheduled": [entry("R0", "running", 12, 1, 13)], "sampled": {"R0": [7, 8]}},
        ["R0 decoded one token: 13 known, 12 computed before; it sampled 7 8."],
    ),
    "drafts": (
        {"scheduled": [entry("R0", "running", 12, 4, 13, num_drafts=3)]},
        ["R0 decoded one token and 3 drafts: 13 known, 12 computed before."],
    ),
    "async": (
        {"scheduled": [entry("R0", "running", 13, 1, 13)]},
        ["R0 decoded one token: 13 known, 13 computed before, the newest token still on its way."],
    ),
    "whole prompt": ({"scheduled": [entry("R0", "new", 0, 10, 10)]}, ["R0 entered: 10 tokens computed now."]),
    "first chunk": (
        {
            "scheduled": [entry("R0", "new", 0, 4, 10)],
            "cut": [{"request": "R0", "reason": "long_prefill_threshold"}],
        },
        ["R0 entered: 4 tokens computed now of 10 (its chunk limit), 6 to go."],
    ),
    "next chunk": (
        {"scheduled": [entry("R0", "running", 4, 3, 10)], "cut": [{"request": "R0", "reason": "token_budget"}]},
        ["R0 went on: 3 tokens computed now, 4 before (what the budget had left), 3 to go."],
    ),
    "hit": (
        {"scheduled": [entry("R0", "new", 8, 2, 10, num_cached=8)]},
        ["R0 entered: 8 of its 10 prompt tokens were in the prefix cache, 2 tokens computed now."],
    ),
    "resumed": (
        {"scheduled": [entry("R0", "resumed", 8, 5, 13, num_cached=8)]},
        ["R0 came back: 8 of its 13 tokens were in the prefix cache, 5 tokens computed now."],
    ),
    "preempted": (
        {
            "preemptions": [["R1", 24, "R0"]],
            "not_scheduled": [{"request": "R1", "detail": "1 block was needed, 0 free"}],
        },
        ["R1 was preempted for R0: 1 block was needed, 0 free; 24 computed tokens are lost."],
    ),
    "preempted for itself": (
        {"preemptions": [["R1", 24, "R1"]]},
        ["R1 was preempted for itself: blocks ran out; 24 computed tokens are lost."],
    ),
    "waits": (
        {"not_scheduled": [{"request": "R2", "detail": "the token budget is spent (260 of 260)"}]},
        ["R2 waits: the token budget is spent (260 of 260)."],
    ),
    "arrived": ({"arrived": ["R0"], "idle": True}, ["R0 arrived with 10 tokens.", "Nobody had anything to do."]),
    "refused": (
        {"refused": [["R2", "its prompt has 128 tokens."]], "idle": True},
        ["R2 was refused: its prompt has 128 tokens.", "Nobody had anything to do."],
    ),
    "aborted": (
        {"aborted": ["R0"], "told_finished": ["R0"]},
        [
            "R0 was aborted by its caller.",
            "Nothing is left to compute; the worker is told that R0 finished.",
        ],
    ),
    "finished": (
        {"finished": [{"request": "R0", "reason": "stop", "stop_reason": 4}]},
        ["R0 finished: stop (4)."],
    ),
    "finished without a stop token": (
        {"finished": [{"request": "R0", "reason": "length", "stop_reason": None}]},
        ["R0 finished: length."],
    ),
}


@pytest.mark.parametrize("name", TABLE)
def test_what_happened_is_told(name: str) -> None:
    facts, told = TABLE[name]
    assert sentences(**facts) == told


@pytest.mark.parametrize("is_async", [False, True])
def test_everything_in_a_run_is_told(is_async: bool) -> None:
    plan = plan_map(read_log(simulated_log(mixed_workload(async_scheduling=is_async))))
    story = "\n".join(sentence for entry in plan["iterations"] for sentence in entry["narration"])
    for words in (
        "arrived with",
        "entered:",
        "decoded one token",
        "was preempted",
        "came back",
        "waits:",
        "was refused",
    ):
        assert words in story
    assert "aborted by its caller" in story
    assert "Nobody had anything to do." in story
