"""Owns which pages hold each request's tokens, as the worker sees it: one row of block ids per place in the batch.

A mirror of the scheduler's tables, kept by deltas and never written back.

Upstream: vllm/v1/worker/block_table.py::BlockTable.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from minivllm.sourcemap.registry import on_map

NO_BLOCK = -1


class BlockTable:
    """`max_num_reqs` rows of block ids, in the order of the tokens they hold; NO_BLOCK past a row's end."""

    def __init__(self, max_num_reqs: int, max_model_len: int, block_size: int) -> None:
        self.block_size = block_size
        max_blocks = -(-max_model_len // block_size)
        self.ids = np.full((max_num_reqs, max_blocks), NO_BLOCK, dtype=np.int32)
        self.num_blocks = np.zeros(max_num_reqs, dtype=np.int32)

    def append(self, row: int, block_ids: list[int]) -> None:
        start = int(self.num_blocks[row])
        self.ids[row, start : start + len(block_ids)] = block_ids
        self.num_blocks[row] = start + len(block_ids)

    def replace(self, row: int, block_ids: list[int]) -> None:
        self.clear(row)
        self.append(row, block_ids)

    def clear(self, row: int) -> None:
        self.ids[row] = NO_BLOCK
        self.num_blocks[row] = 0

    def gather(self, rows: NDArray[np.intp]) -> NDArray[np.int32]:
        """The tables of some rows, as wide as the longest of them: (rows, blocks). A copy."""
        return self.ids[rows, : int(self.num_blocks[rows].max())]

    @on_map(
        "slot of every token",
        vllm="vllm/v1/worker/block_table.py::BlockTable.compute_slot_mapping",
        plane="data",
        process="worker",
    )
    def compute_slot_mapping(self, rows: NDArray[np.intp], positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Where the token at each position of its row's request is stored: block id * block size + offset in block."""
        blocks = self.ids[rows, positions // self.block_size].astype(np.int64)
        assert (blocks != NO_BLOCK).all(), "every scheduled token has a block"
        return blocks * self.block_size + positions % self.block_size
