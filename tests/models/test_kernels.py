"""Models on our kernels compute what they compute in PyTorch: in Triton's interpreter, and on a GPU.

The interpreter is chosen when a kernel is decorated, so everything here runs in processes of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
import torch

from minivllm.kernels.triton_guard import HAS_TRITON

ROOT = Path(__file__).resolve().parents[2]
KINDS = ["llama", "qwen2", "qwen3", "mistral", "overridden"]
needs_triton = pytest.mark.skipif(not HAS_TRITON, reason="Triton is not installed on this machine")


@cache
def run_checks(device: str, *options: str) -> dict[str, str | None]:
    """What each check said: None is good. Two processes share the kinds on a CPU."""
    environment = {**os.environ, "TRITON_INTERPRET": "1" if device == "cpu" else "0", "OMP_NUM_THREADS": "1"}
    shares = [KINDS[::2], KINDS[1::2]] if device == "cpu" else [KINDS]
    running = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.models.kernel_checks", *kinds, "--device", device, *options],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for kinds in shares
    ]
    said: dict[str, str | None] = {}
    for process in running:
        out, err = process.communicate()
        assert process.returncode == 0, out + err
        said |= json.loads(out.splitlines()[-1])
    return said


def check(said: dict[str, str | None], kind: str) -> None:
    errors = {name: error for name, error in said.items() if name.startswith(kind)}
    assert errors, f"nothing was checked of {kind}"
    assert not any(errors.values()), "".join(error for error in errors.values() if error)


@needs_triton
@pytest.mark.parametrize("kind", KINDS)
def test_logits_and_tokens_equal_those_of_pytorch_in_the_interpreter(kind):
    check(run_checks("cpu"), kind)


@needs_triton
@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_the_same_over_more_steps(kind):
    check(run_checks("cpu", "--full"), kind)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")
@pytest.mark.parametrize("kind", KINDS)
def test_the_same_on_a_gpu_in_both_precisions_and_real_sizes(kind):
    check(run_checks("cuda", "--full"), kind)
