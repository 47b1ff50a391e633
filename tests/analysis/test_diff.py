"""Where two runs part: equal runs do not, and one changed number is found where it stands."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from minivllm.analysis.answer import CannotKnowError
from minivllm.analysis.diff import diff_logs, narrowed
from minivllm.analysis.diff_metric import METRICS, compare_metric
from minivllm.analysis.diff_numbers import run_numbers
from minivllm.analysis.diff_said import Sides, logits_sentences, metric_sentences
from minivllm.analysis.diff_tokens import first_logits, logits_differences, token_differences
from minivllm.analysis.diff_words import consequences
from minivllm.scenarios.registry import all_scenarios, get_scenario
from minivllm.scenarios.replan import replan
from minivllm.scenarios.run import run_scenario
from minivllm.trace.events import Event
from minivllm.trace.reader import Log
from tests.analysis.logs import changed, event_of, recorded
from tests.invariants.mutations import mutate

Change = Callable[[list[Event]], None]


def said(a: Log, b: Log) -> str:
    return "\n".join(consequences(diff_logs(a, b), a, b, Sides()))


# ---- equal -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [scenario.name for scenario in all_scenarios()])
def test_a_run_is_equal_to_itself(name: str) -> None:
    diff = diff_logs(recorded(name), recorded(name))
    assert diff.equal
    assert diff.settings == []
    assert diff.a == diff.b


def test_clocks_processes_and_levels_are_no_difference(tiny_model: Path) -> None:
    settings = {"model": str(tiny_model)}
    runs = [
        run_scenario(get_scenario("hello"), settings, logical=True).log,
        run_scenario(get_scenario("hello"), settings, level="function").log,
        run_scenario(get_scenario("hello"), settings, mp=True).log,
    ]
    for run in runs[1:]:
        assert diff_logs(runs[0], run).first is None


def test_how_the_worker_keeps_its_batch_changes_no_decision(tiny_model: Path) -> None:
    slots, rows = (
        run_scenario(get_scenario("condense"), {"model": str(tiny_model), "batch": batch}).log
        for batch in ("slots", "rows")
    )
    diff = diff_logs(slots, rows)
    assert [(s.name, s.a, s.b) for s in diff.settings] == [("batch", "slots", "rows")]
    assert diff.equal


# ---- one change ------------------------------------------------------------------------------------------------------


def lose_tokens(events: list[Event]) -> None:
    event_of(events, "schedule", 3).data["scheduled"][0][1] += 1


def preempt(events: list[Event]) -> None:
    event_of(events, "schedule", 9).data["preempted"].append("R1")


def other_block(events: list[Event]) -> None:
    event = next(e for e in events if e.kind == "kv.allocated" and e.step > 3)
    event.data["blocks"][0] += 1


def other_slot(events: list[Event]) -> None:
    event_of(events, "prepare_inputs", 5).data["slot_mapping"][0] += 1


def other_token(events: list[Event]) -> None:
    event_of(events, "update", 4).data["emitted"]["R1"] = [1]


def other_prompt(events: list[Event]) -> None:
    next(e for e in events if e.request == "R2" and e.kind == "request.arrived").data["prompt_token_ids"][3] = 1


def other_text(events: list[Event]) -> None:
    event_of(events, "output.text", 6).data["held"] = "x"


def fewer_free_blocks(events: list[Event]) -> None:
    event_of(events, "step.end", 8).data["free_blocks"] -= 1


def later(events: list[Event]) -> None:
    next(e for e in events if e.request == "R2" and e.kind == "request.arrived").step = 1


def shorter(events: list[Event]) -> None:
    events[:] = [e for e in events if e.step < 15]


@pytest.mark.parametrize(
    ("change", "iteration", "field"),
    [
        (lose_tokens, 3, "scheduled"),
        (preempt, 9, "preempted"),
        (other_block, 5, "kv.allocated"),
        (other_slot, 5, "prepare_inputs"),
        (other_token, 4, "emitted"),
        (other_prompt, 0, "prompt_token_ids"),
        (other_text, 6, "output.text"),
        (fewer_free_blocks, 8, "step.end.free_blocks"),
        (later, 0, "arrived"),
        (shorter, 15, "iteration"),
    ],
)
def test_one_change_is_found_where_it_stands(change: Change, iteration: int, field: str) -> None:
    log = recorded("kv-pressure")
    for pair in ((log, changed(log, change)), (changed(log, change), log)):
        first = diff_logs(*pair).first
        assert first is not None
        assert first.field == field
        assert first.iteration == iteration
        assert first.a != first.b


def test_random_slips_in_a_log_are_differences() -> None:
    """Whatever a broken engine would write differently, but for the order inside an iteration."""
    logs = [recorded(name) for name in ("mixed-batch-drafts", "kv-pressure", "async-scheduling", "stop-strings")]
    for seed in range(80):
        log = logs[seed % len(logs)]
        slip = mutate(log, random.Random(seed))
        if slip is not None and not slip[1].startswith("a batch is prepared before its plan"):
            diff = diff_logs(log, slip[0])
            assert not diff.equal, slip[1]
            assert consequences(diff, log, slip[0], Sides()), slip[1]


def test_an_iteration_in_which_a_log_was_cut_off_does_not_count() -> None:
    log = recorded("kv-pressure")
    ends = next(e.seq for e in log.events if e.step == 6 and e.kind == "update")
    cut = Log(log.header, log.events[:ends], truncated=True)
    assert diff_logs(cut, replan(cut, {}).log).equal
    first = diff_logs(log, cut).first
    assert first is not None
    assert first.as_dict() == {"iteration": 6, "field": "iteration", "a": "runs", "b": "has ended"}
    assert "Iteration 6 is there only in A." in said(log, cut)


def test_plans_alone_do_not_ask_which_tokens_they_were() -> None:
    log = recorded("kv-pressure")
    for change in (other_token, other_prompt, other_slot, other_text):
        assert diff_logs(log, changed(log, change), tokens=False).equal
    assert not diff_logs(log, changed(log, lose_tokens), tokens=False).equal


def test_tokens_alone_do_not_ask_when_they_came() -> None:
    log = recorded("hello")
    planned_ahead = replan(log, {"async_scheduling": True}).log
    assert not diff_logs(log, planned_ahead).equal
    assert diff_logs(log, planned_ahead, plans=False).equal
    first = diff_logs(recorded("kv-pressure"), changed(recorded("kv-pressure"), other_token), plans=False).first
    assert first is not None
    assert first.as_dict() | {"a": 0} == {
        "iteration": 4,
        "field": "tokens",
        "a": 0,
        "b": 1,
        "request": "R1",
        "position": 4,
        "iteration_b": 4,
    }


def test_where_settings_differ_only_decisions_count() -> None:
    log = recorded("hello")
    roomy = replan(log, {"num_gpu_blocks": 50}).log
    diff = diff_logs(log, roomy)
    assert [s.name for s in diff.settings] == ["model", "num_gpu_blocks"]
    assert diff.equal, "more free blocks are the setting itself, not what it did"


def test_where_settings_differ_every_decision_still_counts() -> None:
    log = recorded("mixed-batch-drafts")
    config = copy.deepcopy(log.header.config)
    config["scheduler_config"]["max_num_seqs"] += 1
    header = msgspec.structs.replace(log.header, config=config)
    plan = event_of(log.events, "schedule", 13).data
    assert plan["spec_tokens"]
    for name in ("scheduled", "new", "num_computed_before", "spec_tokens", "running_scheduled"):

        def empty(events: list[Event], name: str = name) -> None:
            data = event_of(events, "schedule", 13).data
            data[name] = type(data[name])()

        first = diff_logs(log, Log(header, changed(log, empty).events)).first
        assert first is not None
        assert (first.iteration, first.field) == (13, name)


def test_a_long_list_is_shown_from_where_it_differs() -> None:
    a, b = list(range(30)), [*range(20), *range(21, 31)]
    assert narrowed(a, b)[0] == {"from": 20, "items": list(range(20, 28))}
    assert narrowed({"x": 1, "y": 2}, {"x": 1, "y": 3, "z": 4}) == ({"y": 2}, {"y": 3, "z": 4})


# ---- in words --------------------------------------------------------------------------------------------------------


def test_the_first_sentences_name_the_rule_of_each_side() -> None:
    a = recorded("mixed-batch")
    b = replan(a, {"max_num_batched_tokens": 620}).log
    text = said(a, b)
    assert "Iteration 0: R0 got nothing (the token budget is spent (260 of 260)) in A, and got 108 tokens" in text
    assert "R3 ends in iteration 20 in A, 15 in B" in text


def test_other_tokens_are_told_with_both_texts() -> None:
    log = recorded("kv-pressure")

    def say_it(events: list[Event]) -> None:
        other_token(events)
        texts = [e for e in events if e.kind == "output.text" and e.request == "R1"]
        texts[4].data["tokens"] = [[1, " zebra"]]

    other = changed(log, say_it)
    [difference] = token_differences(run_numbers(log), run_numbers(other))
    assert (difference.request, difference.position, difference.b) == ("R1", 4, 1)
    assert difference.text_b is not None
    assert " zebra" in difference.text_b
    text = said(log, other)
    assert "R1 says something else from its output token 4 on" in text
    assert "zebra" in text
    assert "2 requests get the same tokens." in text


def test_other_prompts_are_not_compared_by_what_they_say() -> None:
    text = said(recorded("kv-pressure"), changed(recorded("kv-pressure"), other_prompt))
    assert "R2 has another prompt in B" in text
    assert "says something else" not in text


def test_a_request_of_one_run_only_is_named() -> None:
    log = recorded("hello")
    alone = changed(log, lambda events: events.__setitem__(slice(None), [e for e in events if e.request != "R1"]))
    assert "Before iteration 3 these arrive: in A R1, in B nobody." in said(log, alone)


# ---- logits ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def with_logits(tiny_model: Path) -> Log:
    return run_scenario(get_scenario("full-hit"), {"model": str(tiny_model)}, logits=True).log


def test_equal_logits_are_equal_to_the_last_bit(with_logits: Log) -> None:
    differences = logits_differences(with_logits, with_logits)
    assert [d.rows for d in differences] == [4, 4]
    assert first_logits(differences) is None
    assert list(logits_sentences(differences, Sides())) == ["All 8 rows of logits are the same, to the last bit."]


def row(events: list[Event], request: str, number: int) -> dict[str, Any]:
    return [e.data for e in events if e.kind == "logits" and e.request == request][number]


def test_a_last_bit_is_found_and_called_harmless(with_logits: Log) -> None:
    def nudge(events: list[Event]) -> None:
        data = row(events, "R1", 2)
        data["checksum"] = "00000000"
        data["top"][1][1] += 0.25

    differences = logits_differences(with_logits, changed(with_logits, nudge))
    first = first_logits(differences)
    assert first is not None
    assert (first.more["request"], first.more["position"]) == ("R1", 2)
    assert [d.differing for d in differences] == [0, 1]
    assert differences[1].largest == pytest.approx(0.25)
    text = " ".join(logits_sentences(differences, Sides()))
    assert "1 of 8 rows of logits are not the same to the last bit; the largest difference is 0.25" in text
    assert "its likeliest token is the same in every row" in text


def test_a_difference_behind_the_digits_of_the_log_is_not_called_zero(with_logits: Log) -> None:
    def nudge(events: list[Event]) -> None:
        row(events, "R1", 2)["checksum"] = "00000000"

    text = " ".join(logits_sentences(logits_differences(with_logits, changed(with_logits, nudge)), Sides()))
    assert "no difference is as large as 0.0001" in text
    assert "A log keeps four digits of a logit" in text


def test_another_likeliest_token_is_said_to_change_all_that_follows(with_logits: Log) -> None:
    def flip(events: list[Event]) -> None:
        for number in (1, 2, 3):
            data = row(events, "R0", number)
            data["checksum"] = "00000000"
            data["top"] = [[7 + number, 100.0 * number], *data["top"][:4]]

    differences = logits_differences(with_logits, changed(with_logits, flip))
    assert differences[0].flipped == 1
    assert differences[0].largest == pytest.approx(0.0, abs=1e-6), "rows behind the other token do not count"
    assert "in row 1 the likeliest token is another" in " ".join(logits_sentences(differences, Sides()))


def test_without_logits_it_says_how_to_record_them(with_logits: Log) -> None:
    with pytest.raises(CannotKnowError, match="B holds no logits; record them with: minivllm trace … --logits"):
        logits_differences(with_logits, recorded("full-hit"))


# ---- what callers felt -----------------------------------------------------------------------------------------------


def test_without_clocks_the_gap_between_tokens_is_told_as_work() -> None:
    whole = recorded("long-prefill-interference")
    chunked = replan(whole, {"long_prefill_token_threshold": 64}).log
    metric = compare_metric("itl", whole, chunked)
    assert metric.unit == "tokens of work"
    assert metric.requests["R0"] == (512, 73)
    assert "R0: at most 512 in A, 73 in B." in list(metric_sentences(metric, Sides()))


def test_with_clocks_it_is_told_in_time() -> None:
    log = recorded("two-processes")

    def slower(events: list[Event]) -> None:
        for event in events:
            if event.wall_ns is not None and event.step > 4:
                event.wall_ns += 5_000_000_000  # longer than any gap of the recording, whatever else its machine did

    metric = compare_metric("itl", log, changed(log, slower))
    assert metric.unit == "ms"
    before, after = metric.requests["R0"]
    assert before is not None
    assert after is not None
    assert after > 5000 > before


def test_each_metric_counts_iterations_or_work_by_hand() -> None:
    log = recorded("hello")
    r1 = run_numbers(log).requests["R1"]
    values = {name: compare_metric(name, log, log).requests["R1"][0] for name in METRICS}
    assert values["queue"] == 0
    assert values["ttft"] == 1, "it comes in the iteration in which it arrives"
    assert values["e2e"] == len(r1.output)
    assert values["itl"] == values["tpot"] == 2, "two requests decode, one token each"


def test_a_log_without_plans_cannot_tell() -> None:
    log = recorded("hello")
    empty = Log(log.header, [e for e in log.events if e.kind not in ("schedule", "update")])
    with pytest.raises(CannotKnowError, match="no request of them has a value of queue"):
        compare_metric("queue", empty, empty)


def test_numbers_follow_the_log() -> None:
    log = recorded("kv-pressure")
    assert run_numbers(log).lost == 14

    def lose_more(events: list[Event]) -> None:
        next(e for e in events if e.kind == "schedule" and e.data["preemptions"]).data["preemptions"][0][1] = 99

    assert run_numbers(changed(log, lose_more)).lost == 99
    assert run_numbers(changed(log, lose_more)).requests["R2"].lost == 99
    thrash = run_numbers(recorded("thrash"))
    assert (thrash.requests["R4"].preemptions, thrash.requests["R4"].lost) == (3, 31)
    assert thrash.lost == sum(entry.lost for entry in thrash.requests.values())


def test_rules_are_counted_by_iterations_in_which_any_of_them_held_somebody_back() -> None:
    run = run_numbers(recorded("kv-pressure"))
    full, short = (set(run.held_back[rule]) for rule in ("full_sequence_does_not_fit", "preempted"))
    assert full
    assert short
    assert run.times_held_back(["full_sequence_does_not_fit", "preempted"]) == len(full | short)


def test_the_first_lines_settings_are_named_before_anything_else() -> None:
    log = recorded("hello")
    config = copy.deepcopy(log.header.config)
    config["scheduler_config"]["max_num_seqs"] = 9
    other = Log(msgspec.structs.replace(log.header, config=config, seed=5), log.events)
    assert [(s.name, s.a, s.b) for s in diff_logs(log, other).settings] == [("seed", 0, 5), ("max_num_seqs", 4, 9)]
