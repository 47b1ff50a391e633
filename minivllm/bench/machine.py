"""Owns what a machine does at best: bytes it reads and operations it does in a second, measured or given."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Ceilings:
    """What a device can do.

    Attributes:
        bytes_per_second: Read from its memory.
        flops_per_second: Of products of large matrices, in one precision.
        are_given: Somebody said so; else they were measured now.
    """

    bytes_per_second: float
    flops_per_second: float
    are_given: bool = False


def measure(device: str, dtype: str) -> Ceilings:
    """Measure both; a second on a GPU, a few on a CPU.

    Args:
        device: "cpu" or "cuda".
        dtype: Precision of the products.
    """
    if device == "cpu":
        from minivllm.bench.floor import multiply_flops, read_bytes_per_s

        return Ceilings(read_bytes_per_s(), multiply_flops(getattr(torch, dtype)))
    from minivllm.bench.kernels import measure_ceilings

    both = measure_ceilings(torch.device(device))
    torch.cuda.empty_cache()
    return Ceilings(both.bytes_per_second, both.flops_per_second)
