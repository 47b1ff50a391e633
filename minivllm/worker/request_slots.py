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
        is_for_kernels: Order decodes by their contexts, the longest first, and put new prompts last. A GPU takes up
            programs in the order of the batch, and one that begins last should not be the one that takes longest; and
            new prompts have kernels of their own.
    """

    def __init__(self, columns: RequestColumns, max_num_reqs: int) -> None:
        self.columns = columns
        self.is_for_kernels = False
        self._slots: dict[str, int] = {}
        self._preempted: dict[str, Row] = {}
        self._free = list(range(max_num_reqs))  # a heap: the lowest free slot is taken first
        # Where the requests of the lists asked for last are. While the same ones decode on, nobody is looked up again.
        self._places: list[tuple[list[str], NDArray[np.intp]]] = []

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
        if self.is_for_kernels:
            return self._order_for_kernels(scheduled)
        if plan.total_num_scheduled_tokens == len(scheduled):
            return list(scheduled)  # one token each
        drafts = max(map(len, plan.scheduled_spec_decode_tokens.values()), default=0)
        return sorted(scheduled, key=lambda req_id: (scheduled[req_id] != 1 + drafts, scheduled[req_id]))

    def _order_for_kernels(self, scheduled: dict[str, int]) -> list[str]:
        """Decodes, the longest context first; what goes on with more tokens; new prompts, the shortest first."""
        req_ids = list(scheduled)
        query_lens = np.fromiter(scheduled.values(), np.int32, len(req_ids))
        computed = self.columns.num_computed[self.places_of(req_ids)]
        part = np.where(query_lens == 1, 0, np.where(computed > 0, 1, 2))
        order = np.lexsort((np.where(part == 0, -computed, query_lens), part))  # stable; the last key is the first
        return [req_ids[index] for index in order.tolist()]

    def place_of(self, req_id: str) -> int:
        return self._slots[req_id]

    def places_of(self, req_ids: list[str]) -> NDArray[np.intp]:
        for known, places in self._places:
            if known == req_ids:
                return places
        places = np.fromiter(map(self._slots.__getitem__, req_ids), np.intp, len(req_ids))
        places.flags.writeable = False
        self._places = [*self._places[-1:], (req_ids, places)]
        return places

    def _take(self, req_id: str) -> int:
        assert req_id not in self._slots, f"request {req_id} already has a slot"
        assert self._free, "a plan never runs more than max_num_seqs requests"
        self._places.clear()
        self._slots[req_id] = heapq.heappop(self._free)
        return self._slots[req_id]

    def _release(self, req_id: str) -> None:
        slot = self._slots.pop(req_id, None)
        if slot is not None:
            self._places.clear()
            self.columns.block_table.clear(slot)
            heapq.heappush(self._free, slot)
