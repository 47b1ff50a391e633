"""From positions to slots, and which tokens get logits. Your functions take the place of the worker's."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from minivllm.worker.block_table import BlockTable


def compute_slot_mapping(self: BlockTable, rows: NDArray[np.intp], positions: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where each token's keys and values are stored.

    Args:
        self: The block table: `ids[row, block]` and `block_size`.
        rows: (tokens,) the row of each token's request.
        positions: (tokens,) its position in that request.

    Returns:
        (tokens,) slots.
    """
    raise NotImplementedError("page * block_size + offset, for all tokens at once")


def logits_indices(drafts: list[list[int]], query_start_loc: NDArray[np.int32]) -> NDArray[np.int64]:
    """Which flat tokens get logits: the last 1 + number of drafts of each request.

    Args:
        drafts: Guesses of each request, in batch order.
        query_start_loc: (requests + 1,) where each request's tokens start; the last entry is the total.

    Returns:
        (logits rows,) places in the flat batch, ascending.
    """
    raise NotImplementedError("the last tokens of each request")
