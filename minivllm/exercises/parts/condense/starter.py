"""Closing the holes of a batch. Your functions take the place of the batch's methods `condense` and `_move`."""

from __future__ import annotations

from minivllm.worker.input_batch import InputBatch


def condense(self: InputBatch) -> None:
    """Move the highest rows into the lowest holes, until no hole is left.

    Args:
        self: The batch: `_req_ids` by row (None is a hole), `_move(source=..., target=...)`.
    """
    raise NotImplementedError("fill each hole with the highest row")


def move(self: InputBatch, source: int, target: int) -> None:
    """Move a request from a row into a hole, with all that is kept of it.

    Args:
        self: The batch: `columns`, `_req_ids`, `_rows`.
        source: The row of the request.
        target: The hole.
    """
    raise NotImplementedError("move the columns, and say where the request is now")
