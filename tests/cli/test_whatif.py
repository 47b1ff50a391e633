"""`whatif`: a run planned again as a picture, as JSON and as a log, and mistakes in one clear line."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Run


def test_the_document_has_the_keys_of_the_contract(run: Run) -> None:
    ended = run("whatif", "-s", "mixed-batch", "--set", "max_num_batched_tokens=620", "--json")
    assert ended.code == 0
    document = ended.json
    assert document["schema"] == "minivllm.whatif/1"
    assert document["equal"] is False
    assert document["first"].keys() >= {"iteration", "field", "a", "b"}
    assert document["settings"] == [{"name": "max_num_batched_tokens", "a": 260, "b": 620}]
    waited = [{r["request"]: r["waited"] for r in document["numbers"][side]["requests"]} for side in "ab"]
    assert (waited[0]["R3"], waited[1]["R3"]) == (1, 0)


def test_without_a_setting_the_recorded_plans_come_out(run: Run) -> None:
    ended = run("whatif", "-s", "kv-pressure")
    assert ended.code == 0
    assert "The runs are equal." in ended.out
    assert "Nothing changes" in ended.out


@pytest.mark.parametrize("width", [50, 80, 150])
def test_the_picture_fits_its_width_and_names_cause_and_effect(run: Run, width: int) -> None:
    ended = run("whatif", "-s", "kv-pressure", "--set", "num_gpu_blocks=28", "--width", width)
    assert max(map(len, ended.out.splitlines())) <= width
    text = " ".join(ended.out.split())
    assert re.search(r"blocks ran short in \d+ iterations as recorded, in 0 with the change", text)
    assert re.search(r"preemptions (\d+) 0 -\1 ", text)
    assert re.search(r"next: minivllm map plan -s kv-pressure --iteration \d+", ended.err)


def test_ascii_is_ascii(run: Run) -> None:
    assert run("whatif", "-s", "kv-pressure", "--set", "num_gpu_blocks=28", "--ascii").out.isascii()


def test_the_new_log_can_be_asked_and_checked(run: Run, own_place: Path) -> None:
    out = own_place / "new.jsonl"
    ended = run("whatif", "-s", "mixed-batch", "--set", "max_num_batched_tokens=620", "--out", out)
    assert f"log: {out}" in ended.err
    assert f"next: minivllm map plan --log {out}" in ended.err
    assert run("check", "--log", out).code == 0
    assert run("why", "R0", "partial", "--log", out).code == 0
    assert run("map", "plan", "--log", out, "--iteration", "13").code == 0


def test_a_log_is_planned_again_as_well(run: Run) -> None:
    assert run("trace", "Once upon a time", "The little dog", "--out", "own.jsonl").code == 0
    ended = run("whatif", "--log", "own.jsonl", "--set", "max_num_seqs=1", "--json")
    assert ended.json["numbers"]["b"]["most_running"] == 1


def test_it_says_if_a_run_does_not_repeat(run: Run, own_place: Path) -> None:
    path = own_place / "changed.jsonl"
    assert run("whatif", "-s", "kv-pressure", "--out", path).code == 0
    text = path.read_text()
    assert '"scheduled":[["R0",1],' in text
    path.write_text(text.replace('"scheduled":[["R0",1],', '"scheduled":[["R0",2],', 1))
    ended = run("whatif", "--log", path, "--set", "max_num_seqs=1")
    assert ended.code == 0
    assert "this run is another one from iteration 1 on (scheduled)" in ended.err


CONFIG = {"max_num_seqs": 2, "max_num_batched_tokens": 9, "block_size": 4, "num_gpu_blocks": 99, "max_model_len": 400}


def one_request(max_tokens: int) -> str:
    request = {"id": "r", "arrival_step": 0, "prompt_token_ids": [1], "max_tokens": max_tokens}
    return json.dumps({"config": CONFIG, "requests": [request]})


def test_who_can_never_end_is_named(run: Run, own_place: Path) -> None:
    (own_place / "one.json").write_text(one_request(40))
    assert run("simulate", "one.json", "--out", "one.jsonl").code == 0  # as vLLM 0.27.1, which refuses nobody
    ended = run("whatif", "--log", "one.jsonl", "--set", "num_gpu_blocks=4", "--json")
    assert "Stopped after 5000 iterations: r can never end like this." in ended.json["consequences"]


def test_a_long_run_fits_into_its_row_of_bars(run: Run, own_place: Path) -> None:
    request = {"id": "r", "arrival_step": 0, "prompt_token_ids": [1], "max_tokens": 300}
    config = {
        "max_num_seqs": 2,
        "max_num_batched_tokens": 9,
        "block_size": 4,
        "num_gpu_blocks": 99,
        "max_model_len": 400,
    }
    (own_place / "long.json").write_text(json.dumps({"config": config, "requests": [request]}))
    assert run("simulate", "long.json", "--out", "long.jsonl").code == 0
    ended = run("whatif", "--log", "long.jsonl")
    assert "the fullest of every 5 iterations" in ended.out
    assert max(map(len, ended.out.splitlines())) <= 80


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("max_num_seq=2", "did you mean max_num_seqs (a whole number from 1)? There are: max_num_batched_tokens"),
        ("policy=lifo", "policy is fcfs or priority; it cannot be 'lifo'"),
        ("max_num_batched_tokens=2", "must be at least max_num_seqs"),
        ("max_num_seqs", "give it a value"),
    ],
)
def test_a_setting_that_cannot_be(run: Run, setting: str, message: str) -> None:
    ended = run("whatif", "-s", "hello", "--set", setting)
    assert ended.code == 1
    assert message in ended.error
    assert ended.out == ""


def test_the_new_log_must_not_overwrite_the_old_one(run: Run, own_place: Path) -> None:
    path = own_place / "run.jsonl"
    assert run("whatif", "-s", "hello", "--out", path).code == 0
    before = path.read_bytes()
    assert "names the same file" in run("whatif", "--log", path, "--out", path).error
    assert path.read_bytes() == before
    assert "there is no folder" in run("whatif", "-s", "hello", "--out", own_place / "no" / "x.jsonl").error


def test_a_setting_that_fails_leaves_no_log(run: Run, own_place: Path) -> None:
    out = own_place / "new.jsonl"
    assert run("whatif", "-s", "hello", "--set", "max_num_batched_tokens=2", "--out", out).code == 1
    assert not out.exists()


def test_trace_takes_the_same_settings(run: Run) -> None:
    assert run("trace", "-s", "hello", "--set", "max_num_seqs=1", "--out", "one.jsonl").code == 0
    assert run("diff", "hello", "one.jsonl", "--json").json["settings"][-1]["name"] == "max_num_seqs"
    ended = run("trace", "-s", "hello", "--set", "max_num_seqs=1", "--max-num-seqs", "2")
    assert ended.code == 1
    assert "max_num_seqs is given twice" in ended.error


@pytest.mark.parametrize("command", [["whatif", "-s", "hello", "--set", "max_num_seqs=1"], ["diff", "hello", "hello"]])
def test_no_model_and_no_torch(command: list[str]) -> None:
    script = (
        "import sys; from minivllm.entrypoints.cli.main import main; "
        f"main({command!r}); sys.exit('torch' in sys.modules or 'tokenizers' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], capture_output=True).returncode == 0
