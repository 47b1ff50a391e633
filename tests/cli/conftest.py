"""Runs the command line in this process, in an empty folder, with a tiny model under the built-in one's name."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from minivllm.entrypoints.cli.main import main
from minivllm.models import model_zoo
from minivllm.scenarios import definition, registry
from minivllm.scenarios.run import run_scenario
from tests.trace.workloads import mixed_document


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one document on stdout."""
        return json.loads(self.out)

    @property
    def error(self) -> str:
        """The one line that says what is wrong."""
        lines = [line for line in self.err.splitlines() if line.startswith("error: ")]
        assert len(lines) == 1, self.err
        assert "Traceback" not in self.err
        return lines[0].removeprefix("error: ")


Run = Callable[..., Ended]


@pytest.fixture(scope="session")
def recorded_logs(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the logs that `scenario record` would ship."""
    folder = tmp_path_factory.mktemp("recorded")
    for scenario in registry.all_scenarios():
        path = folder / f"{scenario.name}.jsonl.gz"
        run_scenario(scenario, {"model": str(tiny_model)}, log_path=path, logical=True)
    return folder


@pytest.fixture(autouse=True)
def own_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_model: Path, recorded_logs: Path) -> Path:
    """An empty working folder, an empty home, and tiny models under the known names."""
    monkeypatch.setenv("MINIVLLM_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("MINIVLLM_DEBUG", "")  # so that what --debug sets is undone
    monkeypatch.setenv("TERMINAL_WIDTH", "80")
    monkeypatch.setenv("COLUMNS", "80")
    for name in ("FORCE_COLOR", "GITHUB_ACTIONS", "PY_COLORS", "LC_ALL", "LC_MESSAGES", "LANG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(model_zoo, "local_path", lambda info: tiny_model)
    monkeypatch.setattr(definition, "LOGS", recorded_logs)
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    return work


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Run:
    """Runs `minivllm ARGS`."""

    def run_command(*args: object) -> Ended:
        capfd.readouterr()
        code = main([str(arg) for arg in args])
        return Ended(code, *capfd.readouterr())

    return run_command


@pytest.fixture
def workload(own_place: Path) -> Path:
    """workload.json in the working folder."""
    path = own_place / "workload.json"
    path.write_text(json.dumps(mixed_document(), indent=1))
    return path
