"""The kernel writes what its reference writes, and nothing else. It runs in Triton's interpreter, so needs no GPU.

The interpreter is chosen when a kernel is decorated, so the grid runs in a process of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from minivllm.kernels.reshape_and_cache import reshape_and_cache, reshape_and_cache_reference
from minivllm.kernels.triton_guard import HAS_TRITON

ROOT = Path(__file__).parents[2]
needs_triton = pytest.mark.skipif(not HAS_TRITON, reason="Triton is not installed on this machine")


def test_the_reference_writes_each_token_at_its_slot_and_skips_minus_one():
    block_size, num_blocks = 4, 3
    key = torch.arange(3 * 2 * 5, dtype=torch.float32).reshape(3, 2, 5)
    key_cache = torch.full((num_blocks, block_size, 2, 5), float("nan"))
    value_cache = key_cache.clone()
    reshape_and_cache_reference(key, -key, key_cache, value_cache, torch.tensor([9, -1, 3]))
    assert torch.equal(key_cache[2, 1], key[0])  # 9 = page 2, offset 1
    assert torch.equal(value_cache[0, 3], -key[2])  # 3 = page 0, offset 3
    assert key_cache.isnan().sum() == key_cache.numel() - 2 * 10, "nothing else was written"


@needs_triton
def test_the_kernel_equals_its_reference_in_the_interpreter():
    done = run_grid("cpu", TRITON_INTERPRET="1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all equal" in done.stdout


@needs_triton
@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")
def test_the_kernel_equals_its_reference_on_a_gpu():
    done = run_grid("cuda", TRITON_INTERPRET="0")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all equal" in done.stdout


def run_grid(device: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.kernels.grid", device]
    return subprocess.run(command, cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"slot_mapping": torch.zeros(2, dtype=torch.int32)}, "contiguous int64"),
        ({"slot_mapping": torch.zeros(3, dtype=torch.int64)}, "same tokens"),
        ({"key_cache": torch.zeros(4, 8, 3, 16)}, "key_cache has heads and head size"),
        ({"value": torch.zeros(2, 16, 2).transpose(1, 2)}, "value must be contiguous"),
    ],
)
def test_arguments_that_do_not_belong_together_are_refused_before_anything_is_written(change, message):
    arguments = {
        "key": torch.zeros(2, 2, 16),
        "value": torch.zeros(2, 2, 16),
        "key_cache": torch.zeros(4, 8, 2, 16),
        "value_cache": torch.zeros(4, 8, 2, 16),
        "slot_mapping": torch.zeros(2, dtype=torch.int64),
    }
    with pytest.raises(ValueError, match=message):
        reshape_and_cache(**{**arguments, **change})


def test_without_triton_the_module_imports_and_a_launch_says_what_to_install():
    program = (
        "import sys; sys.modules['triton'] = None\n"
        "import torch\n"
        "from minivllm.kernels.reshape_and_cache import reshape_and_cache, reshape_and_cache_reference as reference\n"
        "from minivllm.kernels.triton_guard import TritonMissingError\n"
        "new, cache, slots = torch.ones(1, 1, 4), torch.zeros(2, 2, 1, 4), torch.tensor([3])\n"
        "reference(new, new, cache, cache.clone(), slots)\n"
        "assert cache[1, 1].sum() == 4\n"
        "try:\n"
        "    reshape_and_cache(new, new, cache, cache, slots)\n"
        "except TritonMissingError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "pip install triton" in done.stdout
    assert "plain PyTorch" in done.stdout
