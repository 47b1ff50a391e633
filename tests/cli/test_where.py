"""`minivllm where`: one command from a name to its place, a route, the tree, or the drift of a vLLM."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from rich.cells import cell_len

from minivllm.sourcemap.locate import PACKAGE
from minivllm.sourcemap.routes import ROUTES
from tests.cli.conftest import Run
from tests.sourcemap.fake_vllm import pinned_files, write_tree


def test_a_match_as_json(run: Run) -> None:
    ended = run("where", "slot_mapping", "--json")
    assert (ended.code, ended.err) == (0, "")
    document = ended.json
    assert document["schema"] == "minivllm.where/1"
    first = document["matches"][0]
    assert first["concept"] == "slot mapping"
    assert (first["layer"], first["process"], first["plane"], first["owner"]) == ("runner", "worker", "data", "worker")
    ours = first["ours"]
    assert ours["symbol"] == "minivllm.worker.prepared_batch:PreparedBatch.slot_mapping"
    line = (PACKAGE.parent / ours["path"]).read_text(encoding="utf-8").splitlines()[ours["line"] - 1]
    assert "slot_mapping" in line
    assert first["vllm"] == {
        "0.27.1": "vllm/v1/worker/block_table.py::BlockTable.compute_slot_mapping",
        "0.32.0": "vllm/v1/worker/gpu/block_table.py::BlockTables.compute_slot_mappings",
    }
    assert isinstance(first["note"], str)


def test_what_is_not_built_is_said_to_be(run: Run) -> None:
    ended = run("where", "tensor parallel")
    assert ended.code == 0
    assert "not built yet" in ended.out
    assert "ColumnParallelLinear" in ended.out
    match = run("where", "tensor parallel", "--json").json["matches"][0]
    assert (match["ours"], match["layer"]) == (None, "not built yet")


def test_nothing_found_ends_with_the_nearest_names(run: Run) -> None:
    ended = run("where", "shedjul wun stepp")
    assert (ended.code, ended.out) == (1, "")
    assert ended.error.startswith("nothing on the map is called 'shedjul wun stepp'; nearest: ")
    assert "schedule one step" in ended.error
    document = run("where", "qqqxx", "--json")
    assert document.code == 1
    assert document.json["matches"] == []
    assert document.json["suggestions"]


@pytest.mark.parametrize("width", [40, 60, 80, 120, 160])
@pytest.mark.parametrize("ascii_only", [False, True])
def test_a_match_fits_in_every_width(run: Run, width: int, ascii_only: bool) -> None:
    flags = ["--ascii"] if ascii_only else []
    ended = run("where", "KV capacity gate", "--width", width, *flags)
    lines = ended.out.splitlines()
    assert all(cell_len(line) <= width for line in lines)
    whole = re.sub(r"\s+", "", ended.out)
    assert re.search(r"minivllm/core/schedule_running\.py:\d+", whole)
    assert "vllm/v1/core/sched/scheduler.py::Scheduler.schedule" in whole
    assert ended.out.isascii() or not ascii_only
    assert lines[-1].startswith("next: minivllm ")


def test_places_are_links_on_a_terminal_only(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "\x1b" not in run("where", "block pool").out
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    out = run("where", "block pool").out
    assert f"{(PACKAGE / 'core' / 'block_pool.py').as_uri()}#L" in out
    assert "https://github.com/vllm-project/vllm/blob/v0.27.1/vllm/v1/core/block_pool.py" in out


@pytest.mark.parametrize("name", ROUTES)
def test_a_route(run: Run, name: str) -> None:
    document = run("where", "--path", name, "--json").json
    assert document["schema"] == "minivllm.where-path/1"
    assert len(document["stops"]) == len(ROUTES[name].stops)
    for stop in document["stops"]:
        assert stop["question"]
        assert (PACKAGE.parent / stop["ours"]["path"]).exists()
        assert stop["vllm"]["0.27.1"].startswith("vllm/")
        assert f'-c "b {stop["breakpoint"]}"' in stop["pdb"]
        assert stop["breakpoint"] in document["pdb"]
    drawn = run("where", "--path", name)
    assert drawn.out.splitlines()[-1] == f"next: {document['stops'][0]['pdb']}", "a command is one line, to be copied"
    assert document["pdb"] in drawn.out.splitlines()


def test_a_breakpoint_of_a_route_stops_there(run: Run, tmp_path: Path) -> None:
    # The command itself with another program behind it: one that needs no model.
    stop = run("where", "--path", "step", "--json").json["stops"][0]
    program = tmp_path / "program.py"
    program.write_text(
        "from minivllm.config import CacheConfig, SchedulerConfig\n"
        "from minivllm.core.scheduler import Scheduler\n"
        "Scheduler(SchedulerConfig(), CacheConfig(num_gpu_blocks=8)).schedule()\n"
    )
    command = [sys.executable, "-m", "pdb", "-c", f"b {stop['breakpoint']}", "-c", "c", str(program)]
    ended = subprocess.run(command, input="p self.running\nq\n", capture_output=True, text=True, check=False)
    assert f"{stop['breakpoint'].rpartition(':')[0]}({stop['breakpoint'].rpartition(':')[2]})schedule()" in ended.stdout
    assert "[]" in ended.stdout


@pytest.mark.parametrize("width", [50, 90, 160])
def test_the_tree(run: Run, width: int) -> None:
    ended = run("where", "--tree", "--width", width)
    assert (ended.code, ended.err) == (0, "")
    assert all(cell_len(line) <= width for line in ended.out.splitlines())
    for text in ("core/", "scheduler.py", "engine core", "frontend", "worker"):
        assert text in ended.out
    assert ("vllm/v1/core/sched/scheduler.py" in ended.out) == (width >= 140)
    entries = run("where", "--tree", "--json").json["tree"]
    assert {"path", "folder", "layer", "process", "owns", "vllm"} == set(entries[0])


def test_verify_says_what_is_not_there_and_ends_with_one(run: Run, tmp_path: Path) -> None:
    files = pinned_files()
    tree = write_tree(tmp_path / "pinned", files, "0.27.1")
    ended = run("where", "--verify", "--vllm", tree)
    assert (ended.code, ended.err) == (0, "")
    assert re.match(r"vLLM 0\.27\.1 against the map of 0\.27\.1: \d+ ok · 0 moved · 0 renamed · 0 gone\n", ended.out)

    scheduler = "vllm/v1/core/sched/scheduler.py"
    files[scheduler] = files[scheduler].replace("_preempt_request", "_preempt_running_request")
    files["vllm/v1/core/pool.py"] = files.pop("vllm/v1/core/block_pool.py")
    newer = write_tree(tmp_path / "newer", files, "0.28.0")
    ended = run("where", "--verify", "--vllm", newer / "vllm", "--ascii", "--width", 60)
    assert ended.code == 1
    assert re.match(r"vLLM 0\.28\.0 has drifted from 0\.27\.1: \d+ of \d+ symbols", ended.error)
    assert f"renamed {scheduler}::Scheduler._preempt_request\n" in ended.out
    assert f"maybe {scheduler}::Scheduler._preempt_running_request\n" in ended.out
    assert "now vllm/v1/core/pool.py::BlockPool.touch:" in ended.out
    assert ended.out.isascii()

    document = run("where", "--verify", "--vllm", newer, "--json")
    assert document.code == 1
    counts = {name: document.json[name] for name in ("ok", "moved", "renamed", "gone")}
    assert sum(counts.values()) == len(document.json["rows"])
    assert (counts["renamed"], counts["gone"], document.json["version"]) == (1, 0, "0.28.0")
    assert counts["moved"] > 5


def test_verify_without_a_vllm(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    ended = run("where", "--verify")
    assert ended.code == 3
    assert "pip download" in ended.error
    ended = run("where", "--verify", "--vllm", tmp_path)
    assert ended.code == 1
    assert "holds no folder vllm/" in ended.error


def test_one_question_at_a_time(run: Run) -> None:
    for args in (
        ["x", "--tree"],
        ["--tree", "--verify"],
        ["--path", "kv", "x"],
        ["x", "--vllm", "y"],
        ["--path", "nothing"],
    ):
        ended = run("where", *args)
        assert ended.code == 2, args
        assert ended.error


def test_completion_offers_concepts() -> None:
    from minivllm.entrypoints.cli.where import complete_concept

    assert "token budget" in complete_concept("token")
    assert "tensor parallel" in complete_concept("tensor")
