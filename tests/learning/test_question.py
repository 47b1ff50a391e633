"""Questions: the answer is the run's, and what counts as right."""

from __future__ import annotations

import pytest

from minivllm.learning.facts import Facts, facts_of
from minivllm.learning.fill import Filler
from minivllm.learning.lesson import Block
from minivllm.learning.question import Question, read_question
from minivllm.learning.run_view import FactError

CHOICES = """\
How many tokens does R1 get in iteration 13,
of {num_prompt("R1")}?
choice: {num_prompt("R1")}
choice: {config("long_prefill_token_threshold")}
answer: tokens("R1", 13)
why: its limit
where: minivllm.core.schedule_waiting:schedule_waiting
"""
TYPED = CHOICES.replace('choice: {num_prompt("R1")}\n', "").replace(
    'choice: {config("long_prefill_token_threshold")}\n', ""
)


def read(text: str, facts: Facts | None = None) -> Question:
    return read_question(Block("ask", text, 1), Filler(facts or facts_of("mixed-batch"), "lesson"), "lesson/1")


def test_a_choice_is_right_by_its_letter_or_its_words() -> None:
    question = read(CHOICES)
    assert question.text == "How many tokens does R1 get in iteration 13, of 2000?"
    assert (question.choices, question.letter, question.right) == (("2000", "256"), "b", "b) 256")
    assert [question.is_right(said) for said in ("b", "B", "b)", "256", " 256 ")] == [True] * 5
    assert [question.is_right(said) for said in ("a", "2000", "", "c", "25", "b a")] == [False] * 6


@pytest.mark.parametrize("said", ["[0, 1, 257, 260]", "0 1 257 260", "0,1,257,260"])
def test_a_list_is_right_however_it_is_written(said: str) -> None:
    question = read(TYPED.replace('tokens("R1", 13)', "batch(13).query_start_loc"))
    assert question.is_right(said)
    assert not question.is_right("0 1 257")
    assert not question.is_right("260 257 1 0")


def test_another_run_has_another_answer() -> None:
    log = facts_of("mixed-batch")._log
    for event in log.events:
        if event.kind == "schedule" and event.step == 13:
            event.data["scheduled"] = [[i, 100 if i == "R1" else n] for i, n in event.data["scheduled"]]
    assert read(TYPED, Facts(log)).answer == "100"
    with pytest.raises(FactError, match="the run answers '100'"):
        read(CHOICES, Facts(log))


@pytest.mark.parametrize("part", ["answer", "why", "where"])
def test_a_question_without_a_part_is_refused(part: str) -> None:
    lines = [line for line in CHOICES.splitlines() if not line.startswith(part + ":")]
    with pytest.raises(FactError, match=f"has no line `{part}:`"):
        read("\n".join(lines))


def test_the_document_names_both_places() -> None:
    document = read(CHOICES).as_dict()
    assert document["source"]["ours"].startswith("core/schedule_waiting.py:")
    assert document["source"]["vllm"] == "vllm/v1/core/sched/scheduler.py::Scheduler.schedule"
    assert (document["answer"], document["letter"]) == ("256", "b")
