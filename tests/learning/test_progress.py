"""Progress: where a lesson goes on, what is done, and that it survives."""

from __future__ import annotations

from pathlib import Path

import pytest

from minivllm.learning.progress import Progress, load_progress, progress_path


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MINIVLLM_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def test_without_a_file_nothing_is_remembered() -> None:
    assert load_progress() == Progress()


def test_progress_survives(home: Path) -> None:
    progress = Progress()
    progress.reached("plan", 2, 5)
    progress.reached("hops", 4, 4)
    progress.answered("plan/1", True)
    progress.answered("plan/2", False)
    progress.save()
    assert progress_path() == home / "learning.json"
    assert load_progress() == Progress({"plan": 2}, ["hops"], ["plan/1"])


def test_a_lesson_read_to_the_end_is_done_once() -> None:
    progress = Progress({"plan": 2})
    progress.reached("plan", 5, 5)
    progress.reached("plan", 5, 5)
    assert (progress.pages, progress.done) == ({}, ["plan"])


def test_what_was_right_once_stays_right() -> None:
    progress = Progress()
    progress.answered("plan/1", True)
    progress.answered("plan/1", False)
    assert progress.right == ["plan/1"]


def test_a_broken_file_says_what_to_do(home: Path) -> None:
    home.mkdir()
    (home / "learning.json").write_text("{")
    with pytest.raises(ValueError, match="delete it to begin the course anew"):
        load_progress()
