"""`why`: the answer as a text and as JSON, and mistakes in one clear line."""

from __future__ import annotations

from tests.cli.conftest import Run


def test_the_document_has_the_keys_of_the_contract(run: Run) -> None:
    document = run("why", "R3", "-s", "mixed-batch", "--iteration", "13", "--json").json
    assert document["schema"] == "minivllm.why/1"
    assert {"request", "question", "iteration", "answer", "reason", "arithmetic", "source"} <= document.keys()
    assert document["question"] == "not-scheduled"
    assert document["arithmetic"]["budget"] == 260
    assert document["source"].keys() == {"ours", "vllm"}
    assert document["source"]["ours"].startswith("core/")


def test_the_answer_shows_rule_arithmetic_and_places(run: Run) -> None:
    ended = run("why", "R3", "-s", "mixed-batch", "--iteration", "13", "--width", "120")
    assert ended.code == 0
    assert "R3 was not scheduled in iteration 13: TOKEN_BUDGET" in ended.out
    assert "- R1 (ahead in the queue)  256" in ended.out
    assert "core/schedule_waiting.py:" in ended.out
    assert "vllm/v1/core/sched/scheduler.py::Scheduler.schedule" in ended.out
    assert "next: minivllm whatif -s mixed-batch --set max_num_batched_tokens=520" in ended.err


def test_an_unknown_request_is_told_by_its_neighbour(run: Run) -> None:
    ended = run("why", "R99", "-s", "hello")
    assert ended.code == 1
    assert "it has R0, R1" in ended.error


def test_an_unknown_question_is_a_mistake_of_usage(run: Run) -> None:
    ended = run("why", "R0", "preempt", "-s", "hello")
    assert ended.code == 2
    assert "did you mean preempted" in ended.error


def test_an_iteration_that_is_not_there(run: Run) -> None:
    ended = run("why", "R0", "-s", "hello", "--iteration", "999")
    assert ended.code == 1
    assert "nearest" in ended.error


def test_what_did_not_happen(run: Run) -> None:
    ended = run("why", "R0", "preempted", "-s", "hello")
    assert ended.code == 1
    assert ended.error == "R0 was not preempted in this run"


def test_ascii_is_ascii(run: Run) -> None:
    assert run("why", "R3", "-s", "mixed-batch", "--iteration", "13", "--ascii").out.isascii()
