"""Owns the other batch: rows without gaps, so that row i is the i-th request of the batch.

Whoever is not scheduled leaves (finished, preempted, or just left out this step); newcomers fill the lowest holes; then
the highest rows move down into the holes that remain; at last rows are swapped until decodes stand before prefills.
Every column must move with them: that is the price of having no gather, and the reason why the slots exist.

Upstream: vllm/v1/worker/gpu_input_batch.py::InputBatch and GPUModelRunner._update_states.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from minivllm.core.scheduler_output import SchedulerOutput
from minivllm.sourcemap.registry import on_map
from minivllm.worker.batch_state import apply_cached
from minivllm.worker.request_columns import RequestColumns, Row

# The regions of a batch, in the order of their rows.
_DECODE, _SHORT_EXTENSION, _LONG_EXTENSION, _FIRST_CHUNK = range(4)


class InputBatch:
    """Rows of the scheduled requests, and the saved rows of those that sit out."""

    def __init__(self, columns: RequestColumns, max_num_reqs: int) -> None:
        self.columns = columns
        self._req_ids: list[str | None] = []  # by row; None is a hole, only while a plan is applied
        self._rows: dict[str, int] = {}
        self._parked: dict[str, Row] = {}
        self._max_num_reqs = max_num_reqs

    @on_map(
        "rows: update",
        vllm="vllm/v1/worker/gpu_model_runner.py::GPUModelRunner._update_states",
        plane="data",
        process="worker",
    )
    def update(self, plan: SchedulerOutput) -> None:
        cached = plan.scheduled_cached_reqs
        for req_id in plan.finished_req_ids:
            self._remove(req_id)
            self._parked.pop(req_id, None)
        staying = set(cached.req_ids) - cached.resumed_req_ids
        for req_id in [req_id for req_id in self._rows if req_id not in staying]:
            self._parked[req_id] = self.columns.save(self._rows[req_id])
            self._remove(req_id)
        for new in plan.scheduled_new_reqs:
            self.columns.write_new(self._add(new.req_id), new)
        for index, req_id in enumerate(cached.req_ids):
            if req_id not in self._rows:
                saved = self._parked.pop(req_id)
                self.columns.restore(self._add(req_id), saved)
            apply_cached(self.columns, self._rows[req_id], cached, index)
        self.condense()
        self.reorder_batch(plan)

    def order(self, plan: SchedulerOutput) -> list[str]:
        """The rows from top to bottom."""
        return [req_id for req_id in self._req_ids if req_id is not None]

    def place_of(self, req_id: str) -> int:
        return self._rows[req_id]

    def places_of(self, req_ids: list[str]) -> NDArray[np.intp]:
        return np.fromiter(map(self._rows.__getitem__, req_ids), np.intp, len(req_ids))

    @on_map("condense", vllm="vllm/v1/worker/gpu_input_batch.py::InputBatch.condense", plane="data", process="worker")
    def condense(self) -> None:
        """Move the highest rows into the lowest holes, until no hole is left."""
        for hole, occupant in enumerate(self._req_ids):
            self._drop_trailing_holes()
            if hole >= len(self._req_ids):
                break
            if occupant is None:
                self._move(source=len(self._req_ids) - 1, target=hole)
        self._drop_trailing_holes()

    @on_map(
        "rows: decodes first",
        vllm="vllm/v1/attention/backends/utils.py::reorder_batch_to_split_decodes_and_prefills",
        plane="data",
        process="worker",
    )
    def reorder_batch(self, plan: SchedulerOutput) -> None:
        """Swap rows until the regions follow each other: decodes, short extensions, long extensions, first chunks.

        A kernel for decodes then finds its requests as one run of rows. Only rows that stand in the wrong region move,
        and those of one region keep their order among themselves.
        """
        drafts = max(map(len, plan.scheduled_spec_decode_tokens.values()), default=0)
        regions = [
            self._region(row, plan.num_scheduled_tokens[req_id], threshold=1 + drafts)
            for row, req_id in enumerate(self.order(plan))
        ]
        wrong = [row for row, (has, wants) in enumerate(zip(regions, sorted(regions), strict=True)) if has != wants]
        sources = sorted(wrong, key=lambda row: regions[row])
        target_of = dict(zip(sources, wrong, strict=True))
        # A permutation is a set of cycles: each swap brings one row to its place, and the row from there to the start.
        for start in target_of:
            while (target := target_of[start]) != start:
                self.swap_states(start, target)
                target_of[start], target_of[target] = target_of[target], target

    def _region(self, row: int, num_scheduled: int, threshold: int) -> int:
        computed = self.columns.num_computed[row]
        if computed == 0:
            return _FIRST_CHUNK
        if num_scheduled > threshold:
            return _LONG_EXTENSION
        return _DECODE if computed >= self.columns.num_prompt_tokens[row] else _SHORT_EXTENSION

    @on_map(
        "swap rows", vllm="vllm/v1/worker/gpu_input_batch.py::InputBatch.swap_states", plane="data", process="worker"
    )
    def swap_states(self, first: int, second: int) -> None:
        """Let two requests change places."""
        one, other = self._req_ids[first], self._req_ids[second]
        assert one is not None, "rows are swapped after holes are closed"
        assert other is not None, "rows are swapped after holes are closed"
        self.columns.swap(first, second)
        self._req_ids[first], self._req_ids[second] = other, one
        self._rows[one], self._rows[other] = second, first

    def _move(self, source: int, target: int) -> None:
        req_id = self._req_ids[source]
        assert req_id is not None, "the highest row is never a hole while rows move"
        self.columns.move(source, target)
        self.columns.block_table.clear(source)
        self._req_ids[target], self._req_ids[source] = req_id, None
        self._rows[req_id] = target

    def _add(self, req_id: str) -> int:
        """The lowest hole, or a row at the end."""
        if None in self._req_ids:
            row = self._req_ids.index(None)
            self._req_ids[row] = req_id
        else:
            row = len(self._req_ids)
            self._req_ids.append(req_id)
        assert row < self._max_num_reqs, "a plan never runs more than max_num_seqs requests"
        self._rows[req_id] = row
        return row

    def _remove(self, req_id: str) -> None:
        row = self._rows.pop(req_id, None)
        if row is not None:
            self.columns.block_table.clear(row)
            self._req_ids[row] = None

    def _drop_trailing_holes(self) -> None:
        while self._req_ids and self._req_ids[-1] is None:
            self._req_ids.pop()
