"""New blocks of a batch: some requests have one, some none, and padding has none. Integers: all equal."""

from __future__ import annotations

import torch

from minivllm.kernels.append_blocks import append_blocks, append_blocks_reference
from tests.kernels.grids.setup import Setup

SLOTS, BLOCKS = 700, 9


def run(setup: Setup) -> int:
    cases = [1, 3, 255, 256, 257, 700]
    for requests in cases:
        table = torch.randint(0, 1000, (SLOTS, BLOCKS), dtype=torch.int32)
        slots = torch.randperm(SLOTS)[:requests].int()
        indices = torch.randint(0, BLOCKS, (requests,), dtype=torch.int32)
        indices[torch.rand(requests) < 0.5] = -1
        block_ids = torch.randint(0, 2**31 - 1, (requests,), dtype=torch.int32)
        expected, got = table.clone(), table.to(setup.device)
        append_blocks_reference(expected, slots, indices, block_ids)
        append_blocks(got, *(column.to(setup.device) for column in (slots, indices, block_ids)))
        assert torch.equal(got.cpu(), expected), f"{requests=}: tables differ"
    return len(cases)
