"""Exchanging two rows of the worker's columns: both are copied before either is written."""

from __future__ import annotations

from minivllm.worker.request_columns import RequestColumns


def swap(self: RequestColumns, first: int, second: int) -> None:
    """Exchange two rows of every column.

    Args:
        self: The columns; `self._all` has each of them, an array with one row a request.
        first, second: The rows.
    """
    for column in self._all:
        column[[first, second]] = column[[second, first]]
