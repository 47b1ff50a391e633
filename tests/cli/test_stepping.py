"""Stepping through a run in a real terminal: keys go in, and the screen is read as a person would see it."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyte
import pytest

from minivllm.entrypoints.cli.map_view import KINDS
from minivllm.entrypoints.cli.stepping import Stepper
from minivllm.scenarios.definition import LOGS
from minivllm.trace.reader import LogError
from tests.cli.conftest import Run
from tests.trace.workloads import mixed_workload, simulated_log

LOG = LOGS / "kv-pressure.jsonl.gz"
PATIENCE_SECONDS = 60.0
RIGHT, LEFT, HOME, END, DOWN = "\x1b[C", "\x1b[D", "\x1b[H", "\x1b[F", "\x1b[B"


class Terminal:
    """A child process in a pseudo-terminal, and what its screen shows."""

    def __init__(self, args: list[str], columns: int = 100, lines: int = 40, **environ: str) -> None:
        self.screen = pyte.Screen(columns, lines)
        self._stream = pyte.ByteStream(self.screen)
        self.raw = b""
        self.keys, child = pty.openpty()
        _set_size(self.keys, columns, lines)
        self.modes_before = termios.tcgetattr(self.keys)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "minivllm", *args],
            stdin=child,
            stdout=child,
            stderr=child,
            env={**os.environ, "TERM": "xterm-256color", **environ},
            start_new_session=True,
        )
        os.close(child)

    def press(self, keys: str) -> None:
        os.write(self.keys, keys.encode())

    def resize(self, columns: int, lines: int) -> None:
        self.screen.resize(lines, columns)
        _set_size(self.keys, columns, lines)
        os.kill(self.process.pid, signal.SIGWINCH)

    def until(self, seen: Callable[[list[str]], bool]) -> list[str]:
        """The screen's lines as soon as they show something."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            lines = [line.rstrip() for line in self.screen.display]
            if seen(lines):
                return lines
            if not self._read(deadline):
                break
        raise AssertionError("not seen; the screen:\n" + "\n".join(self.screen.display))

    def shows(self, *texts: str) -> list[str]:
        return self.until(lambda lines: all(any(text in line for line in lines) for text in texts))

    def end(self) -> int:
        """The exit code, after all that is written has been read."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while self._read(deadline):
            pass
        return self.process.wait(PATIENCE_SECONDS)

    def _read(self, deadline: float) -> bool:
        ready, _, _ = select.select([self.keys], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            return False
        try:
            more = os.read(self.keys, 65536)
        except OSError:  # the child has closed its side
            return False
        self.raw += more
        self._stream.feed(more)
        return bool(more)

    def check_restored(self) -> None:
        """The terminal is as it was: its modes, its first screen, its cursor, its wrapping."""
        # Linux forgets the modes of a terminal that nobody has open, and gives those it began with.
        assert termios.tcgetattr(self.keys)[3] == self.modes_before[3]
        for switched_on, switched_off in (
            (b"\x1b[?1049h", b"\x1b[?1049l"),
            (b"\x1b[?25l", b"\x1b[?25h"),
            (b"\x1b[?7l", b"\x1b[?7h"),
        ):
            assert self.raw.rfind(switched_off) > self.raw.rfind(switched_on) >= 0


def _set_size(descriptor: int, columns: int, lines: int) -> None:
    fcntl.ioctl(descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))


@pytest.fixture
def terminal() -> Iterator[Callable[..., Terminal]]:
    started: list[Terminal] = []

    def start(*args: str, **settings: object) -> Terminal:
        started.append(Terminal(["trace", "--step", *args], **settings))  # type: ignore[arg-type]
        return started[-1]

    yield start
    for one in started:
        one.process.kill()
        one.process.wait()
        os.close(one.keys)


def test_keys_go_forwards_and_backwards(terminal: Callable[..., Terminal]) -> None:
    screen = terminal("--log", str(LOG))
    screen.shows("iteration 0 of 0-21", "R0 entered: 11 tokens computed now", "PLAN")
    screen.press(RIGHT + "n n")
    screen.shows("iteration 4 of 0-21")
    screen.press(LEFT + "p")
    screen.shows("iteration 2 of 0-21", "R0 decoded one token: 13 known")
    screen.press(END)
    screen.shows("iteration 21 of 0-21", "Nothing is left to compute")
    screen.press(RIGHT)
    screen.shows("this is the last iteration")
    screen.press(HOME)
    screen.shows("iteration 0 of 0-21", "R0 arrived")
    screen.press("g7\r")
    screen.shows("iteration 7 of 0-21", "R2 was preempted for R1")
    screen.press("q")
    assert screen.end() == 0
    screen.check_restored()


def test_keys_change_the_map_and_find_a_request(terminal: Callable[..., Terminal]) -> None:
    screen = terminal("--log", str(LOG), "--iteration", "8", "--map", "state")
    screen.shows("iteration 8 of 0-21", "STATE after iteration 8", "POOL")
    for key, title in (("1", "process map · iteration 8"), ("3", "hot path · iteration 8"), ("5", "PLAN")):
        screen.press(key)
        screen.shows(title, "R2 waits")
    screen.press("\t")
    screen.shows("process map")
    screen.press("4")
    screen.shows("iteration 8 of 0-21", "TIMELINE")
    screen.press("2/R2\r")
    screen.shows("iteration 9 of 0-21", "R2 is in this iteration")
    screen.press("/R9\r")
    screen.shows("this run has no request 'R9'", "iteration 9 of")
    screen.press("?")
    screen.shows("find a request", "go to an iteration")
    screen.press("?")
    screen.shows("STATE after iteration 9")
    screen.press("\x1b")
    assert screen.end() == 0


def test_it_draws_anew_when_the_window_changes(terminal: Callable[..., Terminal]) -> None:
    screen = terminal("--log", str(LOG), "--iteration", "7")
    screen.shows("R2 was preempted for R1: 1 block was needed, 0 free; 14 computed tokens are lost.")
    screen.resize(60, 12)
    screen.shows("1-5 map  / find", "  computed tokens are lost.", "of 0-21   5 plan")
    screen.until(lambda lines: len(lines) == 12 and all(len(line) <= 60 for line in lines))
    screen.press(DOWN * 4)
    screen.until(lambda lines: not any("kv-pressure ·" in line for line in lines))
    screen.resize(30, 5)
    screen.shows("too small: 40 x 6")
    screen.resize(100, 40)
    screen.shows("R2 was preempted for R1: 1 block was needed, 0 free; 14 computed tokens are lost.", "PLAN")
    screen.press("\x03")
    assert screen.end() == 0
    screen.check_restored()


def test_a_signal_that_ends_it_leaves_the_terminal_as_it_was(terminal: Callable[..., Terminal]) -> None:
    screen = terminal("--log", str(LOG))
    screen.shows("iteration 0 of 0-21")
    screen.process.terminate()
    assert screen.end() == 128 + signal.SIGTERM
    screen.check_restored()


def test_it_speaks_the_language_of_the_environment(terminal: Callable[..., Terminal]) -> None:
    screen = terminal("--log", str(LOG), "--iteration", "7", LC_ALL="zh_CN.UTF-8")
    # The screen gives a wide character two cells, the second of them empty.
    screen.until(lambda lines: any("被抢占" in line.replace(" ", "") for line in lines))


def test_a_new_run_is_stepped_through_and_its_log_is_named(terminal: Callable[..., Terminal], tiny_model: Path) -> None:
    screen = terminal("Once", "-m", str(tiny_model), "--max-tokens", "3", columns=120)
    screen.shows("iteration 0 of 0-3")
    screen.press("q")
    assert screen.end() == 0
    assert b"log: " in screen.raw[screen.raw.rfind(b"\x1b[?1049l") :]


def test_without_a_terminal_it_is_refused(run: Run) -> None:
    ended = run("trace", "--step", "--log", LOG)
    assert ended.code == 3
    assert "--step needs a terminal" in ended.error
    assert ended.out == ""


@pytest.mark.parametrize(
    ("args", "named"),
    [
        (["--json"], "leave out --json"),
        (["--width", "80"], "leave out --width"),
        (["--ascii"], "leave out --ascii"),
    ],
    ids=str,
)
def test_what_contradicts_stepping_is_named(run: Run, args: list[str], named: str) -> None:
    ended = run("trace", "--step", "--log", LOG, *args)
    assert ended.code == 2
    assert named in ended.error


@pytest.mark.parametrize(
    ("args", "named"),
    [
        (["Once"], "leave out prompts and --scenario"),
        (["-s", "hello"], "leave out prompts and --scenario"),
        (["--check"], "leave out --check"),
        (["--max-tokens", "3"], "leave out --max-tokens"),
        (["--mp"], "leave out --mp"),
        ([], "minivllm map plan --log"),
    ],
    ids=str,
)
def test_a_recorded_run_is_not_run_again(
    run: Run, args: list[str], named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("minivllm.entrypoints.cli.terminal.is_terminal", lambda: True)
    step = ["--step"] if args else []
    ended = run("trace", *step, "--log", LOG, *args)
    assert ended.code == 2
    assert named in ended.error


def test_any_size_is_filled_exactly() -> None:
    stepper = Stepper(LOG, "en")
    for kind in KINDS:
        stepper.kind = kind
        for width, height in ((40, 6), (79, 24), (80, 24), (160, 50)):
            for number in (0, 7, 21):
                stepper.go(number)
                picture = stepper.picture(width, height)
                assert len(picture) == height
                assert not any("\n" in line for line in picture)


def test_backwards_shows_what_forwards_did() -> None:
    stepper = Stepper(simulated_log(mixed_workload()), "en")
    there, back = [], []
    for number in stepper.numbers:
        stepper.go(number)
        there.append(stepper.picture(100, 200))
    again = Stepper(simulated_log(mixed_workload()), "en")
    for number in reversed(again.numbers):
        again.go(number)
        back.append(again.picture(100, 200))
    assert there == back[::-1]
    assert len({"\n".join(picture) for picture in there}) == len(there)


def test_a_search_goes_on_from_here_and_then_from_the_beginning() -> None:
    stepper = Stepper(simulated_log(mixed_workload()), "en")
    stepper.find("F")
    found = [stepper.iteration]
    assert found[0] >= 90, "F arrives before iteration 90"
    while stepper.iteration < stepper.numbers[-1] and len(found) < 20:
        for key in ("/", "enter"):
            stepper.press(key)
        if stepper.iteration <= found[-1]:
            break
        found.append(stepper.iteration)
    assert stepper.iteration == found[0], "behind the last one it begins anew"
    with pytest.raises(ValueError, match="no request 'G'; it has"):
        stepper.find("G")


def test_a_number_that_is_none_and_one_that_is_too_large_are_told() -> None:
    stepper = Stepper(LOG, "en")
    for answer, told in (("x", "a number, 0 to 21"), ("99", "no iteration 99: this run has 0 to 21")):
        for key in ("g", *answer, "enter"):
            stepper.press(key)
        assert told in stepper.picture(100, 30)[-1]
        assert stepper.iteration == 0
    for key in ("g", "1", "backspace", "5", "enter"):
        stepper.press(key)
    assert stepper.iteration == 5
    stepper.press("z")
    assert "'z' does nothing here" in stepper.picture(100, 30)[-1]


def test_a_log_without_iterations_is_told(tmp_path: Path) -> None:
    path = tmp_path / "empty.jsonl"
    path.write_bytes(b'{"schema":"minivllm.log/2"}\n')
    with pytest.raises(LogError, match="has no iterations"):
        Stepper(path, "en")
