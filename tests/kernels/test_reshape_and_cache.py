"""The reference of the KV write, and what its launch refuses. `test_grids.py` compares the kernel with it."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from minivllm.kernels.reshape_and_cache import reshape_and_cache, reshape_and_cache_reference


def test_the_reference_writes_each_token_at_its_slot_and_skips_minus_one():
    block_size, num_blocks = 4, 3
    key = torch.arange(3 * 2 * 5, dtype=torch.float32).reshape(3, 2, 5)
    key_cache = torch.full((num_blocks, block_size, 2, 5), float("nan"))
    value_cache = key_cache.clone()
    reshape_and_cache_reference(key, -key, key_cache, value_cache, torch.tensor([9, -1, 3]))
    assert torch.equal(key_cache[2, 1], key[0])  # 9 = page 2, offset 1
    assert torch.equal(value_cache[0, 3], -key[2])  # 3 = page 0, offset 3
    assert key_cache.isnan().sum() == key_cache.numel() - 2 * 10, "nothing else was written"


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
