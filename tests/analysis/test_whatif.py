"""Each setting, turned on a run where it matters: the consequence is known, and the sentence tells it."""

from __future__ import annotations

from typing import Any

import pytest

from minivllm.analysis.diff import Diff, diff_logs
from minivllm.analysis.whatif import effects
from minivllm.analysis.whatif_knobs import KNOBS, KnobError, old_values, parse_settings, with_settings
from minivllm.scenarios.replan import config_of, replan
from tests.analysis.logs import recorded


def asked(name: str, **settings: Any) -> tuple[Diff, str]:
    """What a setting changes in a scenario: the numbers, and all that is said."""
    log = recorded(name)
    before, after = replan(log, {}).log, replan(log, settings).log
    diff = diff_logs(before, after)
    return diff, "\n".join(effects(diff, before, after, old_values(config_of(log), settings), settings))


def test_twice_the_blocks_end_the_preemptions() -> None:
    diff, said = asked("kv-pressure", num_gpu_blocks=28)
    assert (diff.a.preemptions, diff.b.preemptions) == (1, 0)
    assert (diff.a.lost, diff.b.lost) == (14, 0)
    assert diff.b.iterations < diff.a.iterations
    assert diff.first is not None
    assert (diff.first.iteration, diff.first.field, diff.first.a, diff.first.b) == (7, "preempted", ["R2"], [])
    assert "num_gpu_blocks 14 → 28: at most 13 of 13 blocks were in use, now 18 of 27" in said
    assert "Iteration 7: R2 lost its blocks (1 block was needed, 0 free) as recorded, and got 1 token" in said
    assert "All 3 requests of both runs get the same tokens." in said


def test_a_budget_for_all_four_serves_r3_at_once() -> None:
    diff, said = asked("mixed-batch", max_num_batched_tokens=620)
    assert diff.a.requests["R3"].first_scheduled == 14
    assert diff.b.requests["R3"].first_scheduled == 13 == diff.b.requests["R3"].arrived
    assert (diff.a.fullest, diff.b.fullest) == (260, 620)
    assert "the token budget held somebody back in 11 iterations as recorded, in 2 with the change" in said
    assert "R3 1, 0 (iterations before its first tokens)" in said


def test_without_the_cache_nothing_is_found() -> None:
    diff, said = asked("prefix-warmup", enable_prefix_caching=False)
    assert (diff.a.hit, diff.b.hit) == (80, 0)
    assert diff.b.computed == diff.a.computed + 80
    assert "80 tokens came out of the cache as recorded, 0 with the change" in said
    assert "R1 got 9 tokens after a prefix hit of 40 as recorded, and got 49 tokens with the change" in said


def test_with_two_places_the_third_waits() -> None:
    diff, said = asked("continuous-batching", max_num_seqs=2)
    assert (diff.a.most_running, diff.b.most_running) == (3, 2)
    assert diff.b.requests["R2"].waited == 3
    assert "R2 got 10 tokens as recorded, and got nothing (2 of 2 places are taken" in said


def test_smaller_blocks_find_a_shorter_prefix() -> None:
    diff, said = asked("short-prefix", block_size=8)
    assert (diff.a.requests["R1"].hit, diff.b.requests["R1"].hit) == (0, 8)
    assert "prefix hits are whole blocks of 8, not 16: 16 tokens found as recorded, 24 now" in said


def test_a_chunk_limit_leaves_room_for_the_newcomer() -> None:
    diff, said = asked("long-prefill-interference", long_prefill_token_threshold=64)
    assert (diff.a.requests["R3"].waited, diff.b.requests["R3"].waited) == (1, 0)
    assert (diff.a.fullest, diff.b.fullest) == (512, 73)
    assert "the chunk limit held somebody back in 0 iterations as recorded, in 14 with the change" in said


def test_without_chunks_a_prompt_comes_whole() -> None:
    diff, said = asked("chunked", enable_chunked_prefill=False, max_num_batched_tokens=512)
    assert (diff.a.requests["R1"].first_token, diff.b.requests["R1"].first_token) == (4, 1)
    assert "a prompt that does not fit into what is left of the budget waits for a whole one" in said
    assert "change one at a time" in said


def test_first_come_first_served_ends_the_overtaking() -> None:
    diff, said = asked("priority", policy="fcfs")
    assert diff.a.admitted == ["R0", "R1", "R3", "R2"]
    assert diff.b.admitted == ["R0", "R1", "R2", "R3"]
    assert "after planning these wait in line: R3, R2 as recorded, and R2, R3 with the change" in said
    assert diff.b.preemptions == 0


