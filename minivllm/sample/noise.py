"""Owns the randomness of sampling: noise that depends on (seed, position) and on nothing else.

A request therefore draws the same tokens alone or in any batch, in a slot or in a row, whole or preempted and resumed.

Upstream: vllm/v1/worker/gpu/sample/gumbel.py::gumbel_sample.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(torch.get_num_threads(), thread_name_prefix="noise")


def gumbel_noise(seeds: NDArray[np.uint64], positions: NDArray[np.int64], vocab_size: int) -> torch.Tensor:
    """One row of Gumbel noise per (seed, position): (rows, vocab_size).

    argmax(logits + noise) is a draw from softmax(logits). With E ~ Exp(1), -log(E) is Gumbel noise.
    """
    exponential = np.empty((len(seeds), vocab_size), dtype=np.float32)

    def fill(row: NDArray[np.float32], seed: int, position: int) -> None:
        # Philox turns a counter into random bits: the position is its high half, so that no two positions overlap.
        generator = np.random.Generator(np.random.Philox(key=seed, counter=position << 128))
        generator.standard_exponential(out=row, dtype=np.float32)

    # NumPy lets other threads run while it draws.
    run = _threads().map if len(seeds) > 1 and torch.get_num_threads() > 1 else map
    list(run(fill, exponential, seeds.tolist(), positions.tolist()))
    # A draw of exactly 0 would be infinite noise, and with it the token, however unlikely or forbidden. In single
    # precision it stands for everything below about 2**-24, and at a vocabulary of 50,000 it comes once in 300 rows.
    return torch.from_numpy(exponential).clamp_(min=2.0**-24).log_().neg_()
