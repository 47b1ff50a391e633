"""`minivllm export`: each form, to a file, to stdout, to a folder; and what is refused."""

from __future__ import annotations

import gzip
import json
import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from minivllm.export.viewer import MAX_ITERATIONS
from minivllm.trace.reader import read_log
from tests.cli.conftest import Run
from tests.export.test_jsonl import long_log


def test_a_chrome_trace_goes_to_stdout_or_to_a_file(run: Run, own_place: Path) -> None:
    shown = run("export", "chrome", "-s", "hello")
    assert (shown.code, shown.err) == (0, "")
    written = run("export", "chrome", "-s", "hello", "-o", "hello.json")
    assert (written.code, written.out) == (0, "")
    assert written.err.startswith("wrote hello.json")
    assert json.loads((own_place / "hello.json").read_text()) == shown.json


def test_a_part_of_a_chrome_trace(run: Run) -> None:
    part = run("export", "chrome", "-s", "hello", "--iteration", "3:5").json
    steps = {event["name"] for event in part["traceEvents"] if event.get("cat") == "step"}
    assert steps == {"step 3", "step 4", "step 5"}


def test_the_viewer_holds_the_run(run: Run, own_place: Path) -> None:
    assert run("export", "html", "-s", "kv-pressure", "-i", "5", "-o", "kv.html").code == 0
    page = (own_place / "kv.html").read_text()
    data = json.loads(re.search(r'id="data">(.*?)</script>', page)[1])  # type: ignore[index]
    assert data["look_at"] == 5
    assert data["run"]["scenario"] == "kv-pressure"
    plan = run("map", "plan", "-s", "kv-pressure", "--format", "json").json
    assert data["plan"]["iterations"] == plan["iterations"]


def test_a_long_run_is_shown_around_an_iteration(run: Run, own_place: Path) -> None:
    path = long_log("long.jsonl", tokens=400)
    ended = run("export", "html", "--log", path, "--iteration", "300", "-o", "long.html")
    assert (ended.code, "for others: --iteration N" in ended.err) == (0, True)
    data = json.loads(re.search(r'id="data">(.*?)</script>', (own_place / "long.html").read_text())[1])  # type: ignore[index]
    numbers = [entry["iteration"] for entry in data["plan"]["iterations"]]
    assert len(numbers) == MAX_ITERATIONS
    assert 300 in numbers
    assert "of 0 to" in data["notes"][0]


def test_pictures_go_to_one_file_or_to_a_folder(run: Run, own_place: Path) -> None:
    assert run("export", "svg", "-s", "hello", "-i", "3", "-o", "maps/").code == 0
    assert {path.name for path in (own_place / "maps").iterdir()} == {
        f"{name}.svg" for name in ("plan", "state", "process", "hot", "timeline")
    }
    assert run("export", "svg", "-s", "hello", "-i", "3", "--map", "state", "-o", "one.svg").code == 0
    assert (own_place / "one.svg").read_text() == (own_place / "maps" / "state.svg").read_text()
    assert run("export", "svg", "-s", "hello", "-i", "3").out == (own_place / "maps" / "plan.svg").read_text()


def test_mermaid_is_that_of_the_maps(run: Run, own_place: Path) -> None:
    drawn = run("map", "process", "-s", "hello", "-i", "3", "--format", "mermaid")
    assert run("export", "mermaid", "-s", "hello", "-i", "3").out == drawn.out
    assert run("export", "mermaid", "-s", "hello", "-o", "all/").code == 0
    assert (own_place / "all" / "state.mmd").read_text().startswith("stateDiagram-v2")
    assert (own_place / "all" / "process.mmd").read_text().startswith("sequenceDiagram")
    assert run("export", "mermaid", "-s", "hello", "--map", "hot").code == 2


