"""Owns what the worker knows of each request in its batch: one row of every column.

Columns, not objects, so that a step's inputs are gathered by a few array operations, whatever the batch size. Which
request has which row is not decided here, but by `RequestSlots` or `InputBatch`.

Upstream: vllm/v1/worker/gpu/states.py::RequestState and the columns of vllm/v1/worker/gpu_input_batch.py::InputBatch.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minivllm.core.scheduler_output import NewRequestData
from minivllm.sample.logits_processor import has_rules
from minivllm.worker.block_table import BlockTable

# One row of every column: what moves when a request moves.
Row = tuple[Any, ...]
# In `num_logprobs`: the request does not ask.
NO_LOGPROBS = -1


class RequestColumns:
    """The columns. `token_ids` is the only record of a request's tokens: plans do not repeat them.

    Args:
        max_num_reqs: Rows.
        max_model_len: Tokens a row can hold.
        block_size: Tokens per block.
        seed: Seed of the draws of requests that bring none.
    """

    def __init__(self, max_num_reqs: int, max_model_len: int, block_size: int, seed: int) -> None:
        self._seed = seed
        self.token_ids = np.zeros((max_num_reqs, max_model_len), dtype=np.int32)  # prompt, then output
        self.num_tokens = np.zeros(max_num_reqs, dtype=np.int32)  # of them known
        self.num_prompt_tokens = np.zeros(max_num_reqs, dtype=np.int32)
        self.num_computed = np.zeros(max_num_reqs, dtype=np.int32)  # tokens whose KV is in the cache
        self.block_table = BlockTable(max_num_reqs, max_model_len, block_size)
        self.temperature = np.zeros(max_num_reqs, dtype=np.float32)
        self.top_p = np.ones(max_num_reqs, dtype=np.float32)
        self.top_k = np.zeros(max_num_reqs, dtype=np.int32)  # 0 keeps all
        self.min_p = np.zeros(max_num_reqs, dtype=np.float32)
        self.seed = np.zeros(max_num_reqs, dtype=np.uint64)
        self.num_logprobs = np.full(max_num_reqs, NO_LOGPROBS, dtype=np.int32)  # of each output token
        self.num_prompt_logprobs = np.full(max_num_reqs, NO_LOGPROBS, dtype=np.int32)
        # Rules have parameters of any size, so they stay where they are: in the request's own parameters.
        self.params = np.full(max_num_reqs, None, dtype=object)  # SamplingParams
        self.has_rules = np.zeros(max_num_reqs, dtype=np.bool_)
        self._all: tuple[NDArray[Any], ...] = (
            self.token_ids,
            self.num_tokens,
            self.num_prompt_tokens,
            self.num_computed,
            self.block_table.ids,
            self.block_table.num_blocks,
            self.temperature,
            self.top_p,
            self.top_k,
            self.min_p,
            self.seed,
            self.num_logprobs,
            self.num_prompt_logprobs,
            self.params,
            self.has_rules,
        )

    def write_new(self, row: int, new: NewRequestData) -> None:
        """Fill a row with a request that the worker sees for the first time."""
        self.num_prompt_tokens[row] = len(new.prompt_token_ids)
        self.write_tokens(row, new.prompt_token_ids)
        self.num_computed[row] = new.num_computed_tokens
        self.block_table.replace(row, new.block_ids)
        params = new.sampling_params
        self.temperature[row] = 0.0 if params.is_greedy else params.temperature
        self.top_p[row] = params.top_p
        self.top_k[row] = max(params.top_k, 0)
        self.min_p[row] = params.min_p
        self.seed[row] = _seed_of(new.req_id, self._seed) if params.seed is None else params.seed % 2**64
        self.num_logprobs[row] = NO_LOGPROBS if params.num_logprobs is None else params.num_logprobs
        self.num_prompt_logprobs[row] = NO_LOGPROBS if params.prompt_logprobs is None else params.prompt_logprobs
        self.params[row] = params
        self.has_rules[row] = has_rules(params)

    def write_tokens(self, row: int, token_ids: list[int]) -> None:
        """Replace a row's tokens, prompt and output."""
        self.token_ids[row, : len(token_ids)] = token_ids
        self.num_tokens[row] = len(token_ids)

    def append_tokens(self, row: int, token_ids: list[int]) -> None:
        """Add what was sampled."""
        start = int(self.num_tokens[row])
        self.token_ids[row, start : start + len(token_ids)] = token_ids
        self.num_tokens[row] = start + len(token_ids)

    def prompt_token_ids(self, row: int) -> NDArray[np.int32]:
        """A view of a row's prompt, (prompt tokens,)."""
        return self.token_ids[row, : self.num_prompt_tokens[row]]

    def output_token_ids(self, row: int) -> NDArray[np.int32]:
        """A view of a row's output, (output tokens,)."""
        return self.token_ids[row, self.num_prompt_tokens[row] : self.num_tokens[row]]

    def set_computed(self, row: int, num_computed_tokens: int) -> None:
        """Take the plan's count of computed tokens, less what a rejected draft made too optimistic.

        The last known token is never computed yet, so a plan made before the rejection was known counts too many.
        """
        self.num_computed[row] = min(num_computed_tokens, int(self.num_tokens[row]) - 1)

    def move(self, source: int, target: int) -> None:
        """Copy a row over another one. Every column moves: one left behind would mix two requests."""
        for column in self._all:
            column[target] = column[source]

    def swap(self, first: int, second: int) -> None:
        """Exchange two rows. By a copy of both: `a, b = b, a` on two views of one array would write one row twice."""
        for column in self._all:
            column[[first, second]] = column[[second, first]]

    def save(self, row: int) -> Row:
        """A copy of a row, for a request that leaves the batch for a while."""
        return tuple(column[row].copy() if column.ndim > 1 else column[row] for column in self._all)

    def restore(self, row: int, saved: Row) -> None:
        """Put a saved row back, at any place."""
        for column, value in zip(self._all, saved, strict=True):
            column[row] = value


def _seed_of(req_id: str, seed: int) -> int:
    """A seed for a request without one: a run with the same seed and request ids draws the same tokens again."""
    digest = hashlib.blake2b(f"{seed}/{req_id}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little")
