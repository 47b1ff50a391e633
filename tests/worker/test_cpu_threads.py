"""Small steps have one thread; what they find afterwards is what was set before."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from minivllm.worker.cpu_threads import LEAST_SHARED, StepThreads

# 2 * (4 + 2) * 8 numbers of heads, 3 * 64 of the MLP, 32 wide, 2 layers, and a head of 100.
CONFIG: Any = SimpleNamespace(
    num_attention_heads=4, num_key_value_heads=2, head_dim=8, hidden_size=32, intermediate_size=64,
    num_hidden_layers=2, vocab_size=100,
)  # fmt: skip
NUM_WEIGHTS = 2 * 32 * (96 + 192) + 3200
MANY = LEAST_SHARED // NUM_WEIGHTS + 1


@pytest.fixture(autouse=True)
def three_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(("device", "num_tokens", "threads"), [("cpu", 1, 1), ("cpu", MANY, 3), ("meta", 1, 3)])
def test_a_small_step_on_a_cpu_has_one_thread(device: str, num_tokens: int, threads: int) -> None:
    with StepThreads(CONFIG, torch.device(device)).of(num_tokens):
        assert torch.get_num_threads() == threads
    assert torch.get_num_threads() == 3


def test_a_step_that_fails_gives_them_back() -> None:
    with pytest.raises(ZeroDivisionError), StepThreads(CONFIG, torch.device("cpu")).of(1):
        raise ZeroDivisionError
    assert torch.get_num_threads() == 3
