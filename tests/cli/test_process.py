"""What only a process of its own shows: what is imported, how an interrupt and a closed pipe end it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from minivllm.trace.reader import LogError, read_log

_MAIN = "from minivllm.entrypoints.cli.main import main; sys.exit(main(sys.argv[1:]))"
_BLOCKED = """
import sys
for name in ("torch", "numpy", "tokenizers", "transformers", "safetensors", "triton"):
    sys.modules[name] = None
"""


def start(code: str, *args: object, **options: object) -> subprocess.Popen[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    # Whoever started these tests may ignore interrupts, as a shell does for jobs in the background; that is inherited.
    code = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n" + code
    command = [sys.executable, "-c", code, *map(str, args)]
    options = {"stderr": subprocess.PIPE, **options}
    return subprocess.Popen(command, env=environment, text=True, **options)  # type: ignore[call-overload, no-any-return]


LIGHT = [
    ["--help"],
    ["trace", "--help"],
    ["scenario", "list"],
    ["scenario", "show", "hello"],
    ["model", "list"],
    ["map", "plan", "--log", "LOG"],
    ["simulate", "WORKLOAD"],
    ["trace", "--nosuch"],
    ["map", "plan", "-s", "nosuch"],
]


@pytest.mark.parametrize("args", LIGHT, ids=" ".join)
def test_what_runs_no_model_imports_no_torch(args: list[str], recorded_logs: Path, workload: Path) -> None:
    places = {"LOG": str(recorded_logs / "hello.jsonl.gz"), "WORKLOAD": str(workload)}
    process = start(_BLOCKED + _MAIN, *[places.get(arg, arg) for arg in args], stdout=subprocess.PIPE)
    out, err = process.communicate()
    expected = {"--nosuch": 2, "nosuch": 1}.get(args[-1], 0)
    assert process.returncode == expected, err
    assert bool(out) == (expected == 0)


def test_importing_the_package_imports_no_torch() -> None:
    process = start(_BLOCKED + "import minivllm", stdout=subprocess.PIPE)
    assert process.communicate() == ("", "")
    assert process.returncode == 0


def test_a_command_that_needs_torch_says_so_where_there_is_none(tiny_model: Path) -> None:
    process = start(_BLOCKED + _MAIN, "generate", "-m", tiny_model, "Once", stdout=subprocess.PIPE)
    _, err = process.communicate()
    assert process.returncode == 3
    assert "Traceback" not in err
    assert "run: pip install" in err


@pytest.mark.parametrize("args", [["map", "plan", "--log", "LOG"], ["scenario", "list"], ["map", "plan", "--ascii"]])
def test_a_reader_that_has_seen_enough_gets_no_traceback(args: list[str], recorded_logs: Path) -> None:
    log = str(recorded_logs / "mixed-batch.jsonl.gz")
    command = [log if arg == "LOG" else arg for arg in args]
    if "--ascii" in command:
        command += ["--log", log]
    read_end, write_end = os.pipe()
    os.close(read_end)
    process = start("import sys;" + _MAIN, *command, stdout=write_end)
    os.close(write_end)
    _, err = process.communicate()
    assert "Traceback" not in err
    assert "BrokenPipe" not in err
    assert process.returncode == 0


@pytest.mark.parametrize("name", ["run.jsonl", "run.jsonl.gz"])
def test_an_interrupt_ends_with_130_and_leaves_a_log_that_can_be_read(
    tiny_model: Path, tmp_path: Path, name: str
) -> None:
    out = tmp_path / name
    args = ["trace", "-m", tiny_model, "--max-tokens", "4000", "--out", out, *[f"Once upon {k}" for k in range(8)]]
    process = start("import sys;" + _MAIN, *args, stdout=subprocess.DEVNULL)
    while process.poll() is None and not (out.exists() and out.stat().st_size > 20_000):
        time.sleep(0.05)
    assert process.poll() is None, "it is still running"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate()
    assert process.returncode == 130
    assert err == f"log: {out}, up to where the run ended\nerror: interrupted\n"
    log = read_log(out)
    assert log.events
    assert not log.truncated


def test_a_run_that_was_killed_leaves_what_it_had_written(tiny_model: Path, tmp_path: Path) -> None:
    out = tmp_path / "run.jsonl"
    args = ["trace", "-m", tiny_model, "--max-tokens", "4000", "--out", out, *[f"Once upon {k}" for k in range(8)]]
    process = start("import sys;" + _MAIN, *args, stdout=subprocess.DEVNULL)
    while process.poll() is None and not (out.exists() and out.stat().st_size > 20_000):
        time.sleep(0.05)
    process.kill()
    process.communicate()
    try:
        assert read_log(out).events
    except LogError as error:
        pytest.fail(str(error))


def interrupted_while(code: str, *args: object, when: str = "WAITING\n") -> tuple[int, str]:
    """Run a program that says when to interrupt it, on stdout; returns its exit code and stderr."""
    process = start(code, *args, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == when
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    return process.returncode, err


_SLOW_IMPORT = """
import sys, time
class Slow:
    def find_spec(self, name, path=None, target=None):
        if name == "{name}":
            print("WAITING", flush=True)
            try:
                time.sleep(20)
            except BaseException:
                pass  # as some libraries do
