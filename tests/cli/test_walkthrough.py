"""`walkthrough`: the list, whole lessons through a pipe, page by page on a terminal, and what is remembered."""

from __future__ import annotations

import os
import pty
import re
import select
import sys
import time
from pathlib import Path

import pytest

from minivllm.learning.lesson import lesson_heads
from minivllm.learning.progress import load_progress
from minivllm.scenarios import definition
from tests.cli.conftest import Run

COMMAND = re.compile(r"`minivllm ([^`]+)`")
PACKAGED = Path(definition.__file__).parent / "logs"


@pytest.fixture(autouse=True)
def packaged_logs(monkeypatch: pytest.MonkeyPatch, own_place: Path) -> None:
    """Lessons tell of the runs that come with the package."""
    monkeypatch.setattr(definition, "LOGS", PACKAGED)


def test_the_list_as_json_has_the_keys_of_the_contract(run: Run) -> None:
    document = run("walkthrough", "list", "--json").json
    assert document["schema"] == "minivllm.walkthrough-list/1"
    assert [entry["name"] for entry in document["walkthroughs"]] == [head.name for head in lesson_heads()]
    assert {"name", "title", "minutes"} <= document["walkthroughs"][0].keys()
    assert {entry["status"] for entry in document["walkthroughs"]} == {"new"}


def test_the_list_fits_narrow_terminals(run: Run) -> None:
    out = run("walkthrough", "list", "--width", "50").out
    assert max(map(len, out.splitlines())) <= 50
    assert "mixed-batch" in out


def test_a_pipe_gets_the_whole_lesson_and_no_prompt(run: Run) -> None:
    ended = run("walkthrough", "run", "mixed-batch")
    assert ended.code == 0
    assert "7 of 7" in ended.out
    assert "Answer: c) 256." in ended.out
    assert "Enter" not in ended.out
    assert ended.err == "next: minivllm walkthrough next\n"


@pytest.mark.parametrize("width", [40, 60])
def test_a_lesson_fits_narrow_terminals(run: Run, width: int) -> None:
    out = run("walkthrough", "run", "plan", "--width", width).out
    text = [line for line in out.splitlines() if "::" not in line and not line.startswith("$")]
    assert max(map(len, text)) <= 100
    assert "Question." in out


def test_ascii_is_ascii(run: Run) -> None:
    assert run("walkthrough", "run", "mixed-batch", "--ascii").out.isascii()
    assert run("walkthrough", "list", "--ascii").out.isascii()


def test_next_goes_through_the_course(run: Run) -> None:
    first, second, *_ = lesson_heads()
    assert f"-- {first.title} --" in run("walkthrough", "next", "--ascii").out
    assert load_progress().done == [first.name]
    assert f"-- {second.title} --" in run("walkthrough", "next", "--ascii").out
    entries = run("walkthrough", "list", "--json").json["walkthroughs"]
    assert [entry["status"] for entry in entries[:3]] == ["done", "done", "new"]


def test_when_all_is_done_next_says_so(run: Run) -> None:
    progress = load_progress()
    for head in lesson_heads():
        progress.reached(head.name, 1, 1)
    progress.save()
    ended = run("walkthrough", "next")
    assert ended.code == 0
    assert "lessons are done" in ended.out


def test_an_unknown_lesson_is_told_by_its_nearest(run: Run) -> None:
    ended = run("walkthrough", "run", "mixed-bach")
    assert ended.code == 1
    assert ended.error == "no lesson is called 'mixed-bach'; did you mean 'mixed-batch'?"


def test_a_missing_log_is_one_clear_line(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(definition, "LOGS", tmp_path)
    assert "cannot be read" in run("walkthrough", "run", "plan").error


def test_without_a_place_for_progress_a_lesson_can_be_read(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MINIVLLM_HOME", str(tmp_path / "file" / "home"))
    ended = run("walkthrough", "run", "plan")
    assert ended.code == 0
    assert "set MINIVLLM_HOME" in ended.err


@pytest.mark.parametrize("command", sorted({c for h in lesson_heads() for c in COMMAND.findall(h.path.read_text())}))
def test_a_command_in_a_text_works(run: Run, command: str) -> None:
    ended = run(*command.split())
    assert (ended.code, bool(ended.out)) == (0, True), ended.err


class Typist:
    """A person at a terminal: starts the command, waits for words on the screen, and types."""

    def __init__(self, *args: str) -> None:
        self.pid, self._master = pty.fork()
        if self.pid == 0:
            os.environ.update(TERM="xterm", COLUMNS="90", LINES="50")
            os.execv(sys.executable, [sys.executable, "-m", "minivllm", *args])
        self.screen = ""

    def wait_for(self, words: str, since: int = 0) -> int:
        end = time.monotonic() + 60
        while words not in self.screen[since:]:
            assert time.monotonic() < end, self.screen[-2000:]
            if select.select([self._master], [], [], 1)[0]:
                try:
                    read = os.read(self._master, 65536)
                except OSError:
                    read = b""
                if not read:
                    assert words in self.screen[since:], self.screen[-2000:]
                self.screen += read.decode("utf-8", "replace")
        return len(self.screen)

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def end(self) -> int:
        _, status = os.waitpid(self.pid, 0)
        os.close(self._master)
        return os.waitstatus_to_exitcode(status)


def test_enter_goes_on_q_leaves_and_the_lesson_goes_on_there() -> None:
    person = Typist("walkthrough", "run", "mixed-batch")
    seen = person.wait_for("Enter goes on, q leaves")
    assert "2 of 7" not in person.screen
    person.type("\n")
    seen = person.wait_for("Enter goes on, q leaves", seen)
    assert "2 of 7" in person.screen
    person.type("\n")
    seen = person.wait_for("your answer", seen)
    assert "Answer:" not in person.screen, "the answer comes after the prediction"
    person.type("a\n")
    seen = person.wait_for("c) 256.", seen)
    assert "No." in person.screen
    person.wait_for("it?")
    person.type("0 1 257 260\n")
    person.wait_for("Right.")
    person.wait_for("Whose sampled")
    person.type("q\n")
    person.wait_for("next: minivllm walkthrough run mixed-batch")
    assert person.end() == 0
    progress = load_progress()
    assert progress.pages == {"mixed-batch": 2}
    assert progress.right == ["mixed-batch/2"]

    person = Typist("walkthrough", "next")
    person.wait_for("going on at page 3 of 7")
    person.wait_for("your answer")
    person.type("\x04")
    person.wait_for("next: minivllm walkthrough run mixed-batch")
    assert person.end() == 0


def test_interrupted_it_ends_as_interrupted() -> None:
    person = Typist("walkthrough", "run", "plan")
    person.wait_for("Enter goes on, q leaves")
    person.type("\x03")
    person.wait_for("interrupted")
    assert person.end() == 130
