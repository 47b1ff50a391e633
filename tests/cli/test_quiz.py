"""`quiz`: answers given beforehand, the score, the sheet through a pipe, JSON, and mistakes."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from minivllm.learning.progress import load_progress
from minivllm.scenarios import definition
from tests.cli.conftest import Run

PACKAGED = Path(definition.__file__).parent / "logs"


@pytest.fixture(autouse=True)
def packaged_logs(monkeypatch: pytest.MonkeyPatch, own_place: Path) -> None:
    """Questions are about the runs that come with the package."""
    monkeypatch.setattr(definition, "LOGS", PACKAGED)


def test_right_and_wrong_answers_are_counted_and_explained(run: Run) -> None:
    ended = run("quiz", "mixed-batch", "--answers", "c; 0 1 257 261; R0 R2")
    assert ended.code == 0
    assert "2 of 3 right" in ended.out
    assert "No: you said 0 1 257 261." in ended.out
    assert "Answer: [0, 1, 257, 260]." in ended.out
    assert "core/schedule_waiting.py:" in ended.out
    assert load_progress().right == ["mixed-batch/1", "mixed-batch/3"]


def test_answers_that_run_out_are_wrong(run: Run) -> None:
    ended = run("quiz", "mixed-batch", "--answers", "c", "--count", "2")
    assert "1 of 2 right" in ended.out
    assert "No answer." in ended.out


def test_answers_are_read_from_a_pipe(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("c\n0 1 257 260\nR1\n"))
    assert "2 of 3 right" in run("quiz", "mixed-batch", "--answers", "-").out


def test_a_pipe_without_answers_gets_a_sheet(run: Run) -> None:
    ended = run("quiz", "plan")
    assert ended.code == 0
    assert "Answer: a) when the plan is made." in ended.out
    assert " right\n" not in ended.out
    assert load_progress().right == []


def test_without_a_lesson_a_round_is_ten_questions(run: Run) -> None:
    assert run("quiz", "--json").json["asked"] == 10


def test_the_document_judges_each_answer(run: Run) -> None:
    document = run("quiz", "mixed-batch", "--answers", "a; [0, 1, 257, 260]", "--json").json
    assert document["schema"] == "minivllm.quiz/1"
    assert [entry["is_right"] for entry in document["questions"]] == [False, True]
    assert (document["asked"], document["right"]) == (2, 1)
    assert document["questions"][0]["source"]["ours"].startswith("core/")


def test_an_unknown_lesson_is_told_by_its_nearest(run: Run) -> None:
    assert run("quiz", "mixd-batch").error == "no lesson is called 'mixd-batch'; did you mean 'mixed-batch'?"


def test_ascii_is_ascii(run: Run) -> None:
    assert run("quiz", "mixed-batch", "--ascii").out.isascii()


def test_the_run_that_is_asked_about_is_named_once(run: Run) -> None:
    assert run("quiz", "mixed-batch", "--count", 2).out.count("minivllm map plan -s mixed-batch") == 1
    both = run("quiz", "--answers", "; ; ; ", "--lang", "zh").out
    assert both.count("可以查看它的运行") >= 1
    assert "。 答案" not in both
