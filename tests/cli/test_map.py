"""`minivllm map`: every map in every form, from a log alone, and one line for what cannot be."""

from __future__ import annotations

import gzip
import json
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len

from minivllm.entrypoints.cli import common
from minivllm.scenarios import definition
from tests.cli.conftest import Run
from tests.maps.hand_made import gpu_log

KINDS = ["process", "state", "hot", "timeline", "plan"]
KEYS: dict[str, set[str]] = {
    "process": {"processes", "messages"},
    "state": {"iterations"},
    "hot": {"steps", "stages", "tree", "sync_points", "latency"},
    "timeline": {"iterations", "requests"},
    "plan": {"iterations", "requests", "violations"},
}


@pytest.fixture
def wall_log(own_place: Path) -> Path:
    """A log with clocks, of three steps on a GPU."""
    import msgspec

    log = gpu_log()
    path = own_place / "gpu.jsonl"
    events = list(map(msgspec.json.encode, log.events))
    end = json.dumps({"end": {"events": len(events), "dropped": 0, "index": []}}).encode()
    path.write_bytes(b"\n".join([msgspec.json.encode(log.header), *events, end, b""]))
    return path


@pytest.mark.parametrize("kind", KINDS)
def test_every_map_is_one_json_document(run: Run, kind: str) -> None:
    ended = run("map", kind, "-s", "mixed-batch", "--format", "json")
    assert ended.code == 0, ended.err
    assert ended.json["schema"] == f"minivllm.map-{kind}/1"
    assert set(ended.json) >= KEYS[kind] | {"log"}
    assert run("map", kind, "-s", "mixed-batch", "--json").out == ended.out


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("width", [40, 60, 80, 120, 160])
def test_every_map_keeps_to_its_width(run: Run, kind: str, width: int) -> None:
    for more in ([], ["--ascii"]):
        ended = run("map", kind, "-s", "mixed-batch", "--iteration", "12:14", "--width", width, *more)
        assert ended.code == 0, ended.err
        assert max(map(cell_len, ended.out.splitlines())) <= width
        assert ended.out.isascii() or not more
        assert ended.err.splitlines()[-1].startswith("next: minivllm map "), "the last line is the next command"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("suffix", ["svg", "html"])
def test_every_map_is_a_file(run: Run, kind: str, suffix: str) -> None:
    path = Path(f"map.{suffix}")
    ended = run("map", kind, "-s", "mixed-batch", "-o", path)
    assert (ended.code, ended.out, ended.err) == (0, "", f"wrote {path}\n")
    text = path.read_text(encoding="utf-8")
    assert "mixed-batch" in re.sub("<[^>]*>", "", text)
    assert "next: minivllm map " in " ".join(re.sub("<[^>]*>", " ", text).split())
    if suffix == "svg":
        ET.fromstring(text)
    piped = run("map", kind, "-s", "mixed-batch", "--format", suffix)
    assert piped.out == text


@pytest.mark.parametrize(("kind", "first"), [("process", "sequenceDiagram"), ("state", "stateDiagram-v2")])
def test_diagrams_are_mermaid(run: Run, kind: str, first: str) -> None:
    ended = run("map", kind, "-s", "hello", "--format", "mermaid")
    assert ended.out.splitlines()[0] == first
    assert run("map", kind, "-s", "hello", "-o", "d.mmd").code == 0
    assert Path("d.mmd").read_text(encoding="utf-8") == ended.out


@pytest.mark.parametrize("kind", ["hot", "timeline", "plan"])
def test_what_has_no_diagram_says_what_to_take(run: Run, kind: str) -> None:
    ended = run("map", kind, "-s", "hello", "--format", "mermaid")
    assert (ended.code, ended.out) == (2, "")
    assert "no Mermaid form" in ended.error
    assert "--format svg" in ended.error


