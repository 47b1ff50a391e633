"""Owns how many threads of a CPU a step takes.

Each product of a small step is done in microseconds. Sharing it with a second thread gains little when that thread has
a core to itself; when another program has it, every product waits until that program makes room.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property

import torch

from minivllm.models.config import DecoderConfig

# Weights times tokens below which a step has one thread: some milliseconds of work.
LEAST_SHARED = 50_000_000


class StepThreads:
    """Decides between one thread and all that torch has.

    Args:
        config: Of the model whose steps these are.
        device: Where it computes; the CPU's threads do not matter to another.
    """

    def __init__(self, config: DecoderConfig, device: torch.device) -> None:
        self._config = config
        self._is_cpu = device.type == "cpu"

    @contextmanager
    def of(self, num_tokens: int) -> Iterator[None]:
        """Compute a step of so many tokens inside."""
        most = torch.get_num_threads()
        if not self._is_cpu or most == 1 or num_tokens * self._num_weights >= LEAST_SHARED:
            yield
            return
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(most)

    @cached_property
    def _num_weights(self) -> int:
        """Of all products, the head's included."""
        config = self._config
        heads = 2 * (config.num_attention_heads + config.num_key_value_heads) * config.head_dim
        layer = config.hidden_size * (heads + 3 * config.intermediate_size)
        return config.num_hidden_layers * layer + config.vocab_size * config.hidden_size
