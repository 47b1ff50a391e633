"""Where results go: one JSON document, files that can be read, and no file lost."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from minivllm.bench import scheduler as scheduler_bench
from minivllm.entrypoints.cli.common import for_screen
from minivllm.scenarios import definition, registry
from minivllm.scenarios.driver import run as drive
from minivllm.trace.reader import read_log
from tests.cli.conftest import Run
from tests.trace.workloads import mixed_document

JSON: dict[str, tuple[list[str], str, set[str]]] = {
    "trace": (["trace", "Once", "--json"], "trace", {"log", "iterations", "requests", "violations"}),
    "trace scenario": (["trace", "-s", "hello", "--json", "--check"], "trace", {"log", "iterations", "requests"}),
    "map": (["map", "plan", "-s", "hello", "--json"], "map-plan", {"log", "iterations", "requests", "violations"}),
    "map format": (["map", "plan", "-s", "hello", "--format", "json"], "map-plan", {"log", "iterations"}),
    "scenario list": (["scenario", "list", "--json"], "scenario-list", {"scenarios"}),
    "scenario show": (["scenario", "show", "hello", "--json"], "scenario", {"name", "engine", "requests"}),
    "model list": (["model", "list", "--json"], "model-list", {"models"}),
    "model info": (["model", "info", "stories-5m", "--json"], "model-info", {"name", "path", "vocab_size"}),
    "simulate": (["simulate", "-s", "mixed-batch", "--json"], "simulate", {"summary", "steps", "free_blocks"}),
    "bench": (
        ["bench", "scheduler", "--repeats", "1", "--json"],
        "bench",
        {"bench", "engine", "machine", "workload", "results", "floor"},
    ),
}


@pytest.mark.parametrize("name", JSON)
def test_json_is_one_document_with_its_schema(run: Run, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = scheduler_bench.Case(2, True, prompt_len=8, output_len=4)
    monkeypatch.setattr(scheduler_bench, "CASES", [case])
    monkeypatch.setattr(scheduler_bench, "CONTEXT_CASES", [case])
    monkeypatch.setenv("FORCE_COLOR", "1")
    args, kind, keys = JSON[name]
    ended = run(*args)
    assert ended.code == 0, ended.err
    assert next(iter(ended.json)) == "schema"
    assert ended.json["schema"] == f"minivllm.{kind}/1"
    assert set(ended.json) >= keys
    assert "\x1b" not in ended.out
    assert ended.out.count("\n") == 1


def test_generate_prints_one_json_line_a_prompt(run: Run) -> None:
    ended = run("generate", "Once", "The dog", "--max-tokens", "4", "--json")
    lines = [json.loads(line) for line in ended.out.splitlines()]
    assert [line["request"] for line in lines] == ["0", "1"]
    for line in lines:
        assert list(line) == ["request", "prompt", "prompt_token_ids", "outputs"]
        [output] = line["outputs"]
        assert list(output) == ["index", "text", "token_ids", "finish_reason", "stop_reason", "logprobs"]
        assert output["finish_reason"] in ("length", "stop")


def test_a_trace_keeps_its_log_for_later_questions(run: Run) -> None:
    ended = run("trace", "Once upon a time", "--max-tokens", "3", "--map", "plan")
    assert ended.code == 0
    log = next(line for line in ended.err.splitlines() if line.startswith("log: ")).removeprefix("log: ")
    assert run("map", "plan", "--log", log).out == ended.out
    assert run("map", "plan").out == ended.out


def test_iterations_and_requests_can_be_chosen(run: Run) -> None:
    def shown(*options: str) -> list[int]:
        document = run("map", "plan", "-s", "hello", "--json", *options).json
        return [iteration["iteration"] for iteration in document["iterations"]]

    everything = shown()
    assert everything == list(range(len(everything)))
    assert shown("--iteration", "all") == everything
    assert shown("--iteration", "2") == [2]
    assert shown("--iteration", "last") == everything[-1:]
    assert shown("--iteration", "1:3") == [1, 2, 3]
    assert shown("--iteration", ":2") == [0, 1, 2]
    assert shown("--iteration", "4:") == everything[4:]
    assert shown("--request", "R1")[0] == 3, "R1 arrives before iteration 3"


def test_a_scenario_opens_at_the_iteration_to_look_at(run: Run) -> None:
    ended = run("trace", "-s", "mixed-batch")
    assert ended.code == 0
    assert re.findall(r"^── iteration (\d+)", ended.out, re.M) == ["13"]
    assert "query_start_loc [0, 1, 257, 260]" in ended.out
    assert "next: minivllm trace --step --log" in ended.err


def test_a_trace_shows_the_maps_that_are_asked_for(run: Run) -> None:
    titles = {"plan": "PLAN", "state": "STATE", "process": "process map", "hot": "hot path", "timeline": "TIMELINE"}
    for kind in titles:
        ended = run("trace", "-s", "hello", "--map", kind, "--iteration", "3", "--max-num-seqs", "4")
        assert ended.code == 0, ended.err
        assert "R1 arrived with" in ended.out, "the story stands above every map"
        assert [other for other in titles if titles[other] in ended.out] == [kind]
    without = run("trace", "-s", "hello").out
    assert all(title in without for title in titles.values())
    two = run("trace", "-s", "hello", "--map", "hot, plan", "--iteration", "3:4").out
    assert two.count("hot path") == 2
    assert re.findall(r"^── iteration (\d+)", two, re.M) == ["3", "4"]
    document = run("trace", "-s", "hello", "--map", "state,process", "--json").json
    assert set(document["maps"]) == {"state", "process"}
    assert "maps" not in run("trace", "-s", "hello", "--json").json


def test_a_trace_speaks_chinese_where_it_is_asked_to(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "R0 到达，共" in run("trace", "Once", "--max-tokens", "2", "--map", "plan", "--lang", "zh").out
    for kind in ("plan", "state"):
        assert "R1 到达，共" in run("map", kind, "-s", "hello", "--iteration", "3", "--lang", "zh").out
    monkeypatch.setenv("LANG", "zh_CN.UTF-8")
    assert "R1 到达，共" in run("map", "plan", "-s", "hello", "--iteration", "3").out
    assert "R0 到达，共" in run("trace", "Once", "--max-tokens", "2", "--json").json["iterations"][0]["narration"][0]
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    assert "R0 arrived" in run("trace", "Once", "--max-tokens", "2", "--map", "plan").out


def test_logits_are_recorded_where_they_are_asked_for(run: Run) -> None:
    def likeliest(*options: str) -> list[int]:
        run("trace", "Once", "--max-tokens", "3", "--out", "run.jsonl", "--json", *options)
        events = read_log(Path("run.jsonl")).events
        return [event.data["top"][0][0] for event in events if event.kind == "logits"]

    assert likeliest() == []
    tokens = likeliest("--logits")
    assert tokens == run("map", "plan", "--log", "run.jsonl", "--json").json["requests"][0]["output_token_ids"]


def test_the_core_can_have_a_process_of_its_own(run: Run) -> None:
    document = run("trace", "-s", "hello", "--mp", "--json", "--map", "process", "--check").json
    assert document["violations"] == []
    pids = {process["name"]: process["pid"] for process in document["maps"]["process"]["processes"]}
    assert pids["frontend"] != pids["engine_core"]


def test_ascii_and_width_reach_the_picture(run: Run) -> None:
    ended = run("map", "plan", "-s", "mixed-batch", "--ascii", "--width", "60")
    assert ended.out.isascii()
    assert max(map(len, ended.out.splitlines())) <= 60
    assert run("map", "plan", "-s", "mixed-batch", "--format", "ascii", "--width", "60").out == ended.out


def test_no_colour_reaches_a_pipe(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "\x1b" not in run("map", "plan", "-s", "hello").out
    monkeypatch.setenv("FORCE_COLOR", "1")
    coloured = run("map", "plan", "-s", "hello").out
    assert "\x1b[1;36m" in coloured
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[1;36m" not in run("map", "plan", "-s", "hello").out


def test_a_trace_and_its_simulation_write_equal_plans(run: Run) -> None:
    assert run("trace", "-s", "mixed-batch", "--plans", "traced.jsonl").code == 0
    assert run("simulate", "-s", "mixed-batch", "--plans", "simulated.jsonl").code == 0
    traced = Path("traced.jsonl").read_text().splitlines()
    *simulated, summary = Path("simulated.jsonl").read_text().splitlines()
    assert traced == simulated
    assert set(json.loads(summary)) == {"summary", "steps", "free_blocks"}


def test_a_log_that_was_cut_off_is_said_to_be(run: Run) -> None:
    raw = (definition.LOGS / "hello.jsonl.gz").read_bytes()
    Path("cut.jsonl.gz").write_bytes(raw[: len(raw) // 2])
    ended = run("map", "plan", "--log", "cut.jsonl.gz")
    assert ended.code == 0
    assert "cut off" in ended.err


@pytest.mark.parametrize("option", ["--out", "--plans"])
@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("missing/file.jsonl", "there is no folder missing"),
        (".", "is a folder"),
        ("/dev/null/x", "no folder /dev/null"),
    ],
)
@pytest.mark.parametrize("command", ["trace", "simulate"])
def test_a_path_that_cannot_be_written_is_told_before_any_work(
    run: Run, workload: Path, monkeypatch: pytest.MonkeyPatch, command: str, option: str, path: str, words: str
) -> None:
    monkeypatch.setattr("minivllm.scenarios.run.run_scenario", None)
    monkeypatch.setattr("minivllm.scenarios.simulate.simulate_to_log", None)
    ended = run(command, *([workload] if command == "simulate" else []), option, path)
    assert (ended.code, ended.out) == (1, "")
    assert option in ended.error
    assert words in ended.error


def test_a_folder_without_permission_is_told(run: Run, workload: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.access", lambda path, mode: mode != os.W_OK)
    assert "no permission" in run("simulate", workload, "--plans", "plans.jsonl").error


def test_a_home_that_cannot_be_is_told(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINIVLLM_HOME", "/dev/null/home")
    ended = run("trace", "Once")
    assert (ended.code, ended.out) == (1, "")
    assert "/dev/null/home/logs" in ended.error
    assert "set MINIVLLM_HOME" in ended.error
    assert run("trace", "Once", "--out", "run.jsonl").code == 0, "a log that has a place needs no home"


def test_no_file_is_read_and_written_at_once(run: Run, workload: Path) -> None:
    before = workload.read_text()
    assert "another argument names the same file" in run("simulate", workload, "--out", workload).error
    assert "another argument names the same file" in run("simulate", workload, "--plans", "./workload.json").error
    assert "another argument" in run("simulate", workload, "--out", "x.jsonl", "--plans", "x.jsonl").error
    assert workload.read_text() == before


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device that is always full")
@pytest.mark.parametrize("option", ["--out", "--plans"])
def test_a_full_disk_is_told_in_one_line(run: Run, workload: Path, option: str) -> None:
    for args in (["simulate", workload], ["trace", "Once"]):
        ended = run(*args, option, "/dev/full")
        assert (ended.code, ended.out) == (1, "")
        assert "No space left on device" in ended.error


def test_a_wrong_question_leaves_an_earlier_log_as_it_was(run: Run) -> None:
    assert run("trace", "Once", "--out", "run.jsonl").code == 0
    before = Path("run.jsonl").read_bytes()
    for wrong in (["--iteration", "x"], ["--request", "R9"], ["-m", "nowhere"], ["--max-num-batched-tokens", "1"]):
        assert run("trace", "Once", "--out", "run.jsonl", *wrong).code in (1, 2)
        assert Path("run.jsonl").read_bytes() == before


def test_recording_replaces_a_log_only_by_a_whole_one(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    logs = tmp_path / "logs"
    monkeypatch.setattr(definition, "LOGS", logs)
    assert run("scenario", "record", "hello").code == 0
    path = logs / "hello.jsonl.gz"
    before = path.read_bytes()
    assert read_log(path).header.scenario == "hello"
    assert run("scenario", "record", "hello").code == 0
    assert path.read_bytes() == before, "a recording has no clocks in it"

    def fails(*args: object, **kwargs: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("minivllm.scenarios.run.run", fails)
    assert run("scenario", "record", "hello").code == 1
    assert path.read_bytes() == before
    assert list(logs.iterdir()) == [path]


def test_a_run_that_was_stopped_at_its_limit_says_so(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "minivllm.scenarios.run.run", lambda *args, **kwargs: drive(*args, **{**kwargs, "max_steps": 3})
    )
    ended = run("trace", "Once")
    assert ended.code == 0
    assert "stopped after 3 steps: not every request finished" in ended.err
    assert "not finished" in ended.out


def test_a_violated_invariant_ends_with_1_and_names_it(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def violated(scheduler: object) -> None:
        raise AssertionError("INV-01: every block is in exactly one place")

    monkeypatch.setattr("minivllm.scenarios.run.check_integrity", violated)
    ended = run("trace", "Once", "--max-tokens", "2", "--check", "--json")
    assert ended.code == 1
    assert ended.json["violations"][0] == {"iteration": 0, "message": "INV-01: every block is in exactly one place"}
    assert "violated in iteration 0: INV-01" in ended.err
    assert "not recorded" in run("scenario", "record", "hello").error


def test_plans_go_to_a_stream_as_they_are(run: Run, workload: Path) -> None:
    assert run("simulate", workload, "--plans", "plans.jsonl").code == 0
    plans = Path("plans.jsonl").read_text()
    command = [sys.executable, "-m", "minivllm", "simulate", str(workload), "--plans"]
    piped = subprocess.run([*command, "/dev/stdout"], capture_output=True, text=True)
    assert (piped.returncode, piped.stdout[: len(plans)]) == (0, plans), piped.stderr
    with Path("out.txt").open("w") as file:
        subprocess.run([*command, "/dev/stdout"], stdout=file, check=True)
    assert Path("out.txt").read_text() == piped.stdout
    other = subprocess.run(["sh", "-c", 'exec "$@" /dev/fd/3 3>&1 >/dev/null', "sh", *command], capture_output=True)
    assert other.stdout.decode() == plans


def test_a_closing_note_is_about_the_scenarios_own_settings(run: Run) -> None:
    note = registry.get_scenario("mixed-batch").note
    assert note in " ".join(run("trace", "-s", "mixed-batch").out.split())
    ended = run("trace", "-s", "mixed-batch", "--max-num-batched-tokens", "4096", "--iteration", "last")
    assert ended.code == 0
    assert note not in " ".join(ended.out.split())
    assert run("trace", "-s", "mixed-batch", "--max-num-batched-tokens", "4096").code == 0


def test_who_never_finished_is_named_with_the_reason(run: Run) -> None:
    document = mixed_document()
    document["config"]["max_steps"] = 30
    document["requests"].insert(0, {"id": "huge", "arrival_step": 0, "prompt_token_ids": [1] * 10, "max_tokens": 9000})
    document["config"]["max_model_len"] = 100_000
    Path("workload.json").write_text(json.dumps(document))
    ended = run("simulate", "workload.json")
    assert ended.code == 0
    assert "not every request finished: " in ended.err
    assert "huge can never run: at its longest it needs" in ended.err
    assert "--semantics fixed" in ended.err
    ended = run("simulate", "workload.json", "--semantics", "fixed")
    assert ended.err.count("refused ") == ended.err.count("can never run") == 2
    assert "--semantics" not in ended.err


def test_only_a_terminal_is_kept_from_control_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "a\x1b[31m\u202eb\n\tc\u3000\U0001f469\u200d\U0001f467"
    assert for_screen(text) == text
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    assert for_screen(text) == "a\\x1b[31m\\u202eb\n\tc\u3000\U0001f469\u200d\U0001f467"


def test_a_long_run_is_drawn_without_what_is_always_the_same(run: Run) -> None:
    sampling = ["trace", "a", "--map", "plan", "--max-tokens"]
    ended = run(*sampling, "16", "--width", "100")
    drawn = re.findall(r"iteration (\d+) ", ended.out)
    last = run("map", "plan", "--iteration", "last", "--json").json["iterations"][0]["iteration"]
    assert drawn[:2] == ["0", "1"]
    assert drawn[-1] == str(last)
    assert re.search(r"… iterations 2 to \d+: 1 request decoded one token in each \(see --iteration all\)", ended.out)
    assert len(re.findall(r"iteration \d+ ", run("map", "plan", "--iteration", "all").out)) == last + 1
    assert "decoded one token in each" not in run(*sampling, "4").out, "a short run is drawn in full"