@pytest.mark.parametrize("kind", KINDS)
def test_the_nearest_iteration_and_request_are_named(run: Run, kind: str) -> None:
    ended = run("map", kind, "-s", "hello", "--iteration", "400")
    last = run("map", "plan", "-s", "hello", "--json").json["iterations"][-1]["iteration"]
    assert (ended.code, ended.out) == (1, "")
    assert f"the nearest is {last}" in ended.error
    ended = run("map", kind, "-s", "hello", "--request", "r1")
    assert (ended.code, ended.out) == (1, "")
    assert "it has R0, R1; the nearest is R1" in ended.error


WRONG: dict[str, tuple[list[str], list[str]]] = {
    "two forms": (["--json", "--format", "svg"], ["--json", "--format svg"]),
    "no such form": (["--format", "png"], ["png", "svg"]),
    "no iteration": (["--iteration", "x"], ["--iteration", "N, A:B"]),
    "fresh of a log": (["--fresh", "--log", "some.jsonl"], ["--fresh", "-s"]),
    "fresh of nothing": (["--fresh"], ["--fresh", "-s"]),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_call_is_told_in_one_line(run: Run, name: str) -> None:
    args, words = WRONG[name]
    ended = run("map", "process", *args)
    assert (ended.code, ended.out) == (2, "")
    for word in words:
        assert word in ended.error


def test_a_file_that_cannot_be_written_is_told_before_anything_is_drawn(run: Run, wall_log: Path) -> None:
    for path in ("none/map.svg", ".", wall_log):
        ended = run("map", "process", "--log", wall_log, "-o", path)
        assert (ended.code, ended.out) == (1, "")
        assert "--output" in ended.error
    assert b'"minivllm.log/2"' in wall_log.read_bytes().splitlines()[0], "a log is never written over"


@pytest.mark.parametrize("kind", KINDS)
def test_a_request_picks_what_concerns_it(run: Run, kind: str) -> None:
    document = run("map", kind, "-s", "hello", "--request", "R1", "--json").json
    found: dict[str, Any] = {
        "process": lambda: {i for m in document["messages"] for i in m["requests"] if len(m["requests"]) == 1},
        "state": lambda: {r["request"] for i in document["iterations"][:1] for r in i["requests"]},
        "hot": lambda: {row["request"] for row in document["latency"]["requests"]},
        "timeline": lambda: {row["request"] for row in document["requests"]},
        "plan": lambda: {i["iteration"] for i in document["iterations"]},
    }
    assert found[kind]() >= {3} if kind == "plan" else "R1" in found[kind]()


def test_a_wall_log_shows_its_times(run: Run, wall_log: Path) -> None:
    hot = run("map", "hot", "--log", wall_log, "--json").json
    assert hot["steps"] == 3
    assert hot["latency"]["ttft_ms"] == pytest.approx(5.89)
    assert "◀ waits for the device" in run("map", "hot", "--log", wall_log, "--width", "120").out
    process = run("map", "process", "--log", wall_log, "--json").json
    assert [entry["pid"] for entry in process["processes"]] == [41, 42, 42, None]
    assert "waits for worker" in run("map", "process", "--log", wall_log, "--width", "120").out


def test_a_fresh_run_has_the_times_of_this_machine(run: Run) -> None:
    ended = run("map", "hot", "-s", "hello", "--fresh", "--json")
    assert ended.code == 0, ended.err
    assert ended.json["clock"] == "wall"
    assert ended.json["latency"]["ttft_ms"] > 0
    names: list[str] = []

    def visit(nodes: list[dict[str, Any]]) -> None:
        for node in nodes:
            names.append(node["name"])
            assert node["cpu_ns"] >= node["self_ns"] >= 0
            visit(node["children"])

    visit(ended.json["tree"])
    assert {"EngineCore.step_sync", "Scheduler.schedule", "GPUModelRunner.prepare_inputs"} <= set(names)
    assert [point["src"] for point in ended.json["sync_points"]] == [
        "minivllm.worker.gpu_model_runner:GPUModelRunner.to_host"
    ]
    log = next(line for line in ended.err.splitlines() if line.startswith("log: ")).removeprefix("log: ")
    assert run("map", "hot", "--log", log, "--json").json == ended.json, "a copied log gives the same map"


def test_links_lead_to_the_source_where_a_terminal_has_them(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = run("map", "process", "-s", "hello").out
    assert "\x1b" not in plain
    assert "core/scheduler.py:" in plain
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    linked = run("map", "process", "-s", "hello").out
    assert re.search(r"\x1b]8;[^;]*;file:///[^\x1b]*core/scheduler\.py#L\d+\x1b", linked)
    monkeypatch.setenv("TERM", "dumb")
    assert "\x1b]8" not in run("map", "process", "-s", "hello").out


def test_no_colour_and_no_path_of_this_machine_in_a_file(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    first = run("map", "hot", "-s", "hello", "--format", "svg").out
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "47")
    assert run("map", "hot", "-s", "hello", "--format", "svg").out == first
    assert "file://" not in first


@pytest.mark.parametrize("kind", KINDS)
def test_a_text_file_has_no_colours(run: Run, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert run("map", kind, "-s", "hello", "-o", "map.txt").code == 0
    assert "\x1b" not in Path("map.txt").read_text(encoding="utf-8")
    assert Path("map.txt").read_text(encoding="utf-8") != ""


def test_a_copied_log_gives_the_same_picture(run: Run, tmp_path: Path) -> None:
    copy = tmp_path / "elsewhere.jsonl"
    copy.write_bytes(gzip.decompress((definition.LOGS / "hello.jsonl.gz").read_bytes()))
    for kind in KINDS:
        assert run("map", kind, "--log", copy).out == run("map", kind, "-s", "hello").out


@pytest.mark.parametrize("kind", KINDS)
def test_a_log_that_was_cut_is_drawn_up_to_the_cut(run: Run, kind: str, own_place: Path) -> None:
    whole = gzip.decompress((definition.LOGS / "hello.jsonl.gz").read_bytes())
    (own_place / "cut.jsonl").write_bytes(whole[: len(whole) * 2 // 3])
    ended = run("map", kind, "--log", "cut.jsonl")
    assert ended.code == 0, ended.err
    assert "was cut off" in ended.err


@pytest.mark.parametrize("kind", KINDS)
def test_a_map_needs_no_torch_and_no_engine(kind: str, recorded_logs: Path, own_place: Path) -> None:
    shutil.copy(recorded_logs / "mixed-batch.jsonl.gz", own_place / "run.jsonl.gz")
    code = (
        "import sys\n"
        "for name in ('torch', 'triton', 'zmq', 'minivllm.engine', 'minivllm.worker', 'minivllm.executor'):\n"
        "    sys.modules[name] = None\n"
        "from minivllm.entrypoints.cli.main import main\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    for form in ("rich", "svg", "json"):
        command = [sys.executable, "-c", code, "map", kind, "--log", "run.jsonl.gz", "--format", form]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=own_place)
        assert done.returncode == 0, done.stderr
        assert done.stdout


@pytest.mark.parametrize("iteration", ["5", "5:7", "9:", "last"])
@pytest.mark.parametrize("kind", ["process", "state"])
def test_of_a_large_log_the_iterations_alone_give_the_same_map(
    run: Run, kind: str, iteration: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def document() -> Any:
        return run("map", kind, "-s", "kv-pressure", "--iteration", iteration, "--json").json

    whole = document()["iterations"]
    monkeypatch.setattr(common, "_LARGE_LOG", (0, 0))
    monkeypatch.setattr(common, "read_log", lambda path: pytest.fail("all of it was read"))
    assert without_places(document()["iterations"]) == without_places(whole)


def test_the_nearest_iteration_of_a_large_log_is_named(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(common, "_LARGE_LOG", (0, 0))
    ended = run("map", "state", "-s", "hello", "--iteration", "400")
    assert (ended.code, ended.out) == (1, "")
    assert re.search(r"there is no iteration 400: this run has 0 to (\d+); the nearest is \1", ended.error)


def without_places(value: Any) -> Any:
    """A document without where its events stand in the log."""
    if isinstance(value, dict):
        return {key: without_places(inner) for key, inner in value.items() if key != "seq"}
    return [without_places(inner) for inner in value] if isinstance(value, list) else value
