"""Answers take their numbers from the run: change one and the answer follows, take the event away and it says so."""

from __future__ import annotations

import pytest

from minivllm.analysis.answer import CannotKnowError
from minivllm.analysis.why import QUESTIONS, why
from minivllm.scenarios.registry import all_scenarios, get_scenario
from minivllm.sourcemap.locate import locate
from minivllm.trace.events import Event
from minivllm.trace.reader import Log
from tests.analysis.logs import changed, event_of, recorded

MIXED = get_scenario("mixed-batch").look_at


def first(log: Log, question: str) -> tuple[str, int]:
    """A request and an iteration of which a question can be asked."""
    for event in log.events:
        if event.kind == "schedule":
            if question == "preempted" and event.data["preempted"]:
                return event.data["preempted"][0], event.step
            if question == "partial" and event.data["cut"]:
                return event.data["cut"][0]["request"], event.step
    raise AssertionError(f"no {question} in this log")


def test_who_waits_for_the_budget_is_told_who_took_it() -> None:
    answer = why(recorded("mixed-batch"), "R3", "not-scheduled", MIXED)
    assert answer.reason == "token_budget"
    assert answer.steps == [
        ("max_num_batched_tokens", "260", ""),
        ("- R0 (running goes first)", "1", "259 left"),
        ("- R1 (ahead in the queue)", "256", "3 left"),
        ("- R2 (ahead in the queue)", "3", "0 left"),
    ]
    assert answer.arithmetic["budget"] == 260
    assert "needs 310 tokens" in answer.more[-1]


def test_the_budget_of_the_answer_is_that_of_the_log() -> None:
    def give_more(events: list[Event]) -> None:
        data = event_of(events, "schedule", MIXED or 0).data
        data["budget"] += 40
        data["stop"]["numbers"]["budget"] += 40
        data["scheduled"][1][1] += 40

    answer = why(changed(recorded("mixed-batch"), give_more), "R3", "not-scheduled", MIXED)
    assert answer.steps[0] == ("max_num_batched_tokens", "300", "")
    assert answer.steps[2] == ("- R1 (ahead in the queue)", "296", "3 left")
    assert "300 of 300" in answer.answer


def test_without_a_recorded_reason_it_is_found_again() -> None:
    def forget(events: list[Event]) -> None:
        event_of(events, "schedule", MIXED or 0).data.update(stop=None, not_scheduled=[])

    answer = why(changed(recorded("mixed-batch"), forget), "R3", "not-scheduled", MIXED)
    assert answer.reason == "token_budget"


def test_what_no_rule_explains_is_not_known() -> None:
    def forget(events: list[Event]) -> None:
        data = event_of(events, "schedule", MIXED or 0).data
        data.update(stop=None, not_scheduled=[], budget=1000, max_num_seqs=100, free_blocks_scheduled=500)

    with pytest.raises(CannotKnowError, match="the log cannot say why R3 got nothing"):
        why(changed(recorded("mixed-batch"), forget), "R3", "not-scheduled", MIXED)


def test_a_preemption_tells_what_was_lost_and_by_whom() -> None:
    log = recorded("kv-pressure")
    request, step = first(log, "preempted")
    lost, by = event_of(log.events, "schedule", step).data["preemptions"][0][1:]
    answer = why(log, request, "preempted", step)
    assert f"{lost} computed tokens lost" in answer.answer
    assert by in answer.answer
    assert answer.arithmetic["lost"] == lost
    assert answer.arithmetic["free"] < answer.arithmetic["asked"]
    assert any(line.startswith("It came back in iteration") for line in answer.more)

    def lose_more(events: list[Event]) -> None:
        event_of(events, "schedule", step).data["preemptions"][0][1] = 99

    assert "99 computed tokens lost" in why(changed(log, lose_more), request, "preempted").answer


def test_thrash_counts_how_often() -> None:
    log = recorded("thrash")
    times = [r for e in log.events if e.kind == "schedule" for r in e.data["preempted"]]
    request = max(set(times), key=times.count)
    assert times.count(request) > 1
    assert f"{times.count(request)} times" in " ".join(why(log, request, "preempted").more)


def test_a_missed_prefix_names_the_token_that_differs() -> None:
    answer = why(recorded("short-prefix"), "R1", "no-hit")
    assert answer.reason == "differs"
    assert "R0 cached a block there that differs from token" in answer.answer
    assert answer.arithmetic["hit"] == 0


def test_a_full_hit_says_why_its_end_is_computed() -> None:
    answer = why(recorded("full-hit"), "R1", "no-hit")
    assert answer.reason == "last_token"
    assert answer.arithmetic["hit"] == answer.arithmetic["prompt_tokens"] - answer.arithmetic["block_size"]


