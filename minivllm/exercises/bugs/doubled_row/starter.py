"""Exchanging two rows of the worker's columns. The engine runs this function instead of its own; it has a fault."""

from __future__ import annotations

from minivllm.worker.request_columns import RequestColumns


def swap(self: RequestColumns, first: int, second: int) -> None:
    """Exchange two rows of every column.

    Args:
        self: The columns; `self._all` has each of them, an array with one row a request.
        first, second: The rows.
    """
    for column in self._all:
        column[first], column[second] = column[second], column[first]
