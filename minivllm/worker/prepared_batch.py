"""Owns a step's inputs as arrays: who computes which positions, and where their keys and values go.

Upstream: vllm/v1/worker/gpu_model_runner.py::GPUModelRunner._prepare_inputs, vllm/v1/worker/gpu/input_batch.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from minivllm.core.scheduler_output import SchedulerOutput
from minivllm.worker.batch_state import BatchState
from minivllm.worker.request_columns import RequestColumns


@dataclass(frozen=True, slots=True)
class BatchFacts:
    """A prepared batch in plain integers, for whoever explains it. Lists over requests are in batch order.

    Attributes:
        order: Request ids.
        places: Slot or row of each request.
        query_start_loc: Where each request's tokens start in the flat batch; the last entry is the total.
        seq_lens: Tokens each request has after this step.
        positions: Position of each token in its request.
        input_ids: Each token.
        slot_mapping: Where each token's keys and values are written.
        block_table: Block ids of each request.
        logits_indices: Tokens whose logits are computed.
        num_tokens: Tokens of the step.
        num_tokens_padded: Tokens the kernels ran on; more than num_tokens only under a captured graph.
        graph_mode: "NONE" is eager.
        attention_backend: Its name.
    """

    order: list[str]
    places: list[int]
    query_start_loc: list[int]
    seq_lens: list[int]
    positions: list[int]
    input_ids: list[int]
    slot_mapping: list[int]
    block_table: dict[str, list[int]]
    logits_indices: list[int]
    num_tokens: int
    num_tokens_padded: int
    graph_mode: str
    attention_backend: str


@dataclass(eq=False)
class PreparedBatch:
    """A step's inputs.

    What every step needs is there from the start. The arrays over tokens are made when somebody first asks for them:
    a graph makes its own on the device. Once made they are this step's own, and stay true after the state has moved on;
    whoever wants them asks while the step is the latest.
    """

    req_ids: list[str]
    req_id_to_index: dict[str, int]
    places: NDArray[np.intp]  # (requests,)
    num_scheduled: NDArray[np.int32]  # (requests,): tokens of this step
    seq_lens: NDArray[np.int32]  # (requests,): tokens after it
    samples: NDArray[np.bool_]  # (requests,): False for a chunk that ends before the known tokens do
    num_tokens: int
    longest: int  # of seq_lens
    all_sample: bool  # whether each request samples a token
    drafts: list[list[int]]  # by request
    has_drafts: bool
    columns: RequestColumns
    attention_backend: str
    graph_mode: str = "NONE"
    num_tokens_padded: int = 0  # tokens the kernels run on
    generations: NDArray[np.int64] | None = None  # (requests,), see `DeviceMirror`
    takes: int = 0  # the same
    prefix_tokens: int = 0  # to so many leading tokens the decodes attend together
    follows: bool = False  # the decodes of the step before, each a token further
    has_new_blocks: bool = True  # whether some request may have got a block

    @property
    def is_one_token_each(self) -> bool:
        return self.num_tokens == len(self.req_ids)

    @cached_property
    def query_start_loc(self) -> NDArray[np.int32]:
        """Where each request's tokens start, (requests + 1,)."""
        if self.is_one_token_each:
            return np.arange(self.num_tokens + 1, dtype=np.int32)
        starts = np.zeros(len(self.req_ids) + 1, dtype=np.int32)
        np.cumsum(self.num_scheduled, out=starts[1:])
        return starts

    @cached_property
    def positions(self) -> NDArray[np.int64]:
        """Of each token in its request, (tokens,)."""
        computed = self.seq_lens - self.num_scheduled
        if self.is_one_token_each:
            return computed.astype(np.int64)
        start_of_query = self.query_start_loc[:-1].repeat(self.num_scheduled)  # (tokens,)
        offset_in_query = np.arange(self.num_tokens, dtype=np.int64) - start_of_query
        return computed.repeat(self.num_scheduled) + offset_in_query

    @cached_property
    def input_ids(self) -> NDArray[np.int64]:
        """(tokens,)."""
        return _input_ids(self.columns, self.drafts, self.query_start_loc, self._place_of_token, self.positions)

    @cached_property
    def slot_mapping(self) -> NDArray[np.int64]:
        """Where each token's keys and values are written, (tokens,)."""
        return self.columns.block_table.compute_slot_mapping(self._place_of_token, self.positions)

    @cached_property
    def block_table(self) -> NDArray[np.int32]:
        """(requests, blocks of the longest)."""
        return self.columns.block_table.gather(self.places)

    @cached_property
    def logits_indices(self) -> NDArray[np.int64]:
        """(logits rows,): the last 1 + drafts tokens of each request."""
        return _logits_indices(self.drafts, self.query_start_loc)

    @cached_property
    def next_cells(self) -> NDArray[np.int64]:
        """Where each request's next token stands among all cells of the token store, (requests,).

        A cell's number, and not its row and column: with two arrays for an index NumPy takes ten times as long.
        """
        return self.places * self.columns.token_ids.shape[1] + self.seq_lens

    @property
    def _place_of_token(self) -> NDArray[np.intp]:
        """(tokens,)."""
        return self.places if self.is_one_token_each else self.places.repeat(self.num_scheduled)

    def one_further(self, has_new_blocks: bool) -> PreparedBatch:
        """The next step of the same requests in the same places, each with one token in this step and in the next.

        All that differs is how far they are: `columns` know.
        """
        return PreparedBatch(
            self.req_ids,
            self.req_id_to_index,
            self.places,
            self.num_scheduled,
            self.columns.num_computed[self.places] + self.num_scheduled,
            self.samples,
            self.num_tokens,
            self.longest + 1,
            self.all_sample,
            self.drafts,
            self.has_drafts,
            self.columns,
            self.attention_backend,
            self.graph_mode,
            self.num_tokens_padded,
            self.generations,
            self.takes,
            self.prefix_tokens,
            follows=True,
            has_new_blocks=has_new_blocks,
        )

    def describe(self) -> BatchFacts:
        """The same as plain integers."""
        tables = (row[row >= 0].tolist() for row in self.block_table)
        return BatchFacts(
            order=list(self.req_ids),
            places=self.places.tolist(),
            query_start_loc=self.query_start_loc.tolist(),
            seq_lens=self.seq_lens.tolist(),
            positions=self.positions.tolist(),
            input_ids=self.input_ids.tolist(),
            slot_mapping=self.slot_mapping.tolist(),
            block_table=dict(zip(self.req_ids, tables, strict=True)),
            logits_indices=self.logits_indices.tolist(),
            num_tokens=self.num_tokens,
            num_tokens_padded=max(self.num_tokens_padded, self.num_tokens),
            graph_mode=self.graph_mode,
            attention_backend=self.attention_backend,
        )


