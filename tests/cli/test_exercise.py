"""`exercise`: the learner's folder, checks of a real file, hints, what is shown when, and the loop at a terminal."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from minivllm.entrypoints.cli.exercise_view import ExerciseView
from minivllm.exercises.course import exercises, find_exercise
from minivllm.exercises.progress import load_exercise_progress
from minivllm.exercises.report import new_report
from tests.cli.conftest import Run
from tests.cli.test_walkthrough import Typist

ROOT = Path(__file__).parents[2]
FIRST = find_exercise("block-hash")
WITHOUT_PARENT = FIRST.solution.read_text().replace("hashlib.sha256(parent_hash)", "hashlib.sha256()")


def test_the_list_as_json_has_the_keys_of_the_contract(run: Run) -> None:
    document = run("exercise", "list", "--json").json
    assert document["schema"] == "minivllm.exercise-list/1"
    assert [entry["name"] for entry in document["exercises"]] == [each.name for each in exercises()]
    assert {"name", "kind", "level", "status"} <= document["exercises"][0].keys()
    assert {entry["kind"] for entry in document["exercises"]} <= {"build", "bug"}
    assert {entry["status"] for entry in document["exercises"]} == {"new"}


def test_list_task_and_hints_fit_narrow_terminals_and_ascii(run: Run) -> None:
    for command in (["list"], ["start", "block-hash"], ["hint", "block-hash"], ["progress"]):
        out = run("exercise", *command, "--width", 44, "--ascii").out
        assert max(map(len, out.splitlines())) <= 44 or command == ["progress"]
        assert out.isascii()


def test_a_bar_becomes_a_number_where_there_is_no_room(run: Run) -> None:
    assert run("exercise", "progress", "--width", 100).out.startswith("Progress: [░")
    assert run("exercise", "progress", "--width", 100, "--ascii").out.startswith("Progress: [-")
    assert run("exercise", "progress", "--width", 44).out.startswith(f"Progress: 0/{len(exercises())}\n")


def test_start_puts_a_file_and_leaves_what_is_there(
    run: Run, own_place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = run("exercise", "start")
    file = own_place / "minivllm-exercises" / FIRST.file
    assert (started.code, FIRST.title in started.out) == (0, True)
    assert file.read_text() == FIRST.starter.read_text()
    file.write_text("mine")
    assert "stays as it is" in run("exercise", "start", "block-hash").err
    assert file.read_text() == "mine"
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert "stays as it is" in run("exercise", "start", "block_hash.py").err, "the last folder is remembered"
    assert list(elsewhere.iterdir()) == []


def test_who_says_where_is_told_to_say_it_again(run: Run, own_place: Path) -> None:
    (own_place / "minivllm-exercises").mkdir()  # without --dir this one would be taken
    mine = own_place / "of mine"
    assert f"watch --dir '{mine}'" in run("exercise", "start", "block-hash", "--dir", mine).err
    (mine / FIRST.file).unlink()
    assert f"start block-hash --dir '{mine}'" in run("exercise", "check", "block-hash", "--dir", mine).error
    assert "--dir" not in run("exercise", "start", "block-hash").err


def test_reset_asks_and_keeps_what_was_there(run: Run, own_place: Path) -> None:
    run("exercise", "start", "block-hash")
    file = own_place / "minivllm-exercises" / FIRST.file
    file.write_text("mine")
    refused = run("exercise", "reset", "block-hash")
    assert (refused.code, "--yes" in refused.error) == (2, True)
    assert file.read_text() == "mine"
    assert run("exercise", "reset", "--yes").code == 0
    assert file.read_text() == FIRST.starter.read_text()
    assert file.with_name(file.name + ".before-reset").read_text() == "mine"
    again = run("exercise", "reset", "--yes")
    assert (again.code, "yours is in" in again.err) == (0, False)
    assert file.with_name(file.name + ".before-reset").read_text() == "mine", "the second reset has nothing to keep"


def test_a_folder_in_the_place_of_the_file_is_told(run: Run, own_place: Path) -> None:
    (own_place / "minivllm-exercises" / FIRST.file).mkdir(parents=True)
    assert run("exercise", "start", "block-hash").code == 0
    assert "is a folder" in run("exercise", "check", "block-hash").error


def test_hints_come_one_after_the_other(run: Run) -> None:
    shown = [run("exercise", "hint", "block-hash").out for _ in range(4)]
    assert ["Hint 1 of 3" in shown[0], "Hint 2 of 3" in shown[1], "Hint 3 of 3" in shown[2]] == [True] * 3
    assert shown[3] == shown[2]
    assert "Hint 1 of 3" in run("exercise", "hint", "block-hash", "--level", 1).out
    assert load_exercise_progress().hints == {"block-hash": 3}


def test_the_solution_comes_after_passing_or_giving_up(run: Run) -> None:
    refused = run("exercise", "solution", "block-hash")
    assert (refused.code, "--give-up" in refused.error) == (1, True)
    given = run("exercise", "solution", "block-hash", "--give-up")
    assert "digest.update" in given.out
    assert "vllm/v1/core/kv_cache_utils.py::hash_block_tokens" in given.out
    assert run("exercise", "list", "--json").json["exercises"][0]["status"] == "new"


def test_a_check_tells_by_task_and_passing_is_remembered(run: Run, own_place: Path) -> None:
    run("exercise", "start", "block-hash")
    file = own_place / "minivllm-exercises" / FIRST.file
    file.write_text(WITHOUT_PARENT)
    failed = run("exercise", "check", "--json")
    document = failed.json
    assert (failed.code, document["passed"], document["problem"]) == (1, False, None)
    tasks = document["tasks"]
    assert [task["task"] for task in tasks] == list(range(1, len(FIRST.tasks) + 1))
    assert {task["status"] for task in tasks} == {"pass", "fail"}
    wrong = next(task for task in tasks if task["map"] is not None)
    assert all(wrong[key] for key in ("call", "expected", "got", "title"))
    assert f"iteration {wrong['map']['iteration']}" in wrong["map"]["text"]
    assert Path(wrong["map"]["log"]).is_file()

    file.write_text(FIRST.solution.read_text())
    (own_place / "random.py").write_text("raise SystemExit('not the one that the engine imports')")
    passed = run("exercise", "check", "--width", 100)
    assert passed.code == 0
    assert f"All {len(FIRST.tasks)} tasks hold." in passed.out
    assert "prefix tree without a tree" in passed.out, "the explanation comes after passing"
    assert passed.err.startswith("Checking block_hash.py ...")
    assert run("exercise", "list", "--json").json["exercises"][0]["status"] == "passed"
    assert run("exercise", "solution", "block-hash").code == 0
    assert run("exercise", "progress", "--json").json["passed"] == ["block-hash"]


def test_mistakes_are_told_in_one_line(run: Run) -> None:
    assert run("exercise", "check").error == "no exercise was started yet; run: minivllm exercise start"
    assert run("exercise", "start", "block-hahs").error.endswith("did you mean 'block-hash'?")
    assert "run: minivllm exercise start block-hash" in run("exercise", "check", "block-hash").error
    watched = run("exercise", "watch")
    assert (watched.code, "needs a terminal" in watched.error) == (2, True)


def test_the_list_and_a_hint_need_no_torch_and_no_pytest() -> None:
    program = (
        "import sys\nfor name in ('torch', 'numpy', 'pytest', 'triton'): sys.modules[name] = None\n"
        "from minivllm.entrypoints.cli.main import main\n"
        "sys.exit(main(['exercise', 'list', '--json']) or main(['exercise', 'hint', 'block-hash']))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[0])["exercises"]


def test_at_a_terminal_a_saved_file_is_checked_again(own_place: Path) -> None:
    person = Typist("exercise", "watch", "block-hash")
    person.wait_for("Checking block_hash.py ... please wait")
    seen = person.wait_for("q:quit ?")
    assert "This is not written yet." in person.screen
    person.type("\x1b[C\x1b[Hh")  # an arrow and Home are no c and no h
    seen = person.wait_for("Hint 1 of 3", seen)
    assert person.screen.count("please wait") == 1
    seen = person.wait_for("q:quit ?", seen)
    (own_place / "minivllm-exercises" / FIRST.file).write_text(FIRST.solution.read_text())
    seen = person.wait_for("tasks hold", seen)
    seen = person.wait_for("q:quit ?", seen)
    person.type("l")
    person.wait_for("free-order", seen)
    person.type("x")
    seen = person.wait_for("any other key: no", seen)
    person.type("n")
    seen = person.wait_for("q:quit ?", seen)
    person.type("q")
    assert person.end() == 0
    assert load_exercise_progress().passed == ["block-hash"]


def test_what_is_printed_in_tasks_that_hold_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    report = new_report(FIRST, Path("block_hash.py"))
    report.tasks[0].status, report.tasks[0].output = "pass", "here I am"
    report.tasks[1].status, report.tasks[1].output = "fail", "and here"
    ExerciseView(Console(), ascii_only=False).report(report)
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert ("printed in task 1: here I am" in lines, "printed and here" in lines) == (True, True)
