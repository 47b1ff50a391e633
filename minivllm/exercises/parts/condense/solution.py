"""Closing the holes of a batch: the highest row moves into the lowest hole."""

from __future__ import annotations

from minivllm.worker.input_batch import InputBatch


def condense(self: InputBatch) -> None:
    """Move the highest rows into the lowest holes, until no hole is left.

    Args:
        self: The batch: `_req_ids` by row (None is a hole), `_move(source=..., target=...)`.
    """
    hole = 0
    while hole < len(self._req_ids):
        if self._req_ids[-1] is None:
            self._req_ids.pop()
        elif self._req_ids[hole] is None:
            self._move(source=len(self._req_ids) - 1, target=hole)
        else:
            hole += 1


def move(self: InputBatch, source: int, target: int) -> None:
    """Move a request from a row into a hole, with all that is kept of it.

    Args:
        self: The batch: `columns`, `_req_ids`, `_rows`.
        source: The row of the request.
        target: The hole.
    """
    req_id = self._req_ids[source]
    assert req_id is not None, "the highest row is a request"
    self.columns.move(source, target)
    self.columns.block_table.clear(source)
    self._req_ids[target], self._req_ids[source] = req_id, None
    self._rows[req_id] = target
