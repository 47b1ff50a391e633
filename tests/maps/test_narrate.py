"""Each thing that can happen in an iteration has its sentence."""

from __future__ import annotations

import re
from string import Formatter
from typing import Any

import pytest

from minivllm.maps.narrate import narrate
from minivllm.maps.plan import plan_map
from minivllm.maps.wording import LANGUAGES
from minivllm.trace.reader import read_log
from tests.trace.workloads import mixed_workload, simulated_log

REQUESTS: dict[str, dict[str, Any]] = {i: {"request": i, "num_prompt_tokens": 10} for i in ("R0", "R1", "R2")}
REQUESTS["R3"] = {"request": "R3", "num_prompt_tokens": 10, "reached_model_length": True}
REQUESTS["0_R9"] = {"request": "0_R9", "num_prompt_tokens": 10, "parent": "R9", "index": 0}

IDLE = "Nobody had anything to do."
ENTERED = "R0 entered: 36 tokens computed now."
HIT = "R0 entered: 16 of its 36 prompt tokens were in the prefix cache, 20 tokens computed now."
NOTHING = "R0 found nothing in the prefix cache, which knows whole blocks of 16 tokens: "


def entry(request: str, kind: str, before: int, now: int, known: int, **more: int) -> dict[str, Any]:
    numbers = {"num_computed_before": before, "num_tokens": now, "num_tokens_known": known}
    return {"request": request, "kind": kind, **numbers, "num_cached": 0, "num_drafts": 0, **more}


NEW = entry("R0", "new", 0, 36, 36)
LISTS = (
    *("arrived", "refused", "aborted", "aborts", "scheduled", "not_scheduled", "told_finished", "cut", "preemptions"),
    *("finished", "lookups", "shared", "forgotten", "gave_back", "moved", "texts", "thrown_away", "was_unfinished"),
)


def sentences(lang: str = "en", **facts: Any) -> list[str]:
    nothing: dict[str, Any] = {name: [] for name in LISTS}
    nothing |= {name: {} for name in ("sampled", "token_texts", "stop_texts")}
    nothing |= {name: False for name in ("idle", "cache_reset", "is_late")}
    return narrate({**nothing, "block_size": 16, **facts}, REQUESTS, lang)


def text(
    request: str, delta: str, held: str, finish_reason: str | None = None, stop: str | None = None
) -> dict[str, Any]:
    return {"request": request, "delta": delta, "held": held, "finish_reason": finish_reason, "stop_reason": stop}


