"""A mistake gets one line with the value and the remedy, an exit code, and harms nothing."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from minivllm.engine.core import EngineCore
from minivllm.models import model_zoo
from minivllm.scenarios import definition
from tests.cli.conftest import Run
from tests.trace.workloads import mixed_document

# Command line, exit code, what the line must name.
WRONG_CALLS: dict[str, tuple[list[str], int, list[str]]] = {
    "unknown command": (["trac"], 2, ["'trac'", "--help"]),
    "unknown option": (["trace", "--iteratio", "3"], 2, ["--iteratio", "--iteration"]),
    "option without its value": (["trace", "--model"], 2, ["--model"]),
    "block size 0": (["trace", "--block-size", "0"], 2, ["--block-size"]),
    "no integer": (["trace", "--max-tokens", "many"], 2, ["--max-tokens", "integer"]),
    "negative temperature": (["generate", "a", "--temperature", "-1"], 2, ["--temperature"]),
    "NaN as temperature": (["generate", "a", "--temperature", "nan"], 2, ["--temperature"]),
    "unknown batch": (["trace", "--batch", "heap"], 2, ["heap", "slots"]),
    "prompts and a scenario": (["trace", "a", "-s", "hello"], 2, ["not both"]),
    "sampling of a scenario": (["trace", "-s", "hello", "--max-tokens", "3"], 2, ["--max-tokens"]),
    "a log and a scenario": (["map", "plan", "--log", "x", "-s", "hello"], 2, ["--log", "--scenario"]),
    "nothing to simulate": (["simulate"], 2, ["--scenario"]),
    "nothing to generate": (["generate"], 2, ["--prompts"]),
    "stdin twice": (["generate", "-", "-"], 2, ["once"]),
    "unknown model": (["trace", "-m", "storys"], 1, ["'storys'", "stories-5m", "smollm2"]),
    "unknown model to pull": (["model", "pull", "storys"], 1, ["'storys'", "stories-5m"]),
    "unknown model to look at": (["model", "info", "storys"], 1, ["'storys'", "stories-5m"]),
    "unknown scenario": (["trace", "-s", "mixed"], 1, ["'mixed'", "did you mean 'mixed-batch'?"]),
    "scenario like no other": (
        ["scenario", "show", "zzz"],
        1,
        ["'zzz'", "hello, continuous-batching", "minivllm scenario list"],
    ),
    "scenario to simulate": (["simulate", "-s", "helo"], 1, ["did you mean 'hello'?"]),
    "scenario to record": (["scenario", "record", "helo"], 1, ["did you mean 'hello'?"]),
    "empty prompt": (["trace", ""], 1, ["R0", "the prompt is empty"]),
    "empty prompt behind another": (["trace", "Once", ""], 1, ["R1", "the prompt is empty"]),
    "empty prompt, generated": (["generate", ""], 1, ["the prompt is empty"]),
    "prompt too long": (["generate", "word " * 5000], 1, ["max_model_len 4096", "shorten the prompt"]),
    "model length beyond the model's": (["generate", "a", "--max-model-len", "5000"], 1, ["5000", "4096"]),
    "no room for an output": (["generate", "a", "--max-model-len", "1"], 1, ["max_model_len 1"]),
    "budget below the running requests": (
        ["trace", "a", "--max-num-batched-tokens", "2"],
        1,
        ["max_num_batched_tokens (2)", "max_num_seqs (8)", "Raise the first or lower the second"],
    ),
    "block larger than memory": (["trace", "a", "--block-size", "9" * 15], 1, ["lower max_model_len"]),
    "unknown map": (["trace", "a", "--map", "plan,stat"], 2, ["'stat'", "did you mean 'state'?"]),
    "map like no other": (["trace", "a", "--map", "zzz"], 2, ["'zzz'", "process, state, hot, timeline, plan"]),
    "no map": (["trace", "a", "--map", ","], 2, ["--map names no map", "process"]),
    "unknown level": (["trace", "a", "--level", "line"], 2, ["'line'", "function"]),
    "unknown language": (["trace", "a", "--lang", "fr"], 2, ["'fr'", "zh"]),
    "no names to record": (["scenario", "record"], 2, ["--all"]),
    "strange iteration": (["trace", "a", "--iteration", "first"], 2, ["'first'", "N, A:B, last or all"]),
    "negative iteration": (["trace", "a", "--iteration", "-1"], 2, ["'-1'", "N, A:B, last or all"]),
    "iteration that is not there": (["trace", "a", "--iteration", "99"], 1, ["99", "0 to 16"]),
    "backward iterations": (["trace", "a", "--iteration", "5:3"], 1, ["5:3"]),
    "unknown request": (["trace", "a", "--request", "R7"], 1, ["'R7'", "R0"]),
    "sampling is not JSON": (["generate", "a", "--sampling", "{temperature: 1}"], 1, ["--sampling", "column 2"]),
    "sampling is no object": (["generate", "a", "--sampling", "[1]"], 1, ["JSON object"]),
    "unknown parameter": (["generate", "a", "--sampling", '{"temprature": 1}'], 1, ["did you mean 'temperature'?"]),
    "parameter like no other": (
        ["generate", "a", "--sampling", '{"zzz": 1}'],
        1,
        ["'zzz'", "known are n, temperature"],
    ),
    "parameter of another type": (
        ["generate", "a", "--sampling", '{"top_p": "high"}'],
        1,
        ["top_p must be a number, got 'high'"],
    ),
    "parameter is NaN": (["generate", "a", "--sampling", '{"temperature": NaN}'], 1, ["temperature", "nan"]),
    "parameter is negative": (["generate", "a", "--sampling", '{"temperature": -1}'], 1, ["temperature", "-1"]),
    "parameter out of bounds": (["generate", "a", "--sampling", '{"top_k": 3000000000}'], 1, ["top_k", "3000000000"]),
    "parameter far out of bounds": (["generate", "a", "--sampling", f'{{"top_k": {10**30}}}'], 1, ["top_k"]),
    "parameter beyond all floats": (["generate", "a", "--sampling", '{"temperature": 1e300}'], 1, ["1e+300"]),
    "contradictory parameters": (
        ["generate", "a", "--sampling", '{"min_tokens": 9, "max_tokens": 3}'],
        1,
        ["min_tokens (9)", "max_tokens (3)"],
    ),
    "stop token out of range": (["generate", "a", "--sampling", '{"stop_token_ids": [512]}'], 1, ["512"]),
    "a number of many digits": (["generate", "a", "--sampling", "9" * 5000], 1, ["--sampling"]),
    "brackets without end": (
        ["generate", "a", "--sampling", "[" * 100_000],
        1,
        ["--sampling: nested too deeply"],
    ),
    "no such prompts": (["generate", "--prompts", "none.jsonl"], 1, ["none.jsonl", "No such file", "look at the path"]),
    "prompts are a folder": (["generate", "--prompts", "."], 1, ["directory; name a file"]),
    "no such workload": (["simulate", "none.json"], 1, ["none.json", "No such file"]),
    "workload is a folder": (["simulate", "."], 1, ["directory"]),
    "no such log": (["map", "plan", "--log", "none.jsonl"], 1, ["none.jsonl", "No such file"]),
    "log is a folder": (["map", "plan", "--log", "."], 1, ["directory"]),
    "no log yet": (["map", "plan"], 1, ["minivllm trace"]),
    "no such interpreter": (["bench", "scheduler", "--vllm-python", "/none"], 3, ["/none", "no such program"]),
    "no name of a model": (["generate", "a", "--model", ""], 2, ["--model", "empty", "minivllm model list"]),
    "no name of a model to trace": (["trace", "a", "-m", " "], 2, ["--model", "empty"]),
    "temperature beyond all": (["generate", "a", "--temperature", "1e308"], 1, ["--temperature: temperature must"]),
    "temperature beyond all, traced": (["trace", "a", "--temperature", "1e308"], 1, ["--temperature: temp"]),
    "seed beyond 64 bits": (["generate", "a", "--seed", "9" * 30], 1, ["--seed: seed must"]),
    "seed beyond 64 bits, traced": (["trace", "a", "--seed", "9" * 30], 1, ["--seed: seed must"]),
    "stop of another type": (
        ["generate", "a", "--sampling", '{"stop": 3}'],
        1,
        ["stop must be a text or a list, got 3"],
    ),
    "interpreter that is none": (["bench", "scheduler", "--vllm-python", "/bin/true"], 1, ["/bin/true", "no result"]),
    "interpreter that says no": (["bench", "scheduler", "--vllm-python", "/bin/false"], 1, ["/bin/false"]),
}


@pytest.mark.parametrize("name", WRONG_CALLS)
def test_a_wrong_call_is_told_in_one_line(run: Run, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if "bench" in WRONG_CALLS[name][0]:
        monkeypatch.setattr("minivllm.bench.scheduler.CASES", [])
        monkeypatch.setattr("minivllm.bench.scheduler.CONTEXT_CASES", [])
    args, code, named = WRONG_CALLS[name]
    ended = run(*args)
    assert ended.code == code, ended.err
    for words in named:
        assert words in ended.error
    assert ended.out == ""
    assert not list(Path().iterdir()), "nothing is left behind"


PROMPTS: dict[str, tuple[bytes, list[str]]] = {
    "not JSON": (b'{"prompt": "a"}\nplain text\n', ["line 2", "column 1"]),
    "another key": (b'{"text": "a"}\n', ["line 1", '{"prompt": "text"}']),
    "a number as prompt": (b'{"prompt": 3}\n', ["line 1"]),
    "ids that are no integers": (b'{"prompt_token_ids": [1, 2.5]}\n', ["line 1"]),
    "truth values as ids": (b'{"prompt_token_ids": [true]}\n', ["line 1"]),
    "no ids": (b'{"prompt_token_ids": []}\n', ["line 1", "empty"]),
    "no text in it": (b'\n{"prompt": ""}\n', ["line 2", "empty"]),
    "text and ids": (b'{"prompt": "a", "prompt_token_ids": [1]}\n', ["line 1", "both", "leave one out"]),
    "brackets without end": (b"[" * 100_000, ["line 1", "nested too deeply"]),
    "an id out of range": (
        b'{"prompt_token_ids": [1, 512]}\n',
        ["prompts.jsonl, line 1: token id 512", "position 1", "0 to 511"],
    ),
    "a negative id": (b'{"prompt_token_ids": [-1]}\n', ["line 1", "-1", "0 to 511"]),
    "a huge id": (b'{"prompt_token_ids": [%d]}\n' % 10**30, ["out of range"]),
    "no text": (b"\xff\xfe\x00", ["prompts.jsonl", "UTF-8; convert it first", "iconv"]),
}


@pytest.mark.parametrize("name", PROMPTS)
def test_a_wrong_prompt_file_is_told_with_its_line(run: Run, name: str) -> None:
    content, named = PROMPTS[name]
    Path("prompts.jsonl").write_bytes(content)
    ended = run("generate", "--prompts", "prompts.jsonl")
    assert (ended.code, ended.out) == (1, "")
    for words in named:
        assert words in ended.error


@pytest.mark.parametrize("more", [[], ["Once"]])
def test_an_empty_prompt_file_is_told_by_name(run: Run, more: list[str]) -> None:
    Path("prompts.jsonl").write_text("\n\n")
    ended = run("generate", "--prompts", "prompts.jsonl", *more)
    assert (ended.code, ended.out) == (1, "")
    assert "prompts.jsonl: there is no prompt in it" in ended.error


def test_the_remedy_for_a_small_budget_can_be_followed(run: Run) -> None:
    ended = run("trace", "a", "--max-num-batched-tokens", "1", "--max-num-seqs", "1", "--max-tokens", "2")
    assert ended.code == 0
    assert "of 1 running" in ended.out


def test_a_log_without_iterations_is_told(run: Run) -> None:
    [header, *_] = gzip.decompress((definition.LOGS / "hello.jsonl.gz").read_bytes()).splitlines(keepends=True)
    Path("log.jsonl").write_bytes(header)
    ended = run("map", "plan", "--log", "log.jsonl")
    assert (ended.code, ended.out) == (1, "")
    assert "the run has no iterations" in ended.error
    Path("log.jsonl").write_bytes(header.replace(b"minivllm.log/2", b"minivllm.log/9"))
    assert "Record it again with this one" in run("map", "plan", "--log", "log.jsonl").error


def changed(change: Callable[[dict[str, Any]], object]) -> str:
    document = mixed_document()
    change(document)
    return json.dumps(document, indent=1)


WORKLOADS: dict[str, tuple[str, list[str]]] = {
    "cut off": (changed(lambda d: None)[:-20], ["line", "column", "Is the file complete?"]),
    "empty": ("", ["line 1", "Is the file complete?"]),
    "a list": ("[]", ["JSON object"]),
    "brackets without end": ("[" * 100_000, ["nested too deeply"]),
    "a number of many digits": ('{"config": ' + "9" * 5000 + "}", ["not JSON that can be read"]),
    "no requests": (changed(lambda d: d.pop("requests")), ["requests is missing"]),
    "no config": (changed(lambda d: d.pop("config")), ["config is missing"]),
    "a limit is missing": (
        changed(lambda d: d["config"].pop("block_size")),
        ["config.block_size is missing", "(line 3)"],
    ),
    "a misspelt limit": (
        changed(lambda d: d["config"].update(max_num_sequences=3)),
        ["config.max_num_sequences", "did you mean 'max_num_seqs'?", "(line 9)"],
    ),
    "a limit of another type": (
        changed(lambda d: d["config"].update(block_size="4")),
        ["config.block_size", "(line 6)"],
    ),
    "block size 0": (changed(lambda d: d["config"].update(block_size=0)), ["block_size", "got 0", "(line 6)"]),
    "no blocks": (changed(lambda d: d["config"].update(num_gpu_blocks=1)), ["num_gpu_blocks", "got 1", "(line 7)"]),
    "blocks beyond memory": (
        changed(lambda d: d["config"].update(num_gpu_blocks=10**12)),
        ["num_gpu_blocks", "at most 10000000", "(line 7)"],
    ),
    "unknown policy": (changed(lambda d: d["config"].update(policy="lifo")), ["config.policy", "lifo"]),
    "a request without its prompt": (
        changed(lambda d: d["requests"][1].pop("prompt_token_ids")),
        ["requests[1].prompt_token_ids is missing", "(line "],
    ),
    "a misspelt key": (
        changed(lambda d: d["requests"][1].update(max_token=3)),
        ["requests[1].max_token", "did you mean 'max_tokens'?", "(line "],
    ),
    "an empty prompt": (
        changed(lambda d: d["requests"][0].update(prompt_token_ids=[])),
        ["requests[0] ('A')", "empty", "(line "],
    ),
    "a negative id": (changed(lambda d: d["requests"][0].update(prompt_token_ids=[1, -2])), ["-2", "(line "]),
    "an id twice": (changed(lambda d: d["requests"][1].update(id="A")), ["requests[1] ('A')", "twice"]),
    "no output": (changed(lambda d: d["requests"][0].update(max_tokens=0)), ["max_tokens", "got 0", "(line "]),
    "an arrival before the start": (
        changed(lambda d: d["requests"][0].update(arrival_step=-1)),
        ["arrival_step", "-1"],
    ),
    "an arrival that is no time": (
        changed(lambda d: d["requests"][0].update(arrival_time=float("nan"))),
        ["arrival_time", "nan"],
    ),
    "unknown phase": (changed(lambda d: d["requests"][0].update(abort_phase="late")), ["abort_phase", "late"]),
}


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_wrong_workload_is_told_with_its_place(run: Run, name: str) -> None:
    content, named = WORKLOADS[name]
    Path("workload.json").write_text(content)
    for path in ("log.jsonl", "plans.jsonl"):
        Path(path).write_text("from an earlier run")
    ended = run("simulate", "workload.json", "--out", "log.jsonl", "--plans", "plans.jsonl")
    assert (ended.code, ended.out) == (1, "")
    for words in ["workload.json", *named]:
        assert words in ended.error
    for path in ("log.jsonl", "plans.jsonl"):
        assert Path(path).read_text() == "from an earlier run"


def test_budget_and_requests_of_a_workload_must_fit_together(run: Run) -> None:
    document = mixed_document(max_num_batched_tokens=2)
    Path("workload.json").write_text(json.dumps(document))
    ended = run("simulate", "workload.json", "--semantics", "fixed")
    assert ended.code == 1
    assert "max_num_batched_tokens (2)" in ended.error


def test_a_workload_that_is_no_text(run: Run) -> None:
    Path("workload.json").write_bytes(b"\xff\xfe\x00")
    assert "not a text file in UTF-8" in run("simulate", "workload.json").error


def broken_models() -> dict[str, tuple[Callable[[Path], Path], list[str]]]:
    def without(name: str) -> Callable[[Path], Path]:
        def change(model: Path) -> Path:
            (model / name).unlink()
            return model

        return change

    def cut(name: str, keep: int) -> Callable[[Path], Path]:
        def change(model: Path) -> Path:
            path = model / name
            path.write_bytes(path.read_bytes()[:keep])
            return model

        return change

    def config(**changes: Any) -> Callable[[Path], Path]:
        def change(model: Path) -> Path:
            path = model / "config.json"
            path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
            return model

        return change

    def gguf(content: bytes) -> Callable[[Path], Path]:
        def change(model: Path) -> Path:
            path = model / "model.gguf"
            path.write_bytes(content)
            return path

        return change

    return {
        "no config": (without("config.json"), ["not a model folder", "config.json"]),
        "no weights": (without("model.safetensors"), ["weights"]),
        "truncated weights": (cut("model.safetensors", 70_000), ["model.safetensors"]),
        "weights cut in their header": (cut("model.safetensors", 20), ["model.safetensors"]),
        "empty weights": (cut("model.safetensors", 0), ["model.safetensors"]),
        "truncated config": (cut("config.json", 40), ["config.json"]),
        "truncated tokenizer": (cut("tokenizer.json", 400), ["tokenizer.json"]),
        "unknown architecture": (config(architectures=["Unknown"]), ["Unknown"]),
        "wrong width": (config(hidden_size=64), ["model.safetensors"]),
        "no number of layers": (config(num_hidden_layers="two"), ["num_hidden_layers"]),
        "text as gguf": (gguf(b"not a gguf file"), ["model.gguf"]),
        "truncated gguf": (gguf(b"GGUF\x03\x00\x00\x00" + b"\x01" * 12), ["model.gguf"]),
        "empty gguf": (gguf(b""), ["model.gguf"]),
    }


@pytest.mark.parametrize("name", broken_models())
def test_a_damaged_model_is_told_with_the_file(run: Run, name: str, tiny_model: Path, tmp_path: Path) -> None:
    change, named = broken_models()[name]
    model = change(Path(shutil.copytree(tiny_model, tmp_path / "model")))
    for command in ("generate", "trace"):
        ended = run(command, "-m", model, "Once")
        assert (ended.code, ended.out) == (1, ""), ended.err
        for words in named:
            assert words in ended.error


def test_a_known_model_that_is_absent_is_told_with_the_command_that_fetches_it(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_zoo, "local_path", lambda info: None)
    ended = run("trace", "-m", "smollm2", "Once")
    assert ended.code == 3
    assert "minivllm model pull smollm2" in ended.error


def test_a_prompt_that_is_no_text_is_refused(run: Run) -> None:
    for command in ("trace", "generate"):
        ended = run(command, "Once", "caf\udce9")
        assert ended.code == 1
        assert "not text in UTF-8 (behind 'caf')" in ended.error
        assert "iconv" in ended.error
    Path("prompts.jsonl").write_text('{"prompt": "\\ud800"}')
    assert "UTF-8" in run("generate", "--prompts", "prompts.jsonl").error


def test_debug_shows_the_traceback(run: Run) -> None:
    with pytest.raises(ValueError, match="storys"):
        run("--debug", "trace", "-m", "storys")


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (MemoryError(), 3, "not enough memory"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (OSError(28, "No space left on device", "run.jsonl"), 1, "run.jsonl: No space left on device"),
        (ModuleNotFoundError("No module named 'gguf'", name="gguf"), 3, "pip install gguf"),
    ],
)
def test_what_happens_in_the_middle_of_a_run_is_one_line(
    run: Run, workload: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, words: str
) -> None:
    steps = []

    def step(core: EngineCore) -> None:
        steps.append(core)
        if len(steps) > 5:
            raise error
        original(core)

    original = EngineCore.step_sync
    Path("plans.jsonl").write_text("from an earlier run")
    with monkeypatch.context() as patch:
        patch.setattr(EngineCore, "step_sync", step)
        ended = run("simulate", workload, "--out", "run.jsonl", "--plans", "plans.jsonl")
    assert (ended.code, ended.out) == (code, "")
    assert words in ended.error
    assert Path("plans.jsonl").read_text() == "from an earlier run"
    assert run("map", "plan", "--log", "run.jsonl").code == 0