def prepare(plan: SchedulerOutput, batch: BatchState, attention_backend: str) -> PreparedBatch:
    """Lay a plan's tokens out flat, request after request in batch order."""
    columns = batch.columns
    req_ids = batch.order(plan)
    places = batch.places_of(req_ids)
    drafts: list[list[int]] = [[]] * len(req_ids)
    if plan.scheduled_spec_decode_tokens:
        drafts = [plan.scheduled_spec_decode_tokens.get(req_id, []) for req_id in req_ids]
    if plan.total_num_scheduled_tokens == len(req_ids):
        scheduled = np.ones(len(req_ids), dtype=np.int32)
    else:
        scheduled = np.fromiter(map(plan.num_scheduled_tokens.__getitem__, req_ids), np.int32, len(req_ids))
    seq_lens = columns.num_computed[places] + scheduled
    samples = seq_lens >= columns.num_tokens[places]
    return PreparedBatch(
        req_ids=req_ids,
        req_id_to_index=dict(zip(req_ids, range(len(req_ids)), strict=True)),
        places=places,
        num_scheduled=scheduled,
        seq_lens=seq_lens,
        samples=samples,
        num_tokens=plan.total_num_scheduled_tokens,
        longest=int(seq_lens.max()),
        all_sample=bool(samples.all()),
        drafts=drafts,
        has_drafts=bool(plan.scheduled_spec_decode_tokens) and any(drafts),
        columns=columns,
        attention_backend=attention_backend,
    )


def _input_ids(
    columns: RequestColumns,
    drafts: list[list[int]],
    query_start_loc: NDArray[np.int32],
    place_of_token: NDArray[np.intp],
    positions: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Known tokens come from the worker's own store (it knows the last sampled one first), drafts from the plan."""
    input_ids = columns.token_ids[place_of_token, positions].astype(np.int64)
    if len(positions) == len(drafts) or not any(drafts):
        return input_ids
    for end, tokens in zip(query_start_loc[1:].tolist(), drafts, strict=True):
        if tokens:
            # An unknown draft (-1) still needs some embedding; what follows from it is always rejected.
            input_ids[end - len(tokens) : end] = np.maximum(tokens, 0)
    return input_ids


def _logits_indices(drafts: list[list[int]], query_start_loc: NDArray[np.int32]) -> NDArray[np.int64]:
    if query_start_loc[-1] == len(drafts) or not any(drafts):  # with one token each there is none to check
        return query_start_loc[1:].astype(np.int64) - 1
    rows = np.array([1 + len(tokens) for tokens in drafts], dtype=np.int64)
    row_start = np.concatenate(([0], rows.cumsum()))
    from_end = row_start[1:].repeat(rows) - np.arange(row_start[-1])  # rows ... 2, 1 for each request
    indices: NDArray[np.int64] = query_start_loc[1:].repeat(rows) - from_end
    return indices
