"""Owns the interface between the runner and its two ways to keep a batch: `RequestSlots` and `InputBatch`.

Both take the same plans and give the same tokens; they differ in where a request lives and in the order of the batch.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from minivllm.core.scheduler_output import CachedRequestData, SchedulerOutput
from minivllm.worker.request_columns import RequestColumns


class BatchState(Protocol):
    """Requests and their places (slots or rows) in the columns."""

    columns: RequestColumns

    def update(self, plan: SchedulerOutput) -> None:
        """Apply a plan: forget finished requests, give up preempted ones, place new ones, take the deltas of others."""
        ...

    def order(self, plan: SchedulerOutput) -> list[str]:
        """The scheduled requests in batch order."""
        ...

    def place_of(self, req_id: str) -> int:
        """The slot or row of a request in the batch."""
        ...

    def places_of(self, req_ids: list[str]) -> NDArray[np.intp]:
        """The same for many, (requests,)."""
        ...


def apply_cached(columns: RequestColumns, place: int, cached: CachedRequestData, index: int) -> None:
    """Bring one request's columns up to date with entry `index` of a plan's cached requests."""
    req_id, block_ids = cached.req_ids[index], cached.new_block_ids[index]
    if req_id in cached.resumed_req_ids:
        # Its blocks were freed and what it had computed is gone: the plan tells everything again.
        columns.write_tokens(place, cached.all_token_ids[req_id])
        columns.block_table.replace(place, block_ids or [])
    elif block_ids:
        columns.block_table.append(place, block_ids)
    columns.set_computed(place, cached.num_computed_tokens[index])


def apply_all_cached(columns: RequestColumns, places: NDArray[np.intp], cached: CachedRequestData) -> None:
    """The same for all of them; in a step of decodes, which nothing but new blocks sets apart, by a few operations.

    Args:
        columns: The columns.
        places: Where each of the cached requests is, (requests,).
        cached: What changed.
    """
    resumed = cached.resumed_req_ids
    for index, block_ids in enumerate(cached.new_block_ids):
        if block_ids and (not resumed or cached.req_ids[index] not in resumed):
            columns.block_table.append(int(places[index]), block_ids)
    for index in [i for i, req_id in enumerate(cached.req_ids) if req_id in resumed] if resumed else ():
        apply_cached(columns, int(places[index]), cached, index)
    # See `RequestColumns.set_computed`.
    planned = np.array(cached.num_computed_tokens, dtype=np.int32)
    columns.num_computed[places] = np.minimum(planned, columns.num_tokens[places] - 1)
