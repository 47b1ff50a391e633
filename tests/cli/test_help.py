"""Every help page ends with two examples, and every example works."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.main import get_command

from minivllm.bench import scheduler as scheduler_bench
from minivllm.bench import trace_overhead, vllm_scheduler
from minivllm.entrypoints import site
from minivllm.entrypoints.cli.errors import LACKING, USAGE
from minivllm.entrypoints.cli.main import app
from minivllm.exercises import checking, lint_run
from minivllm.exercises.report import Report
from minivllm.scenarios import definition
from tests.cli.conftest import Run


def pages(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield path, command
    for name, child in getattr(command, "commands", {}).items():
        yield from pages(child, (*path, name))


PAGES = dict(pages(get_command(app)))


def examples_of(command: Any) -> list[str]:
    first, *lines = (command.epilog or "").split("\n\n")
    assert first == "Examples:"
    return [line.strip("`") for line in lines]


EXAMPLES = sorted({example for command in PAGES.values() for example in examples_of(command)})


@pytest.mark.parametrize("path", PAGES, ids=" ".join)
def test_a_help_page_ends_with_two_examples(run: Run, path: tuple[str, ...]) -> None:
    ended = run(*path, "--help")
    assert (ended.code, ended.err) == (0, "")
    lines = [line.strip() for line in ended.out.splitlines() if line.strip()]
    assert lines[-3:] == ["Examples:", *examples_of(PAGES[path])], "each example stands on one line of 80 columns"


@pytest.mark.parametrize("path", PAGES, ids=" ".join)
def test_the_examples_are_of_this_program(path: tuple[str, ...]) -> None:
    for example in examples_of(PAGES[path]):
        assert example.startswith(("minivllm " + " ".join(path)).strip()) or path == ("model", "pull")


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_works(
    run: Run, example: str, own_place: Path, workload: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (own_place / "prompts.jsonl").write_text('{"prompt": "Once"}\n{"prompt_token_ids": [1, 2, 3]}\n')
    case = scheduler_bench.Case(2, True, prompt_len=8, output_len=4)
    monkeypatch.setattr(scheduler_bench, "CASES", [case])
    monkeypatch.setattr(scheduler_bench, "CONTEXT_CASES", [case])
    monkeypatch.setattr(trace_overhead, "SIMULATED", ((2, 8, 4),))
    monkeypatch.setattr(trace_overhead, "DECODED", (8, 37))
    monkeypatch.setattr(trace_overhead, "AHEAD", (2, 8, 37))
    monkeypatch.setattr(vllm_scheduler, "run_vllm_cases", lambda *args: [{"schedule_us": 1.0, "update_us": 1.0}])
    monkeypatch.setattr("shutil.which", str)
    if " record " in example:
        monkeypatch.setattr(definition, "LOGS", tmp_path / "recorded")
    if " new.jsonl" in example:
        assert run("whatif", "-s", "kv-pressure", "--set", "num_gpu_blocks=28", "--out", "new.jsonl").code == 0
    if " exercise " in example:
        # Only the frame: real checks and the real lint run in tests/exercises.
        passing = Report("block-hash", "block_hash.py", True, None, [])
        monkeypatch.setattr(checking, "check", lambda *args: passing)
        sound = [lint_run.Verdict("block-hash", 1.0, [])]
        monkeypatch.setattr(lint_run, "lint_aside", lambda chosen, ends, quick: sound)
        assert run("exercise", "start", "block-hash").code == 0
    if example == "minivllm exercise solution block-hash":
        assert run("exercise", "check").code == 0
    if example.startswith("minivllm docs"):
        # Only the frame: the site is built in tests/docs.
        (tmp_path / "index.html").write_text("a page")
        monkeypatch.setattr(site, "PACKAGED", tmp_path)
        example = example.removesuffix(" --seconds 1") + " --seconds 0"
    if example == "minivllm map plan":
        assert run("trace", "Once").code == 0
    program, *args = shlex.split(example)
    ended = run(*args)
    assert program == "minivllm"
    expected = LACKING if "bench kernels" in example and not torch.cuda.is_available() else 0
    if "exercise watch" in example or example.endswith("exercise reset block-hash"):
        expected = USAGE  # nobody is here to press a key
    assert ended.code == expected, ended.err
    assert ended.out or ended.err


@pytest.mark.parametrize("path", [path for path, command in PAGES.items() if getattr(command, "commands", None)])
def test_a_group_alone_prints_its_help(run: Run, path: tuple[str, ...]) -> None:
    ended = run(*path)
    assert ended.code == 2
    assert "Usage: minivllm" in ended.out
    assert ended.err == ""


def test_the_version(run: Run) -> None:
    from minivllm import __version__

    assert run("--version").out == f"minivllm {__version__}\n"


def test_every_option_has_a_description() -> None:
    for command in PAGES.values():
        for parameter in command.params:
            assert getattr(parameter, "help", None) or parameter.name == "help", parameter.name