def found(hit: int, why: str, asked: int = 32, **more: Any) -> dict[str, Any]:
    missing = {"index": hit // 16, "why": why, **more}
    return {"request": "R0", "asked": asked, "hit": hit, "first_missing": missing}


def gave_back(request: str, num_blocks: int, num_cached: int = 0, num_shared: int = 0) -> dict[str, Any]:
    return {"request": request, "num_blocks": num_blocks, "num_cached": num_cached, "num_shared": num_shared}


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
    "some drafts were right": (
        {"scheduled": [entry("R0", "running", 12, 4, 13, num_drafts=3)], "sampled": {"R0": [7, 8]}},
        ["R0 decoded one token and 3 drafts: 13 known, 12 computed before; it sampled 7 8: 1 of 3 drafts accepted."],
    ),
    "async": (
        {"scheduled": [entry("R0", "running", 13, 1, 13)]},
        [
            "R0 decoded one token: 13 known, 13 computed before, its newest token is not known here yet, a placeholder "
            "stands for it."
        ],
    ),
    "async, a token that comes later": (
        {"scheduled": [entry("R0", "running", 12, 1, 13)], "sampled": {"R0": [7]}, "is_late": True},
        ["R0 decoded one token: 13 known, 12 computed before; its token 7 is known in the next iteration."],
    ),
    "a token in vain": (
        {"scheduled": [entry("R0", "running", 12, 1, 13)], "sampled": {"R0": [7]}, "thrown_away": ["R0"]},
        [
            "R0 decoded one token: 13 known, 12 computed before; its token is thrown away, since R0 ended before it "
            "came."
        ],
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
    "resumed without a hit": (
        {"scheduled": [entry("R0", "resumed", 0, 13, 13)]},
        ["R0 came back: 13 tokens computed now."],
    ),
    "resumed in part": (
        {
            "scheduled": [entry("R0", "resumed", 0, 8, 13)],
            "cut": [{"request": "R0", "reason": "max_model_len"}],
        },
        ["R0 came back: 8 tokens computed now of 13 (up to the model's length), 5 to go."],
    ),
    "cut by what is on its way": (
        {
            "scheduled": [entry("R0", "running", 4, 3, 10)],
            "cut": [{"request": "R0", "reason": "output_in_flight"}],
        },
        ["R0 went on: 3 tokens computed now, 4 before (the rest is still on its way), 3 to go."],
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
    "arrived": ({"arrived": ["R0"], "idle": True}, ["R0 arrived with 10 tokens.", IDLE]),
    "refused": (
        {"refused": [["R2", "its prompt has 128 tokens."]], "idle": True},
        ["R2 was refused: its prompt has 128 tokens.", IDLE],
    ),
    "aborted": (
        {"aborts": [{"request": "R0", "phase": "before"}], "told_finished": ["R0"]},
        [
            "R0's caller left before this iteration was planned.",
            "Nothing is left to compute; the worker is told that R0 finished.",
        ],
    ),
    "aborted in flight": (
        {"aborts": [{"request": "R0", "phase": "mid"}], "gave_back": [gave_back("R0", 2)]},
        [
            "R0's caller left while the model was running: the token made for it is thrown away; its 2 blocks are free "
            "again."
        ],
    ),
    "ended by the frontend": (
        {"aborts": [{"request": "R0", "phase": "frontend"}]},
        ["R0 was ended by the frontend."],
    ),
    "stop string": (
        {"aborts": [{"request": "R0", "phase": "frontend"}], "texts": [text("R0", " a", "", "stop", "the end")]},
        ["R0's text has the stop string “the end”: the frontend cut it there and told the core to end the request."],
    ),
    "finished by a stop token": (
        {"finished": [{"request": "R0", "reason": "stop", "stop_reason": 4}], "stop_texts": {"R0": "."}},
        ["R0 finished: it sampled the stop token 4 (“.”)."],
    ),
    "finished by the end of the sequence": (
        {"finished": [{"request": "R0", "reason": "stop", "stop_reason": None}]},
        ["R0 finished: it sampled the end-of-sequence token."],
    ),
    "finished by its limit": (
        {
            "finished": [{"request": "R0", "reason": "length", "stop_reason": None, "num_output_tokens": 1}],
            "gave_back": [gave_back("R0", 3, num_cached=2)],
        },
        [
            "R0 finished: it has its 1 token (max_tokens); its 3 blocks are free again, 2 still known to the prefix "
            "cache."
        ],
    ),
    "finished by the model's length": (
        {
            "finished": [{"request": "R3", "reason": "length", "stop_reason": None, "num_output_tokens": 9}],
            "gave_back": [gave_back("R3", 3, num_cached=2, num_shared=1)],
        },
        ["R3 finished: it is as long as the model allows; it gave back 3 blocks, 1 of them still used by others."],
    ),
    "finished by repetition": (
        {"finished": [{"request": "R0", "reason": "repetition", "stop_reason": None}]},
        ["R0 finished: its output only repeats itself."],
    ),
    "finished for another reason": (
        {"finished": [{"request": "R0", "reason": "error", "stop_reason": "no grammar"}]},
        ["R0 finished: error (no grammar)."],
    ),
    "an answer of several": (
        {"arrived": ["0_R9"], "idle": True},
        ["0_R9 arrived with 10 tokens: it is answer 1 of R9.", IDLE],
    ),
    "prefix: evicted": (
        {"scheduled": [entry("R0", "new", 16, 20, 36, num_cached=16)], "lookups": [found(16, "evicted")]},
        [HIT, "R0's next block (from token 16) was not found: it was there once, and its place was given to others."],
    ),
    "prefix: differs": (
        {"scheduled": [NEW], "lookups": [found(0, "differs", token=9, other="R1")]},
        [ENTERED, f"{NOTHING}R1 begins alike, but differs at token 9."],
    ),
    "prefix: other key": (
        {"scheduled": [NEW], "lookups": [found(0, "differs", other="R1")]},
        [ENTERED, f"{NOTHING}R1 has the same tokens under another salt or adapter."],
    ),
    "prefix: not asked": (
        {"scheduled": [NEW], "lookups": [found(0, "not_asked")]},
        [ENTERED, f"{NOTHING}it asked to be computed anew."],
    ),
    "prefix: the first of its kind": ({"scheduled": [NEW], "lookups": [found(0, "never_computed")]}, [ENTERED]),
    "prefix: only the first mark in common": (
        {"scheduled": [NEW], "lookups": [found(0, "differs", token=1, other="R1")]},
        [ENTERED],
    ),
    "prefix: new content": (
        {"scheduled": [entry("R0", "new", 16, 20, 36, num_cached=16)], "lookups": [found(16, "never_computed")]},
        [HIT, "R0's next block (from token 16) was not found: nobody has computed it before."],
    ),
    "prefix: no whole block": (
        {"scheduled": [entry("R0", "new", 16, 20, 36, num_cached=16)], "lookups": [found(16, "not_full", 16)]},
        [HIT, "R0's next block (from token 16) was not found: the rest fills no block."],
    ),
    "prefix: the last token": (
        {"scheduled": [entry("R0", "new", 16, 20, 36, num_cached=16)], "lookups": [found(16, "last_token", 16)]},
        [
            HIT,
            "R0's next block (from token 16) was not found: the last token is always computed, for its logits, and so "
            "is its block.",
        ],
    ),
    "prefix: off": ({"scheduled": [NEW], "lookups": [found(0, "caching_off", 0)]}, [ENTERED]),
    "shared": (
        {"scheduled": [NEW], "shared": [{"request": "R0", "blocks": [3, 4, 7], "ref_cnt": [2, 3, 1]}]},
        [ENTERED, "R0 uses 2 blocks #3–#4 together with others."],
    ),
    "evicted": (
        {"scheduled": [NEW], "forgotten": [{"request": "R0", "blocks": [3, 9], "why": "reused"}]},
        [ENTERED, "R0 got #3, #9: what the prefix cache had there is gone."],
    ),
    "taken back": (
        {"scheduled": [NEW], "forgotten": [{"request": None, "blocks": [3], "why": "taken_back"}]},
        [ENTERED, "#3 will not be computed after all: the prefix cache forgets what it was to hold."],
    ),
    "reset": ({"cache_reset": True, "idle": True}, ["The prefix cache was emptied.", IDLE]),
    "moved": ({"moved": [["R2", 2, 0]]}, ["The worker moved R2 from row 2 to row 0."]),
    "held for a stop string": (
        {"texts": [text("R0", "ab", "the\n")]},
        ["R0's last 4 characters are held back, “the\\n”: a stop string may begin there."],
    ),
    "held for a character": (
        {"texts": [text("R0", "", "\ufffd")]},
        ["R0's text is held back: its last tokens are a part of a character."],
    ),
    "released": (
        {"texts": [text("R0", "山", "")], "was_unfinished": ["R0"]},
        ["R0's character is whole: its caller gets “山”."],
    ),
    "nothing to say of plain text": ({"texts": [text("R0", " dog", "")]}, []),
}


@pytest.mark.parametrize("name", TABLE)
def test_what_happened_is_told(name: str) -> None:
    facts, told = TABLE[name]
    assert sentences(**facts) == told


CHINESE = {
    "decode": ['R0 解码一步：已知 13 个 token，此前已计算 12 个；采样得到 " dog"。'],
    "preempted": ["R1 被抢占，为 R0 腾出 KV 块：1 block was needed, 0 free；已计算的 24 个 token 作废。"],
    "some drafts were right": [
        "R0 解码一步并验证 3 个草稿 token：已知 13 个 token，此前已计算 12 个；"
        "采样得到 7 8：3 个草稿 token 中接受 1 个。"
    ],
    "held for a character": ["R0 的文本暂不发送：最后几个 token 还拼不成一个完整的字符。"],
    "moved": ["worker 把 R2 从第 2 行移到第 0 行。"],
}


@pytest.mark.parametrize("name", CHINESE)
def test_it_is_told_in_chinese(name: str) -> None:
    assert sentences("zh", **TABLE[name][0]) == CHINESE[name]


def test_every_sentence_exists_in_both_languages_with_the_same_values() -> None:
    english, chinese = LANGUAGES["en"], LANGUAGES["zh"]
    assert list(english) == list(chinese)
    for key, template in english.items():
        values = [{name for _, name, _, _ in Formatter().parse(text) if name} for text in (template, chinese[key])]
        assert values[0] == values[1], key
        assert (
            re.search("[\u3000-\u9fff\uff00-\uffef]", chinese[key])
            or not re.search("[a-z]{2}", template)
            or not chinese[key]
        )


def test_every_sentence_is_told_by_some_case_of_the_table() -> None:
    told: set[str] = set()

    class Noting(dict[str, str]):
        def __getitem__(self, key: str) -> str:
            told.add(key)
            return super().__getitem__(key)

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(LANGUAGES, "en", Noting(LANGUAGES["en"]))
        for facts, _ in TABLE.values():
            sentences(**facts)
    start = list(LANGUAGES["en"]).index("token_budget_spent")
    not_told = set(list(LANGUAGES["en"])[:start]) - told
    # test_reasons.py tells every reason of the scheduler, and who stands behind.
    assert not_told == {"behind", "alike"}


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
    assert "caller left before this iteration" in story
    assert "caller left while the model was running" in story
    assert "a stop string may begin" not in story
    assert "Nobody had anything to do." in story
