"""Owns running an exercise's checks by pytest, in this process, and what is said of each.

python -m minivllm.exercises.judge NAME FILE RUNS REPORT
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import msgspec
import pytest

from minivllm.exercises.bench import Bench, WrongError
from minivllm.exercises.course import Exercise, find_exercise
from minivllm.exercises.learner_file import LearnerFileError, OutOfTimeError, load
from minivllm.exercises.report import MAX_OUTPUT, Report, TaskResult, new_report

# Of this process's own work, for one task. A check takes a tenth of it.
TASK_SECONDS = 5.0
# Memory that the learner's code may ask for.
_MAX_BYTES = 12 << 30


def judge(exercise: Exercise, file: Path, runs: Path) -> Report:
    """Hold a file against the checks of an exercise.

    Args:
        exercise: The exercise.
        file: The learner's file, or the starter or solution.
        runs: Folder for the logs of its runs.
    """
    try:
        return judge_bench(open_bench(exercise, file, runs))
    except LearnerFileError as error:
        report = new_report(exercise, file)
        report.problem = str(error)
        return report


def open_bench(exercise: Exercise, file: Path, runs: Path) -> Bench:
    """Import a file. Arguments: see `judge`.

    Raises:
        LearnerFileError: It cannot be used.
    """
    try:
        with time_limit(TASK_SECONDS):
            return Bench(exercise, load(exercise, file), file, runs)
    except OutOfTimeError:
        what = f"{file.name} never ends when it is imported: is there a loop outside of functions?"
        raise LearnerFileError(what) from None


def judge_bench(bench: Bench) -> Report:
    """Hold an imported file against the checks of its exercise."""
    exercise = bench.exercise
    report = new_report(exercise, bench.file)
    results = report.tasks
    start = time.monotonic()
    plugin = _Reporter(bench, results)
    with _plain_pytest():
        code = pytest.main(_arguments(exercise), plugins=[plugin])
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        report.problem = f"the checks of {exercise.name} cannot be run (pytest ended with {int(code)})"
    report.passed = all(result.status == "pass" for result in results)
    report.seconds = time.monotonic() - start
    return report


@contextmanager
def _plain_pytest() -> Iterator[None]:
    """Whoever calls may be in a run of pytest already: its options and plugins would run here, too."""
    before = dict(os.environ)
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    for name in ("PYTEST_ADDOPTS", "PYTEST_PLUGINS"):
        os.environ.pop(name, None)
    try:
        yield
    finally:
        for name in ("PYTEST_ADDOPTS", "PYTEST_PLUGINS", "PYTEST_DISABLE_PLUGIN_AUTOLOAD"):
            os.environ.pop(name, None)
            if name in before:
                os.environ[name] = before[name]


def _arguments(exercise: Exercise) -> list[str]:
    """Nothing of the learner's surroundings counts: no configuration, no conftest.py, no cache, no other plugins."""
    # The last two would look for what was left over, by collecting garbage again and again.
    without = ("cacheprovider", "terminal", "unraisableexception", "threadexception")
    quiet = [word for name in without for word in ("-p", f"no:{name}")]
    quiet += ["--noconftest", "--import-mode=importlib", "--assert=plain"]
    return [*quiet, "-c", os.devnull, "--rootdir", str(exercise.path), "--capture=sys", str(exercise.checks)]


class _Reporter:
    """A plugin of pytest: gives checks their `bench`, and notes how each ended."""

    def __init__(self, bench: Bench, results: list[TaskResult]) -> None:
        self._bench = bench
        self._results = {result.name: result for result in results}

    @pytest.fixture
    def bench(self) -> Bench:
        """What a check works with."""
        return self._bench

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Iterator[None]:
        self._bench.last_call = ""
        with time_limit(TASK_SECONDS):
            return (yield)  # type: ignore[return-value]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
        report: pytest.TestReport = yield  # type: ignore[assignment,misc]
        if report.when == "call" or report.failed:
            result = self._results[item.name]
            result.status = "pass"
            if call.excinfo is not None:
                self._describe(result, call.excinfo.value, item)
            printed = report.capstdout.strip()
            result.output = printed[:MAX_OUTPUT] + ("..." if len(printed) > MAX_OUTPUT else "") if printed else None
        return report  # type: ignore[return-value]

    def _describe(self, result: TaskResult, error: BaseException, item: pytest.Item) -> None:
        if isinstance(error, OutOfTimeError):
            error = self._bench.out_of_time(error, result.title)
        if not isinstance(error, WrongError):
            call = self._bench.last_call or f"the check {result.name}"
            error = self._bench.raised(error, call, nobody="What your part gave is of another kind than it should be.")
        if error.is_endless:
            item.session.shouldfail = "out of time"  # whoever comes next would run into the same loop
        result.status = "error" if error.is_error else "fail"
        result.message = error.message or None
        result.call, result.expected, result.got = error.call or None, error.expected or None, error.got or None
        result.place = None if error.place is None else str(error.place)
        result.map = error.map


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise OutOfTimeError in the line that runs when this process has worked so long. No limit on Windows.

    Work is counted, not time: a busy machine makes nothing fail.
    """
    if not hasattr(signal, "setitimer"):
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        raise OutOfTimeError

    before = signal.signal(signal.SIGPROF, stop)
    # Again and again: the learner's code may catch the first one.
    signal.setitimer(signal.ITIMER_PROF, seconds, 1.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def main(arguments: list[str]) -> int:
    """Judge one file, and write the report."""
    name, file, runs, report = arguments
    sys.dont_write_bytecode = True
    _limit_memory()
    result = judge(find_exercise(name), Path(file), Path(runs))
    Path(report).write_bytes(msgspec.json.encode(result))
    return 0


def judge_aside(exercise: Exercise, file: Path) -> Report:
    """The same with runs that nobody keeps."""
    with tempfile.TemporaryDirectory() as folder:
        return judge(exercise, file, Path(folder))


def _limit_memory() -> None:
    try:
        import resource
    except ModuleNotFoundError:  # Windows
        return
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    limit = _MAX_BYTES if hard == resource.RLIM_INFINITY else min(_MAX_BYTES, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
