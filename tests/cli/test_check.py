"""`check`: one line an invariant, exit 1 with the place where one does not hold, JSON by contract."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from minivllm.analysis.invariants import all_invariants
from tests.cli.conftest import Run


@pytest.fixture
def leaking_log(recorded_logs: Path, tmp_path: Path) -> Path:
    """The log of a run that has lost a block in its first iteration."""
    text = gzip.decompress((recorded_logs / "hello.jsonl.gz").read_bytes()).decode()
    assert '"free_blocks":31' in text
    path = tmp_path / "leaking.jsonl"
    path.write_text(text.replace('"free_blocks":31', '"free_blocks":30', 1))
    return path


def test_a_clean_run_passes(run: Run) -> None:
    ended = run("check", "-s", "hello", "--width", "200")
    assert ended.code == 0
    for rule in all_invariants():
        assert f"{rule.id} {rule.sentence}" in ended.out


def test_the_document_has_the_keys_of_the_contract(run: Run) -> None:
    document = run("check", "-s", "hello", "--json").json
    assert document["schema"] == "minivllm.check/1"
    assert document["failed"] == 0
    assert document["passed"] > 20
    assert len(document["invariants"]) == len(all_invariants())
    assert {"id", "sentence", "status", "violations"} <= document["invariants"][0].keys()


def test_a_leak_is_found_and_its_place_shown(run: Run, leaking_log: Path) -> None:
    ended = run("check", "--log", str(leaking_log), "--width", "120")
    assert ended.code == 1
    assert "✗ INV-01" in ended.out
    assert "iteration" in ended.out
    assert "next: minivllm map" in ended.err
    assert "POOL" in ended.out  # the state map of that iteration


def test_a_violation_in_json_names_its_iteration(run: Run, leaking_log: Path) -> None:
    ended = run("check", "--log", str(leaking_log), "--json")
    assert ended.code == 1
    document = ended.json
    assert document["failed"] >= 1
    violated = [entry for entry in document["invariants"] if entry["status"] == "violated"]
    assert {"iteration", "message"} == violated[0]["violations"][0].keys()


def test_only_one_can_be_asked_for(run: Run, leaking_log: Path) -> None:
    document = run("check", "--log", str(leaking_log), "--invariant", "inv-03", "--json").json
    assert [entry["id"] for entry in document["invariants"]] == ["INV-03"]
    assert document["failed"] == 0


def test_an_unknown_invariant_is_told_by_its_neighbour(run: Run) -> None:
    ended = run("check", "-s", "hello", "--invariant", "INV-033")
    assert ended.code == 1
    assert "INV-03" in ended.error


def test_ascii_is_ascii(run: Run, leaking_log: Path) -> None:
    assert run("check", "--log", str(leaking_log), "--ascii").out.isascii()


@pytest.mark.parametrize("num_lines", [1, 6])
def test_a_run_without_a_complete_iteration_proves_nothing(
    run: Run, recorded_logs: Path, tmp_path: Path, num_lines: int
) -> None:
    lines = gzip.decompress((recorded_logs / "hello.jsonl.gz").read_bytes()).decode().splitlines()
    log = tmp_path / "empty.jsonl"
    log.write_text("\n".join(lines[:num_lines]) + "\n")
    ended = run("check", "--log", str(log))
    assert (ended.code, ended.out) == (1, "")
    assert "nothing was checked: the log holds no complete iteration" in ended.err
    document = run("check", "--log", str(log), "--json").json
    assert (document["iterations"], document["passed"], document["failed"]) == (0, 0, 0)


def test_a_rule_that_needs_more_of_a_log_says_how_to_get_it(run: Run) -> None:
    ended = run("check", "-s", "hello", "--invariant", "INV-31", "--width", "200")
    assert ended.code == 0
    assert "the log holds none of logits; trace with --logits" in ended.out
