"""Owns the way from requests to logits rows: with which parameters, and after which tokens, each row is sampled.

A request has one row, and one more for each draft. Row i is sampled as if the i drafts before it were right.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from minivllm.core.scheduler_output import LogprobsLists
from minivllm.sample.metadata import RowRules, SamplingMetadata
from minivllm.sample.prompt_logprob import PromptChunk
from minivllm.worker.prepared_batch import PreparedBatch
from minivllm.worker.request_columns import NO_LOGPROBS, RequestColumns


def sampling_metadata(batch: PreparedBatch, columns: RequestColumns) -> SamplingMetadata:
    """Each logits row takes the parameters of its request."""
    rows = np.array([1 + len(drafts) for drafts in batch.drafts])
    places = batch.places.repeat(rows)
    num_logprobs = _num_logprobs(batch, columns, rows)
    return SamplingMetadata(
        req_ids=[req_id for req_id, count in zip(batch.req_ids, rows.tolist(), strict=True) for _ in range(count)],
        temperature=columns.temperature[places],
        top_k=columns.top_k[places],
        top_p=columns.top_p[places],
        min_p=columns.min_p[places],
        seed=columns.seed[places],
        position=batch.positions[batch.logits_indices] + 1,
        rules=list(_rules(batch, columns)) if columns.has_rules[batch.places].any() else [],
        num_logprobs=num_logprobs,
        logprob_token_ids={} if num_logprobs is None else _logprob_token_ids(places, columns),
    )


def _rules(batch: PreparedBatch, columns: RequestColumns) -> Iterator[RowRules]:
    row = 0
    for place, drafts, samples in zip(batch.places.tolist(), batch.drafts, batch.samples.tolist(), strict=True):
        if samples and columns.has_rules[place]:
            params, prompt = columns.params[place], columns.prompt_token_ids(place)
            output = np.concatenate((columns.output_token_ids(place), np.array(drafts, dtype=np.int32)))
            known = len(output) - len(drafts)
            for i in range(1 + len(drafts)):
                yield RowRules(row + i, params, prompt, output[: known + i])
        row += 1 + len(drafts)


def _num_logprobs(batch: PreparedBatch, columns: RequestColumns, rows: NDArray[np.int64]) -> NDArray[np.int32] | None:
    counts = np.where(batch.samples, columns.num_logprobs[batch.places], NO_LOGPROBS)
    return counts.repeat(rows) if (counts != NO_LOGPROBS).any() else None


def _logprob_token_ids(places: NDArray[np.intp], columns: RequestColumns) -> dict[int, tuple[int, ...]]:
    wanted = ((row, columns.params[place].logprob_token_ids) for row, place in enumerate(places.tolist()))
    return {row: token_ids for row, token_ids in wanted if token_ids}


def prompt_chunks(batch: PreparedBatch, columns: RequestColumns) -> Iterator[PromptChunk]:
    """What the step computes of the requests that ask for the scores of their prompts."""
    if (columns.num_prompt_logprobs[batch.places] == NO_LOGPROBS).all():
        return
    for index, (req_id, place) in enumerate(zip(batch.req_ids, batch.places.tolist(), strict=True)):
        count = int(columns.num_prompt_logprobs[place])
        if count != NO_LOGPROBS:
            offset, end = batch.query_start_loc[index : index + 2].tolist()
            start = int(batch.positions[offset])
            prompt = columns.prompt_token_ids(place)
            yield PromptChunk(req_id, count, prompt, start, start + end - offset, offset, bool(batch.samples[index]))


def logprobs_of_requests(
    batch: PreparedBatch, metadata: SamplingMetadata, scores: LogprobsLists | None, sampled: list[list[int]]
) -> dict[str, LogprobsLists] | None:
    """Split the scores by request, and leave out those of rejected drafts.

    Args:
        batch: The batch.
        metadata: Its rows.
        scores: Of the rows that ask, in their order; None if none does.
        sampled: The tokens of each request that stand.
    """
    if scores is None or metadata.num_logprobs is None:
        return None
    by_request = {}
    row = start = 0
    for req_id, drafts, tokens in zip(batch.req_ids, batch.drafts, sampled, strict=True):
        if metadata.num_logprobs[row] != NO_LOGPROBS:
            by_request[req_id] = scores.slice(start, start + len(tokens))
            start += 1 + len(drafts)
        row += 1 + len(drafts)
    return by_request
