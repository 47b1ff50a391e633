"""Plain use: prompts from the command line, from stdin, from a file; text to stdout, everything else to stderr."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path

import pytest

from minivllm.entrypoints.cli.common import complete_scenario
from minivllm.entrypoints.cli.main import main
from tests.cli.conftest import Run


def test_a_completion_follows_its_prompt(run: Run) -> None:
    ended = run("generate", "Once upon a time", "--max-tokens", "5")
    assert ended.code == 0
    assert ended.out.startswith("Once upon a time")
    assert ended.err == ""


def test_several_completions_are_told_apart_on_stderr(run: Run) -> None:
    ended = run("generate", "Once", "The dog", "--max-tokens", "2")
    assert ended.err == "[0]\n[1]\n"
    assert ended.out.startswith("Once")


def test_a_dash_reads_stdin(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("Once upon\na time\n"))
    [line] = run("generate", "-", "--json").out.splitlines()
    assert json.loads(line)["prompt"] == "Once upon\na time"


def test_stdin_that_is_no_text_is_refused(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"a\xff"), encoding="utf-8"))
    ended = run("generate", "-")
    assert ended.code == 1
    assert "stdin" in ended.error


def test_a_file_of_prompts_joins_those_of_the_command_line(run: Run) -> None:
    text = '{"prompt": "The dog\u2028barked"}\n\n{"prompt_token_ids": [1, 2, 3]}\n'
    Path("prompts.jsonl").write_text(text, encoding="utf-8")
    ended = run("generate", "Once", "--prompts", "prompts.jsonl", "--max-tokens", "2", "--json")
    documents = [json.loads(line) for line in ended.out.split("\n") if line]
    assert [document["prompt"] for document in documents] == ["Once", "The dog\u2028barked", None]
    assert documents[2]["prompt_token_ids"] == [1, 2, 3]


def test_a_line_of_a_file_with_an_unknown_key_is_refused(run: Run) -> None:
    Path("prompts.jsonl").write_text('{"prompt": "Once"}\n{"prompt": "Hi", "temprature": 5}\n', encoding="utf-8")
    ended = run("generate", "--prompts", "prompts.jsonl")
    assert ended.code == 1
    assert "prompts.jsonl, line 2: unknown key 'temprature'; sampling is the same for all prompts" in ended.error


def test_an_option_goes_before_the_same_in_the_json(run: Run) -> None:
    args = ("generate", "Once", "--sampling", '{"max_tokens": 9, "ignore_eos": true}', "--json")
    for more, count in (((), 9), (("--max-tokens", "2"), 2)):
        [line] = run(*args, *more).out.splitlines()
        assert len(json.loads(line)["outputs"][0]["token_ids"]) == count


def test_a_seed_repeats_a_draw(run: Run) -> None:
    args = ("generate", "Once", "--temperature", "1", "--max-tokens", "12", "--json", "--seed")
    first, again, other = (run(*args, seed).out for seed in (1, 1, 2))
    assert first == again != other


def test_names_of_scenarios_are_completed() -> None:
    assert complete_scenario("mixed") == ["mixed-batch", "mixed-batch-drafts"]
    assert complete_scenario("x") == []


def test_an_interrupt_before_a_command_runs_ends_with_130(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(**options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("minivllm.entrypoints.cli.main.app", interrupted)
    assert main([]) == 130
    assert capsys.readouterr().err == "error: interrupted\n"


@pytest.mark.parametrize(
    "options", [["--mp"], ["--async-scheduling"], ["--dtype", "float32", "--mp", "--async-scheduling"]]
)
def test_how_the_engine_is_made_does_not_change_its_text(run: Run, tiny_model: Path, options: list[str]) -> None:
    # By its path: another process knows nothing of the names in this one.
    generate = ("generate", "Once upon a time", "It was", "--model", str(tiny_model), "--max-tokens", "5", "--json")
    assert run(*generate, *options).out == run(*generate).out != ""
    chat = ("chat", "Hi", "--model", str(tiny_model), "--max-tokens", "4")
    assert run(*chat, *options).out == run(*chat).out != ""


def test_random_weights_need_no_weights(run: Run, tiny_model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "without"
    shutil.copytree(tiny_model, folder)
    (folder / "model.safetensors").unlink()
    args = ("generate", "Once", "--model", str(folder), "--max-tokens", "3", "--json")
    assert run(*args).code == 1
    dummy = run(*args, "--load-format", "dummy")
    assert len(json.loads(dummy.out)["outputs"][0]["token_ids"]) == 3
    assert run("generate", "Once", "--dtype", "int8").code == 2


@pytest.mark.parametrize(
    ("recommended", "name", "why"),
    [
        ({"temperature": -1}, "temperature", "got -1.0"),
        ({"top_p": 0}, "top_p", "got 0.0"),
        ({"top_k": 50.5}, "top_k", "must be a whole number, got 50.5"),
    ],
)
def test_a_recommendation_that_cannot_be_is_blamed_on_its_file(
    run: Run, tiny_model: Path, tmp_path: Path, recommended: dict[str, float], name: str, why: str
) -> None:
    folder = shutil.copytree(tiny_model, tmp_path / "model")
    (folder / "generation_config.json").write_text(json.dumps(recommended))
    ask = ("generate", "Once", "--model", str(folder), "--max-tokens", "2")
    ended = run(*ask)
    assert ended.code == 1
    assert ended.err.startswith(f"error: the model's generation_config.json: {name} must be ")
    assert why in ended.err


def test_a_recommendation_that_is_no_number_is_told_with_its_file(run: Run, tiny_model: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(tiny_model, tmp_path / "model")
    (folder / "generation_config.json").write_text('{"temperature": true}')
    ended = run("generate", "Once", "--model", str(folder))
    assert ended.code == 1
    assert "generation_config.json: temperature must be a number, got True" in ended.err


def test_a_model_is_asked_as_its_files_recommend(run: Run, tiny_model: Path, tmp_path: Path) -> None:
    recommended = {"temperature": 0.7, "top_p": 0.95, "repetition_penalty": 1.1}
    folder = shutil.copytree(tiny_model, tmp_path / "model")
    ask = ("generate", "Once upon a time", "--model", str(folder), "--max-tokens", "24")
    asked = run(*ask, "--sampling", json.dumps({**recommended, "seed": 0})).out
    assert asked != run(*ask).out, "without the file it is greedy"
    (folder / "generation_config.json").write_text(json.dumps(recommended))
    assert run(*ask).out == asked
    assert run(*ask, "--seed", "1").out != asked
