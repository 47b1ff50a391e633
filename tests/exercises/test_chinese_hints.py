"""Hints in Chinese say what those in English say: as many, with the same code."""

from __future__ import annotations

import re

import pytest

from minivllm.exercises.course import Exercise, exercises

HAN = "[\u4e00-\u9fff]"
TRANSLATED = [exercise for exercise in exercises() if (exercise.path / "hints.zh.md").exists()]


def code(hint: str) -> set[str]:
    return {" ".join(span.split()) for span in re.findall("`([^`]+)`", hint)}


def test_exercises_have_hints_in_chinese() -> None:
    assert len(TRANSLATED) >= 12


@pytest.mark.parametrize("exercise", TRANSLATED, ids=lambda exercise: exercise.name)
def test_a_hint_in_chinese_names_the_same_code(exercise: Exercise) -> None:
    english, chinese = exercise.hints, exercise.hints_in("zh")
    assert len(chinese) == len(english)
    for ours, theirs in zip(english, chinese, strict=True):
        assert code(theirs) == code(ours)
        assert re.search(HAN, theirs)
        assert not re.search(rf"{HAN}[,;:?!]", re.sub("`[^`]+`", "", theirs))


def test_without_chinese_the_hint_is_in_english() -> None:
    untranslated = [exercise for exercise in exercises() if exercise not in TRANSLATED]
    assert all(exercise.hints_in("zh") == exercise.hints for exercise in untranslated)
