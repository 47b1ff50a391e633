"""Owns a step's inputs as arrays: who computes which positions, and where their keys and values go.

Upstream: vllm/v1/worker/gpu_model_runner.py::GPUModelRunner._prepare_inputs, vllm/v1/worker/gpu/input_batch.py.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from minivllm.core.scheduler_output import SchedulerOutput
from minivllm.worker.batch_state import BatchState


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


@dataclass(slots=True, eq=False)
class PreparedBatch:
    """A step's inputs. Arrays are this step's own copies, so they stay true after the state has moved on."""

    req_ids: list[str]
    places: NDArray[np.intp]  # (requests,)
    query_start_loc: NDArray[np.int32]  # (requests + 1,)
    num_scheduled: NDArray[np.int32]  # (requests,): tokens of this step
    seq_lens: NDArray[np.int32]  # (requests,): tokens after it
    positions: NDArray[np.int64]  # (tokens,)
    input_ids: NDArray[np.int64]  # (tokens,)
    slot_mapping: NDArray[np.int64]  # (tokens,)
    block_table: NDArray[np.int32]  # (requests, blocks of the longest)
    logits_indices: NDArray[np.int64]  # (logits rows,): the last 1 + drafts tokens of each request
    drafts: list[list[int]]  # by request
    samples: NDArray[np.bool_]  # (requests,): False for a chunk that ends before the known tokens do
    attention_backend: str
    graph_mode: str = "NONE"
    num_tokens_padded: int = 0  # tokens the kernels run on
    generations: NDArray[np.int64] | None = None  # (requests,), see `DeviceMirror`
    prefix_tokens: int = 0  # to so many leading tokens the decodes attend together

    @property
    def has_drafts(self) -> bool:
        return len(self.logits_indices) > len(self.req_ids)

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
            num_tokens=len(self.input_ids),
            num_tokens_padded=max(self.num_tokens_padded, len(self.input_ids)),
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
    computed = columns.num_computed[places]

    if plan.total_num_scheduled_tokens == len(req_ids):  # one token each: tokens are what requests are
        scheduled = np.ones(len(req_ids), dtype=np.int32)
        query_start_loc = np.arange(len(req_ids) + 1, dtype=np.int32)
        positions, place_of_token = computed.astype(np.int64), places
    else:
        scheduled = np.fromiter(map(plan.num_scheduled_tokens.__getitem__, req_ids), np.int32, len(req_ids))
        query_start_loc = np.zeros(len(req_ids) + 1, dtype=np.int32)
        np.cumsum(scheduled, out=query_start_loc[1:])
        request_of_token = np.repeat(np.arange(len(req_ids)), scheduled)  # (tokens,)
        offset_in_query = np.arange(query_start_loc[-1], dtype=np.int64) - query_start_loc[request_of_token]
        positions = computed[request_of_token] + offset_in_query  # (tokens,)
        place_of_token = places[request_of_token]
    seq_lens = computed + scheduled
    return PreparedBatch(
        req_ids=req_ids,
        places=places,
        query_start_loc=query_start_loc,
        num_scheduled=scheduled,
        seq_lens=seq_lens,
        positions=positions,
        input_ids=_input_ids(batch, drafts, query_start_loc, place_of_token, positions),
        slot_mapping=columns.block_table.compute_slot_mapping(place_of_token, positions),
        block_table=columns.block_table.gather(places),
        logits_indices=_logits_indices(drafts, query_start_loc),
        drafts=drafts,
        samples=seq_lens >= columns.num_tokens[places],
        attention_backend=attention_backend,
    )


def _input_ids(
    batch: BatchState,
    drafts: list[list[int]],
    query_start_loc: NDArray[np.int32],
    place_of_token: NDArray[np.intp],
    positions: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Known tokens come from the worker's own store (it knows the last sampled one first), drafts from the plan."""
    input_ids = batch.columns.token_ids[place_of_token, positions].astype(np.int64)
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
