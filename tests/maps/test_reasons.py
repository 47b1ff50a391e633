"""Every decision of the scheduler can be said in words, with its numbers."""

from __future__ import annotations

import re

import pytest

from minivllm.core.decisions import Reason
from minivllm.maps.reasons import behind, detail
from minivllm.trace.reader import read_log
from tests.trace.workloads import mixed_workload, simulated_log

WORDS = {
    Reason.TOKEN_BUDGET: ({"budget": 260, "left": 0}, "the token budget is spent (260 of 260)"),
    Reason.MAX_NUM_SEQS: ({"running": 4, "max_num_seqs": 4}, "4 of 4 places are taken (max_num_seqs)"),
    Reason.LONG_PREFILL_THRESHOLD: (
        {"limit": 256, "asked": 2000},
        "its chunk limit is 256 tokens a step, and it owed 2000",
    ),
    Reason.CHUNKED_PREFILL_OFF: (
        {"asked": 300, "left": 256},
        "chunked prefill is off: it needs 300 tokens at once, 256 left",
    ),
    Reason.LORA_LIMIT: ({"loras": 2, "max_loras": 2}, "2 of 2 adapters are in this step already"),
    Reason.MAX_MODEL_LEN: ({"limit": 64}, "the model's length (64) leaves it no position to compute"),
    Reason.NO_FREE_BLOCKS: ({"asked": 4, "free": 2, "watermark": 0}, "needs 4 blocks, 2 free"),
    Reason.FULL_SEQUENCE_DOES_NOT_FIT: (
        {"asked": 9, "free": 4, "watermark": 1},
        "its whole sequence must fit: it needs 9 blocks, 4 free, 1 of them kept as the watermark",
    ),
    Reason.PREEMPTED: ({"asked": 1, "free": 0}, "1 block was needed, 0 free"),
    Reason.PREEMPTED_THIS_STEP: ({"preempted": 2}, "nobody enters in a step that preempted (2)"),
    Reason.OUTPUT_IN_FLIGHT: ({}, "its last tokens are still on their way (async scheduling)"),
    Reason.STALE_OUTPUT_IN_FLIGHT: (
        {"in_flight": 1},
        "output from before its preemption is still on its way (1 token)",
    ),
    Reason.WAITING_FOR_GRAMMAR: ({}, "its grammar is still being compiled"),
    Reason.WAITING_FOR_REMOTE_KVS: ({}, "its KV is still being loaded"),
    Reason.WAITING_FOR_STREAMING_REQ: ({}, "its next input has not come yet"),
    Reason.PAUSED_NEW: ({}, "the engine is paused for new requests"),
    Reason.PAUSED_ALL: ({}, "the engine is paused"),
    Reason.QUEUE_EMPTY: ({}, "nobody is waiting"),
    Reason.ALL_WAITING_BLOCKED: ({}, "everyone who waits is waiting for something else"),
}


@pytest.mark.parametrize("reason", list(Reason))
def test_every_reason_has_words(reason: Reason) -> None:
    numbers, words = WORDS[reason]
    assert detail(str(reason), numbers) == words


CHINESE = {
    Reason.TOKEN_BUDGET: "token 预算已用完（260/260）",
    Reason.NO_FREE_BLOCKS: "需要 4 个 KV 块，空闲 2 个",
    Reason.FULL_SEQUENCE_DOES_NOT_FIT: "整个序列必须放得下，需要 9 个 KV 块，空闲 4 个，其中 1 个作为水位线保留",
    Reason.MAX_NUM_SEQS: "运行名额已满（4/4，max_num_seqs）",
}


@pytest.mark.parametrize("reason", list(Reason))
def test_every_reason_has_words_in_chinese(reason: Reason) -> None:
    numbers, english = WORDS[reason]
    words = detail(str(reason), numbers, "zh")
    assert words == CHINESE.get(reason, words)
    assert words != english
    assert re.search("[\u4e00-\u9fff]", words)
    assert [n for n in re.findall(r"\d+", english) if n not in re.findall(r"\d+", words)] == [], "the same numbers"


def test_who_stands_behind_the_stop_is_told() -> None:
    assert behind("R1") == "behind R1, where the loop stopped"
    assert behind("R1", "zh") == "排在 R1 之后，而本轮调度到它为止"


def test_a_budget_that_cuts_is_told_with_what_was_owed() -> None:
    numbers = {"asked": 310, "granted": 3, "limit": 3}
    assert detail("token_budget", numbers) == "the token budget had 3 tokens left, and it owed 310"


def test_blocks_promised_to_others_are_told() -> None:
    numbers = {"asked": 4, "free": 5, "watermark": 0, "reserved": 3}
    assert detail("no_free_blocks", numbers) == "needs 4 blocks, 5 free, 3 of them promised to others"


@pytest.mark.parametrize("is_async", [False, True])
def test_the_words_find_their_numbers_in_what_the_scheduler_records(is_async: bool) -> None:
    log = read_log(simulated_log(mixed_workload(async_scheduling=is_async)))
    said = set()
    for event in log.events:
        if event.kind == "schedule":
            decisions = [*event.data["not_scheduled"], *event.data["cut"], event.data["stop"]]
            said |= {(d["reason"], detail(d["reason"], d["numbers"])) for d in decisions if d}
    assert {"token_budget", "preempted", "queue_empty"} <= {reason for reason, _ in said}
