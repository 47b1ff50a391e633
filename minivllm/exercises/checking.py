"""Owns checking a learner's file in a process of its own: whatever it does there, this one goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

import msgspec

from minivllm.exercises.course import Exercise
from minivllm.exercises.report import Report, new_report

# Of the clock. The judge stops a loop after seconds of work (`judge.TASK_SECONDS`); this is for what it cannot stop.
_PATIENCE_SECONDS = 120.0


class PytestMissingError(RuntimeError):
    """pytest, which runs the checks, is not installed."""

    is_lacking = True


def check(exercise: Exercise, file: Path, runs: Path) -> Report:
    """Hold the learner's file against the checks of an exercise.

    Args:
        exercise: The exercise.
        file: The learner's file.
        runs: Folder for the logs of its runs.
    """
    if find_spec("pytest") is None:
        raise PytestMissingError("the checks run on pytest, which is not installed; run: pip install pytest")
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "report.json"
        ended, complaints = _run([exercise.name, str(file), str(runs), str(answer)], _environment(exercise))
        if answer.is_file():
            return msgspec.json.decode(answer.read_bytes(), type=Report)
    report = new_report(exercise, file)
    report.problem = _why_no_answer(ended, complaints, file)
    return report


def _run(arguments: list[str], environment: dict[str, str]) -> tuple[int | None, str]:
    """Returns the exit code, None if it had to be stopped, and the last line of what it complained of."""
    # -P: a random.py in the folder where the learner happens to be is not the one that the engine imports.
    command = [sys.executable, "-P", "-m", "minivllm.exercises.judge", *arguments]
    judge = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=environment,
        text=True,
        errors="replace",
        start_new_session=True,  # so that what the learner's code started ends with it
    )
    try:
        _, complaints = judge.communicate(timeout=_PATIENCE_SECONDS)
    except subprocess.TimeoutExpired:
        _end(judge)
        return None, ""
    except BaseException:
        _end(judge)
        raise
    lines = complaints.strip().splitlines()
    return judge.returncode, lines[-1] if lines else ""


def _end(judge: subprocess.Popen[str]) -> None:
    if hasattr(os, "killpg"):
        os.killpg(judge.pid, signal.SIGKILL)
    else:
        judge.kill()
    judge.wait()


def _environment(exercise: Exercise) -> dict[str, str]:
    here = str(Path(__file__).parents[2])
    paths = [here, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    own = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths)}
    if exercise.interpreter:
        own["TRITON_INTERPRET"] = "1"
    return {**without_pytest_options(os.environ), **own}


def without_pytest_options(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment without what its owner wants of other runs of pytest: the plugins for that are not loaded here."""
    return {key: value for key, value in environment.items() if key not in ("PYTEST_ADDOPTS", "PYTEST_PLUGINS")}


def _why_no_answer(ended: int | None, complaint: str, file: Path) -> str:
    if ended is None:
        return f"{file.name} was still running after {_PATIENCE_SECONDS:.0f} seconds, and was stopped"
    if "MemoryError" in complaint:
        return f"{file.name} asked for more memory than it may have; does something grow for ever?"
    how = f"killed by signal {-ended}" if ended < 0 else f"exit code {ended}"
    return f"{file.name} ended the process that checked it ({how}){f': {complaint}' if complaint else ''}"
