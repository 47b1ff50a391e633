"""`diff`: two runs as a picture and as JSON, its exit codes, and mistakes in one clear line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Run


@pytest.fixture
def roomy(run: Run, own_place: Path) -> Path:
    """roomy.jsonl in the working folder: kv-pressure with twice the blocks."""
    path = own_place / "roomy.jsonl"
    assert run("whatif", "-s", "kv-pressure", "--set", "num_gpu_blocks=28", "--out", path).code == 0
    return path


def test_equal_runs_end_with_0(run: Run) -> None:
    ended = run("diff", "hello", "hello", "--json")
    assert ended.code == 0
    document = ended.json
    assert document["schema"] == "minivllm.diff/1"
    assert (document["equal"], document["first"]) == (True, None)
    assert document["consequences"] == ["All 2 requests of both runs get the same tokens."]


def test_different_runs_end_with_1_and_say_where_they_part(run: Run, roomy: Path) -> None:
    ended = run("diff", "kv-pressure", roomy, "--json")
    assert ended.code == 1
    document = ended.json
    assert document["equal"] is False
    first = document["first"]
    assert (first["field"], first["b"]) == ("preempted", [])
    [victim] = first["a"]
    begins = f"Iteration {first['iteration']}: {victim} lost its blocks"
    assert any(sentence.startswith(begins) for sentence in document["consequences"])
    assert {"name": "num_gpu_blocks", "a": 14, "b": 28} in document["settings"]
    before, after = (document["numbers"][side]["preemptions"] for side in "ab")
    assert before > 0 == after


def test_tokens_alone_are_the_same(run: Run, roomy: Path) -> None:
    ended = run("diff", "kv-pressure", roomy, "--tokens")
    assert ended.code == 0
    assert "The runs are equal in tokens." in ended.out
    assert run("diff", "kv-pressure", roomy, "--plans").code == 1


@pytest.mark.parametrize("width", [50, 80, 150])
def test_the_picture_fits_its_width_and_has_the_numbers(run: Run, roomy: Path, width: int) -> None:
    ended = run("diff", "kv-pressure", roomy, "--width", width)
    assert ended.code == 1
    assert max(map(len, ended.out.splitlines())) <= width
    text = " ".join(ended.out.split())
    assert "num_gpu_blocks: 14 → 28" in text
    document = run("diff", "kv-pressure", roomy, "--json").json
    step, lost = document["first"]["iteration"], document["numbers"]["a"]["lost"]
    assert f"They part in iteration {step}: preempted" in text
    assert f"computed tokens lost {lost} 0 -{lost}" in text
    assert f"next: minivllm map plan -s kv-pressure --iteration {step}" in ended.err


def test_ascii_is_ascii(run: Run, roomy: Path) -> None:
    out = run("diff", "kv-pressure", roomy, "--ascii").out
    assert out.isascii()
    assert "14 -> 28" in out


def test_a_metric_joins_the_sentences(run: Run, roomy: Path) -> None:
    document = run("diff", "kv-pressure", roomy, "--metric", "e2e", "--json").json
    assert document["metric"]["unit"] == "iterations"
    [r2] = [entry for entry in document["metric"]["requests"] if entry["request"] == "R2"]
    assert r2["a"] > r2["b"]
    assert f"R2: at most {r2['a']} in A, {r2['b']} in B." in document["consequences"]


def test_logits_of_two_traces(run: Run) -> None:
    for name, value in (("warm", "true"), ("cold", "false")):
        setting = f"enable_prefix_caching={value}"
        assert run("trace", "-s", "full-hit", "--logits", "--set", setting, "--out", f"{name}.jsonl").code == 0
    ended = run("diff", "cold.jsonl", "warm.jsonl", "--logits", "--json")
    assert [row["request"] for row in ended.json["logits"]] == ["R0", "R1"]
    assert ended.code == (0 if ended.json["equal"] else 1)
    assert run("diff", "cold.jsonl", "warm.jsonl", "--plans").code == 1, "a prefix hit moves the start"


def test_without_logits_it_says_how_to_record_them(run: Run) -> None:
    ended = run("diff", "hello", "hello", "--logits")
    assert ended.code == 1
    assert "A and B hold no logits; record them with: minivllm trace … --logits" in ended.error


def test_an_unknown_scenario_is_told_by_its_neighbour(run: Run) -> None:
    assert "did you mean 'kv-pressure'" in run("diff", "kv-presure", "hello").error


def test_a_missing_file_is_told_as_one(run: Run) -> None:
    assert "no.jsonl: cannot be read" in run("diff", "hello", "no.jsonl").error


def test_a_file_that_is_no_log(run: Run, own_place: Path) -> None:
    (own_place / "notes.jsonl").write_text("hello\n")
    ended = run("diff", "notes.jsonl", "hello")
    assert ended.code == 1
    assert "not a minivllm log" in ended.error


def test_an_unknown_metric_is_a_mistake_of_usage(run: Run) -> None:
    ended = run("diff", "hello", "hello", "--metric", "speed")
    assert ended.code == 2
    assert "itl" in ended.error


def test_a_run_is_missing(run: Run) -> None:
    assert run("diff", "hello").code == 2
