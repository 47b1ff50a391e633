"""Every command of docs/questions.md runs, in the order of the page, and all twenty-five questions are there."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "questions.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```bash\n(.*?)^```$", PAGE, re.M | re.S)


def test_the_page_has_every_question_once() -> None:
    numbers = [int(number) for number in re.findall(r"^\*\*(\d+)\. ", PAGE, re.M)]
    assert sorted(numbers) == list(range(1, 26))
    assert len(re.findall(r"^\*\*", PAGE, re.M)) == len(BLOCKS)


@pytest.mark.parametrize("block", BLOCKS, ids=[block.splitlines()[-1].removeprefix("minivllm ") for block in BLOCKS])
def test_its_commands_answer(block: str, tmp_path: Path) -> None:
    for line in block.splitlines():
        program, *arguments = shlex.split(line)
        assert program == "minivllm"
        command = [sys.executable, "-m", "minivllm", *arguments]
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT), "MINIVLLM_HOME": str(tmp_path)},
        )
        assert done.returncode == (1 if arguments[0] == "diff" else 0), done.stderr
        assert done.stdout.strip() or list(tmp_path.iterdir())


# What the page tells the reader to look at, where it is a fact of the run and not only a place of the output.
@pytest.mark.parametrize(
    ("command", "fact"),
    [
        ("why R4 preempted -s thrash", "It happened to R4 3 times"),
        ("why R2 not-scheduled -s stuck-queue", "the loop had stopped at R1"),
        ("why R2 waited -s priority", "Admitted in the meantime: R3"),
        ("whatif -s full-hit --set enable_prefix_caching=false", "R1 got 8 tokens after a prefix hit of 24"),
        ("map state -s condense --iteration 3:5", "The worker moved R2 from row 2 to row 0"),
        ("why R1 finished -s abort-in-flight", "thrown away"),
    ],
)
def test_what_there_is_to_see_is_seen(command: str, fact: str) -> None:
    assert f"minivllm {command}\n" in PAGE
    arguments = [sys.executable, "-m", "minivllm", *shlex.split(command), "--width", "200"]
    done = subprocess.run(arguments, capture_output=True, text=True, check=True, cwd=ROOT)
    assert fact in done.stdout
