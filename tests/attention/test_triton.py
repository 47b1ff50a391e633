"""The Triton backend, in Triton's interpreter: the same attention as the reference, and the same tokens in the engine.

The interpreter is chosen when a kernel is decorated, so everything here runs in one process of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from minivllm.attention.selector import select_backend
from minivllm.kernels.triton_guard import HAS_TRITON

ROOT = Path(__file__).resolve().parents[2]
needs_triton = pytest.mark.skipif(not HAS_TRITON, reason="Triton is not installed on this machine")
CHECKS = [
    "forward",
    "repeated",
    "unrotated",
    "selection",
    "rows",
    "window",
    "device_step",
    "captured",
    "prefix",
    "layers_with_a_window",
    "draws",
    "libraries",
]


@cache
def interpreted() -> dict[str, Any]:
    """What each check of `interpreted_checks` said: None is good. Two processes share them."""
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    running = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.attention.interpreted_checks", *names],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for names in (CHECKS[::2], CHECKS[1::2])
    ]
    said: dict[str, Any] = {}
    for process in running:
        out, err = process.communicate()
        assert process.returncode == 0, out + err
        said |= json.loads(out.splitlines()[-1])
    return said


@needs_triton
@pytest.mark.parametrize("name", CHECKS)
def test_in_the_interpreter(name):
    assert interpreted()[name] is None, interpreted()[name]


@pytest.mark.parametrize(
    ("query_lens", "computed", "parts"),
    [
        ([1, 1, 5, 1, 9, 2], [7, 3, 0, 4, 0, 0], (2, 2, 5, 9)),  # what stands before one that goes on, goes on with it
        ([1, 5, 3], [4, 2, 1], (1, 0, 5, 0)),
        ([5, 1], [0, 0], (0, 2, 0, 5)),
        ([1, 1], [0, 8], (2, 0, 0, 0)),
        ([], [], (0, 0, 0, 0)),
    ],
)
def test_a_batch_is_parted_among_kernels(query_lens, computed, parts):
    from minivllm.attention.paged import parts_of

    query = np.array(query_lens, dtype=np.int32)
    assert parts_of(query, query + np.array(computed, dtype=np.int32)) == parts


def test_a_cpu_without_the_interpreter_has_no_triton_backend(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    _, reasons = select_backend(torch.device("cpu"), 64, torch.float32)
    assert reasons["triton"] == "left: the model is on a CPU: no GPU here"
    with pytest.raises(
        ValueError, match="'triton' cannot run: the model is on a CPU: no GPU here; leave the choice open"
    ):
        select_backend(torch.device("cpu"), 64, torch.float32, forced="triton")


@pytest.mark.parametrize("name", ["flash_attn", "flashinfer"])
def test_kernels_of_other_projects_are_left_with_a_reason(name):
    _, reasons = select_backend(torch.device("cpu"), 64, torch.float32)
    assert reasons[name].startswith("left: Flash")
    assert reasons[name].endswith("needs a GPU, and the model is on a CPU")
    with pytest.raises(ValueError, match=f"attention backend '{name}' cannot run: .* leave the choice open"):
        select_backend(torch.device("cpu"), 64, torch.float32, forced=name)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")
def test_on_a_gpu_it_is_taken_and_gives_the_references_tokens():
    command = [
        sys.executable,
        "-m",
        "tests.attention.interpreted_checks",
        "slots",
        "window",
        "device_step",
        "ranges",
        "captured",
        "prefix",
        "draws",
        "--device",
        "cuda",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert set(json.loads(done.stdout.splitlines()[-1]).values()) == {None}
