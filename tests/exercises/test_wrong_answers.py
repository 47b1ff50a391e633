"""Whatever a learner writes, the answer is a sentence with a place in the learner's file, and never our traceback."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from minivllm.exercises import judge as judging
from minivllm.exercises.checking import check
from minivllm.exercises.course import find_exercise
from minivllm.exercises.judge import judge
from minivllm.exercises.report import Report

EXERCISE = find_exercise("block-hash")
HEAD = "def hash_block_tokens(parent_hash, token_ids, extra_keys=()):\n"


@pytest.fixture
def judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def judge_source(source: str) -> Report:
        if "while True" in source:  # others have all the time they need
            monkeypatch.setattr(judging, "TASK_SECONDS", 0.3)
        file = tmp_path / EXERCISE.file
        file.write_text(textwrap.dedent(source))
        return judge(EXERCISE, file, tmp_path / "runs")

    return judge_source


# What is in the file, and what is said of it.
UNUSABLE = {
    "def hash_block_tokens(:": "block_hash.py, line 1: invalid syntax: def hash_block_tokens(:",
    "import no_such_package": "block_hash.py:1: import no_such_package: No module named 'no_such_package'",
    "x = 1": "block_hash.py has no 'hash_block_tokens'. It must define hash_block_tokens(parent_hash, token_ids, ",
    "hash_block_tokens = 3": "hash_block_tokens in block_hash.py is no function: it must be hash_block_tokens(",
    "def hash_block_tokens(tokens): ...": "must be hash_block_tokens(parent_hash, token_ids, extra_keys=...), and is",
    "from minivllm.core.block_hash import hash_block_tokens": "is the engine's own, from minivllm.core.block_hash",
    "1 / 0": "block_hash.py:1: 1 / 0 cannot be run: ZeroDivisionError: division by zero",
    "import sys; sys.exit(3)": "cannot be run: SystemExit: 3",
    "while True: pass": "block_hash.py never ends when it is imported",
    "\0": "block_hash.py",
    "# \u00e9".encode("latin1").decode("latin1"): "block_hash.py has no 'hash_block_tokens'",
}


@pytest.mark.parametrize("source", UNUSABLE, ids=[repr(source)[:40] for source in UNUSABLE])
def test_a_file_that_cannot_be_used(judged, source: str) -> None:
    report = judged(source)
    assert not report.passed
    assert UNUSABLE[source] in (report.problem or "")
    assert "None" not in (report.problem or "")
    assert {task.status for task in report.tasks} == {"not_run"}


WRONG = {
    "    return None": (None, "None"),
    "    return token_ids[99]": ("Your code raised an error.", "IndexError: list index out of range"),
    "    while True: pass": ("Stopped: it was still running; is it a loop that never ends?", "no end"),
    "    raise SystemExit": ("Your code raised an error.", "SystemExit"),
    "    return hash_block_tokens(parent_hash, token_ids)": ("Your code raised an error.", "RecursionError"),
    "    raise NotImplementedError": ("This is not written yet.", "NotImplementedError"),
}


@pytest.mark.parametrize("body", WRONG, ids=[body.strip()[:30] for body in WRONG])
def test_a_part_that_is_wrong(judged, body: str) -> None:
    report = judged(HEAD + body)
    failed = report.first_failed
    assert report.problem is None
    assert failed is not None
    message, got = WRONG[body]
    assert failed.message == message
    assert got in failed.got
    assert failed.call.startswith("hash_block_tokens(<00000000...>, [5, 6, 7, 8]")
    assert failed.place is None or failed.place.startswith("block_hash.py:2: ")


def test_what_is_wrong_in_the_engine_has_a_map_and_an_iteration(judged) -> None:
    solution = EXERCISE.solution.read_text()
    report = judged(solution.replace("hashlib.sha256(parent_hash)", "hashlib.sha256()"))
    in_engine = [task for task in report.tasks if task.status == "fail" and task.map is not None]
    assert [task.map.kind for task in in_engine]
    assert in_engine[0].map.iteration >= 0
    assert "iteration" in in_engine[0].call
    assert in_engine[0].expected != in_engine[0].got


def test_what_a_part_prints_is_shown_and_cut(judged) -> None:
    report = judged(HEAD + "    print('x' * 2000)\n    return b''")
    assert report.first_failed.output == "x" * 500 + "..."


def test_a_part_that_ends_the_process_is_told_in_a_sentence(tmp_path: Path) -> None:
    file = tmp_path / EXERCISE.file
    file.write_text("import os\n" + HEAD + "    os._exit(7)")
    report = check(EXERCISE, file, tmp_path / "runs")
    assert report.problem == "block_hash.py ended the process that checked it (exit code 7)"
    assert len(report.tasks) == len(EXERCISE.tasks)