def test_without_the_look_up_it_cannot_know() -> None:
    log = recorded("short-prefix")
    log = Log(log.header, [event for event in log.events if event.kind != "kv.lookup"])
    with pytest.raises(CannotKnowError, match=r"kv\.lookup"):
        why(log, "R1", "no-hit")


def test_a_stuck_queue_names_the_memory() -> None:
    log = recorded("stuck-queue")
    waits = [r for e in log.events if e.kind == "schedule" for r in e.data["waiting_scheduled"]]
    answer = why(log, waits[0], "waited")
    assert answer.reason in ("full_sequence_does_not_fit", "no_free_blocks")
    assert answer.arithmetic["iterations"] == answer.arithmetic["first_scheduled"] - answer.arithmetic["arrived"]


def test_who_never_waited_is_told_so() -> None:
    answer = why(recorded("hello"), "R0", "waited")
    assert answer.arithmetic["iterations"] == 0
    assert answer.reason == "not_waiting"


def test_a_cut_is_told_with_its_limit() -> None:
    log = recorded("chunked")
    request, step = first(log, "partial")
    answer = why(log, request, "partial", step)
    numbers = answer.arithmetic
    assert numbers["granted"] < numbers["asked"]
    assert f"{numbers['granted']} of the {numbers['asked']} tokens" in answer.answer


def test_an_end_is_told_with_its_limit() -> None:
    log = recorded("hello")
    answer = why(log, "R1", "finished")
    assert answer.reason in ("length", "stop")
    assert answer.arithmetic["output_tokens"] == 6
    assert "max_tokens is 6" in answer.answer


def test_a_stop_string_is_the_frontends_end() -> None:
    answer = why(recorded("stop-strings"), "R0", "finished")
    assert answer.reason == "stop"
    assert isinstance(answer.arithmetic["stop_reason"], str)
    assert answer.ours.startswith("minivllm.engine.output_processor")


def test_an_abort_is_its_callers_end() -> None:
    assert why(recorded("abort-in-flight"), "R1", "finished").reason == "abort"


def test_without_an_end_it_cannot_know() -> None:
    log = recorded("hello")
    kinds = ("update", "output.text")
    cut = Log(log.header, [event for event in log.events if event.kind not in kinds])
    with pytest.raises(CannotKnowError, match="does not hold an end of R0"):
        why(cut, "R0", "finished")


def test_what_did_not_happen_is_said_with_when_it_did() -> None:
    log = recorded("kv-pressure")
    request, step = first(log, "preempted")
    with pytest.raises(ValueError, match=f"was not preempted in iteration 0; it was in iteration.* {step}"):
        why(log, request, "preempted", 0)


@pytest.mark.parametrize("scenario", [s.name for s in all_scenarios() if s.log_path.exists()])
def test_every_question_of_every_request_has_an_answer_with_its_places(scenario: str) -> None:
    log = recorded(scenario)
    for request in [e.request for e in log.events if e.kind == "request.arrived" and e.request]:
        for question in [None, *QUESTIONS]:
            try:
                answer = why(log, request, question)
            except ValueError:
                continue  # it did not happen
            assert answer.answer.endswith(".")
            assert locate(answer.ours) is not None
            assert "::" in answer.vllm
            assert answer.as_dict()["source"]["ours"].count(":") == 1


def test_an_abort_says_what_became_of_the_token_and_the_blocks() -> None:
    log = recorded("abort-in-flight")
    answer = why(log, "R1", "finished")
    [token] = event_of(log.events, "update", 4).data["sampled"]["R1"]
    assert "Its 2 blocks went back at once: free for the next plan." in answer.more
    assert f"The step that was running still computed token {token} for it: thrown away." in answer.more


def test_waiting_is_told_in_words_and_with_a_later_preemption() -> None:
    answer = why(recorded("kv-pressure"), "R2", "waited")
    assert any("preempted later" in line for line in answer.more)
    waits = why(recorded("priority"), "R2", "waited")
    assert "all places were taken (max_num_seqs)" in waits.answer
    assert "max_num_seqs" in waits.arithmetic


def test_a_request_that_comes_back_without_a_hit_computes_again_what_it_lost() -> None:
    log = recorded("kv-pressure")
    request, step = first(log, "preempted")
    lost = next(e for e in log.events if e.kind == "schedule" and e.step == step).data["preemptions"][0][1]

    def forget_the_hit(events: list[Event]) -> None:
        for event in events:
            if event.kind == "schedule" and request in event.data["resumed"]:
                event.data["prefix_cache"] = [[who, n, 0] for who, n, _ in event.data["prefix_cache"]]

    answer = why(changed(log, forget_the_hit), request, "preempted", step)
    assert any(f"all are computed, {lost} of them again" in line for line in answer.more)


def test_an_iteration_that_raises_no_question_says_so() -> None:
    with pytest.raises(ValueError, match=r"nothing kept R0 from going on in iteration 2.* it ended in iteration"):
        why(recorded("hello"), "R0", None, 2)