sys.meta_path.insert(0, Slow())
from minivllm.__main__ import main
sys.argv[0] = "minivllm"
sys.exit(main())
"""


@pytest.mark.parametrize("name", ["typer", "minivllm.entrypoints.cli.trace", "minivllm.scenarios.run", "torch"])
def test_an_interrupt_while_the_program_is_loaded_ends_with_130(name: str, tiny_model: Path) -> None:
    ended = interrupted_while(_SLOW_IMPORT.format(name=name), "trace", "-m", tiny_model, "Once")
    assert ended == (130, "error: interrupted\n")


def test_an_interrupt_at_the_very_end_says_nothing() -> None:
    code = """
import atexit, sys, time
def wait():
    print("WAITING", flush=True)
    time.sleep(20)
atexit.register(wait)
from minivllm.__main__ import main
sys.argv[1:] = ["map", "plan", "-s", "nosuch"]
sys.exit(main())
"""
    code, err = interrupted_while(code)
    assert code == -signal.SIGINT
    assert err.count("\n") == 1
    assert "interrupted" not in err


def test_the_command_ends_its_process_when_all_has_been_said() -> None:
    """It leaves out only what takes long: threads are waited for, exit handlers run, and nothing stays in a buffer."""
    code = """
import atexit, sys, threading, time
atexit.register(print, "LAST", end="")
threading.Thread(target=lambda: (time.sleep(0.5), print("THREAD", end=" "))).start()
from minivllm.__main__ import command
command()
"""
    process = start(code, "map", "plan", "-s", "nosuch", stdout=subprocess.PIPE)
    assert process.communicate()[0] == "THREAD LAST"
    assert process.returncode == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device that is always full")
@pytest.mark.parametrize("option", ["--version", "--help"])
def test_a_full_disk_is_told_in_one_line(option: str) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-um", "minivllm", option], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert (done.returncode, done.stderr) == (1, "error: the output cannot be written: No space left on device\n")


def test_ignored_interrupts_stay_ignored() -> None:
    code = """
import signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
from minivllm.__main__ import main
main()
print(signal.getsignal(signal.SIGINT) is signal.SIG_IGN)
"""
    process = start(code, "--version", stdout=subprocess.PIPE)
    assert process.communicate()[0].endswith("True\n")


def test_the_package_runs_as_a_module() -> None:
    done = subprocess.run([sys.executable, "-m", "minivllm", "--version"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("minivllm ")


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_are_no_fault(closed: str, recorded_logs: Path) -> None:
    log = recorded_logs / "hello.jsonl.gz"
    command = f"{sys.executable} -m minivllm map plan --log {log} {closed}"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True)
    told = [line for line in done.stderr.splitlines() if not line.startswith("next: ")]
    assert (done.returncode, told) == (0, [])
    assert bool(done.stdout) == (">&-" not in closed.replace("2>&-", ""))


@pytest.mark.parametrize(("columns", "width"), [("0", 80), ("", 80), ("20", 40), ("60", 60)])
def test_a_screen_of_no_width_is_drawn_for_all_the_same(recorded_logs: Path, columns: str, width: int) -> None:
    environment = {**os.environ, "COLUMNS": columns, "PYTHONUTF8": "1"}
    command = [sys.executable, "-m", "minivllm", "map", "plan", "--log", str(recorded_logs / "hello.jsonl.gz")]
    out = subprocess.run(command, env=environment, capture_output=True, text=True, encoding="utf-8").stdout
    assert max(map(len, out.splitlines())) == width