def test_one_rule_takes_the_place_of_another() -> None:
    diff, said = asked("stuck-queue", scheduler_reserve_full_isl=False)
    assert diff.equal
    assert "held somebody back in 5 iterations as recorded, in 0 with the change" in said
    assert "Another rule holds them back in its place: too few free blocks in 5 iterations." in said
    assert said.endswith("Nothing changes: every iteration plans what it planned before.")


def test_a_watermark_keeps_the_last_one_out() -> None:
    diff, said = asked("thrash", watermark=0.2)
    assert (diff.a.preemptions, diff.b.preemptions) == (4, 1)
    assert diff.b.requests["R4"].waited == 10
    assert "2 of them kept as the watermark" in said


def test_planning_ahead_brings_tokens_one_iteration_later() -> None:
    diff, said = asked("hello", async_scheduling=True)
    assert diff.first is not None
    assert (diff.first.iteration, diff.first.field) == (0, "emitted")
    assert diff.b.requests["R0"].first_token == 1
    assert "Iteration 0 hands out tokens to R0 as recorded, and nobody with the change" in said


def test_planning_ahead_may_sample_in_vain() -> None:
    diff, said = asked("async-scheduling", async_scheduling=False)
    assert (diff.a.in_vain, diff.b.in_vain) == (1, 0)
    assert "1 token sampled in vain as recorded, 0 with the change" in said


def test_a_request_that_could_never_run_is_refused() -> None:
    diff, said = asked("kv-pressure", num_gpu_blocks=5)
    assert {entry.reason for entry in diff.b.requests.values()} == {"refused"}
    assert "R0 was taken as recorded, and was refused with the change." in said


def test_a_setting_as_it_was_changes_nothing() -> None:
    diff, said = asked("hello", max_num_seqs=4)
    assert diff.equal
    assert said.startswith("max_num_seqs was 4 already.")


def test_every_setting_has_a_test_of_its_own_here() -> None:
    import inspect
    import sys

    source = inspect.getsource(sys.modules[__name__])
    assert [name for name in KNOBS if f", {name}=" not in source] == []


# ---- reading them ----------------------------------------------------------------------------------------------------


def test_values_are_read_in_the_form_of_a_command_line() -> None:
    texts = ["max-num-seqs=3", "enable_prefix_caching=off", "watermark=0.25", "scheduling_policy=priority"]
    assert parse_settings(texts) == {
        "max_num_seqs": 3,
        "enable_prefix_caching": False,
        "watermark": 0.25,
        "policy": "priority",
    }
    assert parse_settings(["num_gpu_blocks_override=1_000"]) == {"num_gpu_blocks": 1000}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("max_num_seq=3", "did you mean max_num_seqs"),
        ("colour=red", "there are: max_num_batched_tokens, max_num_seqs, num_gpu_blocks"),
        ("max_num_seqs", "give it a value: max_num_seqs=…, a whole number from 1"),
        ("max_num_seqs=", "give it a value"),
        ("max_num_seqs=99999999999", "is a whole number from 1, at most 2147483647; it cannot be '99999999999'"),
        ("max_num_seqs=0", "max_num_seqs is a whole number from 1; it cannot be '0'"),
        ("max_num_seqs=many", "it cannot be 'many'"),
        ("max_num_seqs=2.5", "it cannot be '2.5'"),
        ("num_gpu_blocks=1", "a whole number, 2 to 10000000"),
        ("num_gpu_blocks=99999999999", "a whole number, 2 to 10000000"),
        ("watermark=1", "0 or more, below 1"),
        ("watermark=nan", "0 or more, below 1"),
        ("policy=lifo", "policy is fcfs or priority"),
        ("enable_prefix_caching=maybe", "true or false"),
    ],
)
def test_what_cannot_be_is_told_with_what_could(text: str, message: str) -> None:
    with pytest.raises(KnobError, match=message):
        parse_settings([text])


def test_a_setting_is_given_once() -> None:
    with pytest.raises(KnobError, match="given twice"):
        parse_settings(["max_num_seqs=2", "max-num-seqs=3"])


def test_settings_that_contradict_each_other_are_refused() -> None:
    config = config_of(recorded("hello"))
    with pytest.raises(KnobError, match="must be at least max_num_seqs"):
        with_settings(config, {"max_num_batched_tokens": 2})
    with pytest.raises(KnobError, match="without chunked prefill"):
        with_settings(config, {"max_num_batched_tokens": 64, "enable_chunked_prefill": False})
