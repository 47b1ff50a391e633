"""Owns the default batch: a request keeps one slot from its first step until it finishes or is preempted.

Nothing moves, so nothing can be mixed up; each step gathers its inputs through the list of scheduled slots.

Upstream: vllm/v1/worker/gpu/states.py::RequestState.
"""

from __future__ import annotations

import heapq

import numpy as np
from numpy.typing import NDArray

from minivllm.core.scheduler_output import SchedulerOutput
from minivllm.sourcemap.registry import on_map
from minivllm.worker.batch_state import apply_all_cached
from minivllm.worker.request_columns import RequestColumns, Row


class RequestSlots:
    """Slots of the requests that hold blocks, and the saved rows of preempted ones (their sampling parameters).

    Attributes:
        longest_first: Order a step of decodes by their contexts, the longest first. A GPU takes up programs in the
            order of the batch, and one that begins last should not be the one that takes longest.
    """

    def __init__(self, columns: RequestColumns, max_num_reqs: int) -> None:
        self.columns = columns
        self.longest_first = False
        self._slots: dict[str, int] = {}
        self._preempted: dict[str, Row] = {}
        self._free = list(range(max_num_reqs))  # a heap: the lowest free slot is taken first

    @on_map(
        "slots: update",
        vllm="vllm/v1/worker/gpu/model_runner.py::GPUModelRunner.update_requests",
        plane="data",
        process="worker",
    )
    def update(self, plan: SchedulerOutput) -> None:
        for req_id in plan.finished_req_ids:
            self._preempted.pop(req_id, None)
            self._release(req_id)
        for req_id in plan.preempted_req_ids & self._slots.keys():
            self._preempted[req_id] = self.columns.save(self._slots[req_id])
            self._release(req_id)
        for new in plan.scheduled_new_reqs:
            self.columns.write_new(self._take(new.req_id), new)
        cached = plan.scheduled_cached_reqs
        if cached.resumed_req_ids:
            for req_id in cached.req_ids:
                if req_id not in self._slots:
                    saved = self._preempted.pop(req_id)
                    self.columns.restore(self._take(req_id), saved)
        if cached.req_ids:
            apply_all_cached(self.columns, self.places_of(cached.req_ids), cached)

    def order(self, plan: SchedulerOutput) -> list[str]:
        """Uniform decodes first, then the others by ascending length: kernels find the decodes as one prefix."""
        scheduled = plan.num_scheduled_tokens
        if plan.total_num_scheduled_tokens == len(scheduled):
            req_ids = list(scheduled)  # one token each
            return self._by_context(req_ids) if self.longest_first else req_ids
        drafts = max(map(len, plan.scheduled_spec_decode_tokens.values()), default=0)
        return sorted(scheduled, key=lambda req_id: (scheduled[req_id] != 1 + drafts, scheduled[req_id]))

    def _by_context(self, req_ids: list[str]) -> list[str]:
        longest_first = np.argsort(-self.columns.num_computed[self.places_of(req_ids)], kind="stable")
        return [req_ids[index] for index in longest_first.tolist()]

    def place_of(self, req_id: str) -> int:
        return self._slots[req_id]

    def places_of(self, req_ids: list[str]) -> NDArray[np.intp]:
        return np.fromiter(map(self._slots.__getitem__, req_ids), np.intp, len(req_ids))

    def _take(self, req_id: str) -> int:
        assert req_id not in self._slots, f"request {req_id} already has a slot"
        assert self._free, "a plan never runs more than max_num_seqs requests"
        self._slots[req_id] = heapq.heappop(self._free)
        return self._slots[req_id]

    def _release(self, req_id: str) -> None:
        slot = self._slots.pop(req_id, None)
        if slot is not None:
            self.columns.block_table.clear(slot)
            heapq.heappush(self._free, slot)