def test_kv_events_as_lines_and_as_bytes(run: Run, own_place: Path) -> None:
    lines = [json.loads(line) for line in run("export", "kv-events", "-s", "kv-pressure").out.splitlines()]
    assert all(set(line) == {"ts", "events"} for line in lines)
    assert run("export", "kv-events", "-s", "kv-pressure", "--format", "msgpack", "-o", "kv.bin").code == 0
    assert msgspec.msgpack.decode((own_place / "kv.bin").read_bytes()) == [[x["ts"], x["events"]] for x in lines]


def test_a_run_without_a_cache_has_no_kv_events_and_says_so(run: Run) -> None:
    ended = run("export", "kv-events", "-s", "thrash")
    assert (ended.code, ended.out) == (0, "")
    assert "prefix caching was off" in ended.err


def test_the_log_itself(run: Run, own_place: Path, recorded_logs: Path) -> None:
    assert run("export", "jsonl", "-s", "hello", "-o", "hello.jsonl").code == 0
    recorded = recorded_logs / "hello.jsonl.gz"
    assert (own_place / "hello.jsonl").read_bytes() == gzip.decompress(recorded.read_bytes())
    assert read_log(own_place / "hello.jsonl").events == read_log(recorded).events


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (("chrome", "-s", "helo"), 1, "hello"),
        (("chrome", "-s", "hello", "-i", "99"), 1, "the nearest is"),
        (("html", "-s", "hello", "-i", "99"), 1, "the nearest is"),
        (("html", "-s", "hello", "-i", "x"), 2, "N or last here, not 'x'"),
        (("html", "-s", "hello", "-i", "3:5"), 2, "N or last here, not '3:5'"),
        (("html", "-s", "hello", "-i", "all"), 2, "N or last here, not 'all'"),
        (("svg", "-s", "hello", "-r", "R9"), 1, "no request 'R9'"),
        (("jsonl", "-s", "hello", "-o", "none/x.jsonl"), 1, "there is no folder none"),
        (("jsonl", "--log", "none.jsonl"), 1, "none.jsonl"),
        (("html", "-s", "hello", "--log", "x"), 2, "exclude each other"),
        (("kv-events", "-s", "hello", "--format", "xml"), 2, "xml"),
    ],
)
def test_what_cannot_be_is_said_on_one_line(run: Run, args: tuple[str, ...], code: int, says: str) -> None:
    ended = run("export", *args)
    assert (ended.code, ended.out) == (code, "")
    assert says in ended.error


def test_a_log_is_never_overwritten_by_what_is_made_of_it(run: Run, own_place: Path) -> None:
    assert run("export", "jsonl", "-s", "hello", "-o", "own.jsonl").code == 0
    ended = run("export", "jsonl", "--log", "own.jsonl", "-o", "own.jsonl")
    assert ended.code == 1
    assert "another argument names the same file" in ended.error


@pytest.mark.parametrize("form", ["svg", "mermaid"])
def test_a_file_is_not_overwritten_where_a_folder_is_named(run: Run, form: str) -> None:
    Path("mine.txt").write_text("mine")
    ended = run("export", form, "-s", "hello", "-o", "mine.txt/")
    assert (ended.code, Path("mine.txt").read_text()) == (1, "mine")
    assert "mine.txt/: this is a file, and stays as it is" in ended.error
    assert run("export", form, "-s", "hello", "-o", "new.folder/").code == 0
    assert len(list(Path("new.folder").iterdir())) > 1


@pytest.mark.parametrize("form", ["chrome", "html", "svg", "mermaid", "kv-events", "jsonl"])
def test_it_needs_no_torch_and_no_engine(form: str) -> None:
    code = (
        "import sys; from minivllm.entrypoints.cli.main import main; "
        f"assert main(['export', {form!r}, '-s', 'hello', '-o', '/dev/null']) == 0; "
        "bad = [m for m in sys.modules if m.split('.')[0] in ('torch', 'numpy') or m.startswith(('minivllm.engine', "
        "'minivllm.worker'))]; assert not bad, bad"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
