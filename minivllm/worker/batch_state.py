"""Owns the interface between the runner and its two ways to keep a batch: `RequestSlots` and `InputBatch`.

Both take the same plans and give the same tokens; they differ in where a request lives and in the order of the batch.
"""

from __future__ import annotations

from typing import Protocol

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
