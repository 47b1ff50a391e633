"""The page of exercises is what the exercises and a check really say, and every command of their texts works."""

from __future__ import annotations

import importlib.util
import re
import shlex
from pathlib import Path

import pytest

from minivllm.entrypoints.cli.main import main
from minivllm.exercises.course import exercises

DOCS = Path(__file__).parents[2] / "docs"
_OWN = ("minivllm exercise check", "minivllm check")
COMMAND = re.compile(r"`(minivllm [^`]+)`")
TEXTS = [text for each in exercises() for text in (each.task, each.explanation, *each.hints)]
# Without those that are about the learner's own file or run.
COMMANDS = sorted({c for text in TEXTS for c in COMMAND.findall(text) if "FILE" not in c and not c.startswith(_OWN)})


def test_the_page_is_up_to_date() -> None:
    spec = importlib.util.spec_from_file_location("generate_exercises", DOCS / "generate_exercises.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.PAGE.read_text(encoding="utf-8") == module.page(), (
        "run: PYTHONPATH=. python docs/generate_exercises.py"
    )


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_a_text_works(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MINIVLLM_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert main(shlex.split(command)[1:]) == 0, capsys.readouterr().err
