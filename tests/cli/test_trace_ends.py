"""A trace that does not come to its end: the log up to there is kept and named; and what cannot be shown is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from minivllm.engine.exceptions import EngineDeadError
from minivllm.trace.probes.blocks import BlockProbes
from tests.cli.conftest import Run


def stop_after(count: int, error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a run end with an error behind so many steps."""
    steps = iter(range(count))
    step_changes = BlockProbes.step_changes

    def stopping(probes: BlockProbes) -> dict[str, Any]:
        if next(steps, None) is None:
            raise error
        return step_changes(probes)

    monkeypatch.setattr(BlockProbes, "step_changes", stopping)


def test_an_interrupted_run_says_where_its_log_is_and_the_log_can_be_read(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_after(1, KeyboardInterrupt(), monkeypatch)
    ended = run("trace", "Once upon a time", "--out", "cut.jsonl", "--map", "plan")
    assert (ended.code, ended.error) == (130, "interrupted")
    assert "log: cut.jsonl, up to where the run ended" in ended.err
    again = run("map", "plan", "--log", "cut.jsonl", "--iteration", "0")
    assert again.code == 0
    assert "iteration 0" in again.out


def test_a_core_that_died_is_one_line_and_its_log_is_named(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    stop_after(1, EngineDeadError("the engine core's process was ended by SIGKILL"), monkeypatch)
    ended = run("trace", "Once upon a time", "--out", "dead.jsonl")
    assert (ended.code, ended.error) == (1, "the engine core's process was ended by SIGKILL")
    assert "log: dead.jsonl, up to where the run ended" in ended.err


def test_a_full_disk_names_the_log_and_what_to_do(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    stop_after(1, OSError(28, "No space left on device"), monkeypatch)
    ended = run("trace", "Once upon a time", "--out", "full.jsonl")
    assert ended.code == 1
    assert "full.jsonl: No space left on device" in ended.error
    assert "--out" in ended.error


@pytest.mark.parametrize("command", [["map", "plan", "-s", "hello"], ["trace", "-s", "hello"]])
def test_ascii_is_english_whatever_the_environment_speaks(
    run: Run, monkeypatch: pytest.MonkeyPatch, command: list[str], own_place: Path
) -> None:
    monkeypatch.setenv("LC_ALL", "zh_CN.UTF-8")
    ended = run(*command, "--ascii", "--iteration", "3")
    assert (ended.code, "R1 arrived with" in ended.out) == (0, True)
    ended = run(*command, "--ascii", "--lang", "zh")
    assert (ended.code, ended.out) == (2, "")
    assert "--ascii cannot show --lang zh" in ended.error
