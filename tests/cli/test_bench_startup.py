"""`bench startup` starts the engine in a process of its own, and says what that took."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Run


def test_the_command_starts_a_process(run: Run) -> None:
    document = run("bench", "startup", "--repeats", "1", "--input-len", "4", "--json").json
    [result] = document["results"]
    assert result["cache"] == "no kernels"
    names = [phase["name"] for phase in result["phases"]]
    assert names[:3] == ["start Python", "import torch", "import the engine"]
    assert names[-2:] == ["the first token", "not in a phase"]
    assert sum(phase["median"] for phase in result["phases"]) == pytest.approx(result["total_s"]["median"])


def test_an_engine_that_does_not_start_says_why(run: Run) -> None:
    ended = run("bench", "startup", "--repeats", "1", "--engine-arg", "max_model_len=99999")
    assert ended.code == 1
    assert "the engine could not be started: " in ended.error
    assert "max_model_len" in ended.error
