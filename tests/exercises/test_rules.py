"""A rule that a learner wrote is held against its fault, sound runs and all other faults, and told what is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from minivllm.exercises.course import find_exercise
from minivllm.exercises.faults import bugs, scenario_of
from minivllm.exercises.judge import judge

RULE = find_exercise("stale-hit")


@pytest.mark.parametrize(
    ("body", "task", "message"),
    [
        ("return None", 1, "A rule yields sentences."),
        ("yield 5", 1, "A rule yields sentences."),
        ("yield it.nothing", 1, "Your code raised an error."),
        ("yield from () if it.step != 6 or it.run.scheduler_config['max_model_len'] != 64 else ['late']", 1, "another"),
        ("yield from (f'{e.request} hit' for e in it.all('kv.shared'))", 2, "a run in which nothing is wrong"),
    ],
)
def test_a_wrong_rule_is_told_why(tmp_path: Path, body: str, task: int, message: str) -> None:
    source = RULE.starter.read_text(encoding="utf-8")
    assert source.count("yield from ()") == 1
    file = tmp_path / RULE.file
    file.write_text(source.replace("yield from ()", body), encoding="utf-8")
    first = judge(RULE, file, tmp_path).first_failed
    assert first is not None
    assert (first.task, message in (first.message or "")) == (task, True), first


def test_a_good_rule_hears_which_other_faults_it_finds(tmp_path: Path) -> None:
    report = judge(RULE, RULE.solution, tmp_path)
    assert report.passed, report.first_failed
    assert report.tasks[2].output == f"of {len(bugs()) - 1} other faults your rule finds: none"


def test_every_fault_has_a_run_of_its_own() -> None:
    names = [scenario_of(exercise).name for exercise in bugs()]
    assert len(names) >= 8
    assert len(set(names)) == len(names)
