"""Owns the scheduler's record of one request: its tokens, its progress, its status.

The frontend keeps a record of its own (text, streams) and the worker a mirror (a slot, a block table row); neither
writes here. Upstream: vllm/v1/request.py.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from typing import Protocol, overload

import msgspec

from minivllm.sampling_params import SamplingParams


class FinishReason(enum.IntEnum):
    """Why a request ended, as told to the frontend. Upstream: vllm/v1/engine/__init__.py::FinishReason."""

    STOP = 0
    LENGTH = 1
    ABORT = 2
    ERROR = 3
    REPETITION = 4

    def __str__(self) -> str:
        return self.name.lower()


class RequestStatus(enum.IntEnum):
    """Where a request stands. Everything after PREEMPTED is finished."""

    WAITING = enum.auto()
    WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR = enum.auto()
    WAITING_FOR_REMOTE_KVS = enum.auto()
    WAITING_FOR_STREAMING_REQ = enum.auto()
    RUNNING = enum.auto()
    PREEMPTED = enum.auto()
    FINISHED_STOPPED = enum.auto()
    FINISHED_LENGTH_CAPPED = enum.auto()
    FINISHED_ABORTED = enum.auto()
    FINISHED_IGNORED = enum.auto()
    FINISHED_ERROR = enum.auto()
    FINISHED_REPETITION = enum.auto()

    @property
    def is_finished(self) -> bool:
        return self > RequestStatus.PREEMPTED

    @property
    def is_blocked(self) -> bool:
        """Waiting for something other than its turn."""
        return self in _BLOCKED

    @property
    def finish_reason(self) -> FinishReason | None:
        return _FINISH_REASON.get(self)


_BLOCKED = frozenset(
    {
        RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR,
        RequestStatus.WAITING_FOR_REMOTE_KVS,
        RequestStatus.WAITING_FOR_STREAMING_REQ,
    }
)

_FINISH_REASON = {
    RequestStatus.FINISHED_STOPPED: FinishReason.STOP,
    RequestStatus.FINISHED_LENGTH_CAPPED: FinishReason.LENGTH,
    RequestStatus.FINISHED_ABORTED: FinishReason.ABORT,
    RequestStatus.FINISHED_IGNORED: FinishReason.LENGTH,
    RequestStatus.FINISHED_ERROR: FinishReason.ERROR,
    RequestStatus.FINISHED_REPETITION: FinishReason.REPETITION,
}


class LoRARequest(msgspec.Struct, frozen=True):
    """An adapter to apply. Name and path together tell adapters apart: equal names may hold other weights."""

    name: str
    path: str


class MultiModalItem(msgspec.Struct, frozen=True):
    """An image or another input that stands for `length` placeholder tokens from `offset` on."""

    identifier: str
    offset: int
    length: int


class TokenView(Sequence[int]):
    """A read-only window on a request's tokens: they can only grow through `append_output_token_ids`."""

    __slots__ = ("_start", "_tokens")

    def __init__(self, tokens: list[int], start: int = 0) -> None:
        self._tokens = tokens
        self._start = start

    def __len__(self) -> int:
        return len(self._tokens) - self._start

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> list[int]: ...
    def __getitem__(self, index: int | slice) -> int | list[int]:
        if isinstance(index, slice):
            return self._tokens[self._start :][index]
        if index >= 0:
            return self._tokens[self._start + index]
        if -index > len(self):
            raise IndexError("token index out of range")
        return self._tokens[index]

    def __iter__(self) -> Iterator[int]:
        for i in range(self._start, len(self._tokens)):
            yield self._tokens[i]


# Beyond any sequence: stands for "no limit" where numbers are compared.
_NO_LIMIT = 1 << 62


class BlockHasher(Protocol):
    """Returns the hashes of a request's full blocks, from behind its `_block_hashes` on.

    Attributes:
        block_size: Tokens per block.
    """

    block_size: int

    def __call__(self, request: Request) -> list[bytes]: ...


class Request:
    """One sequence being generated, as the scheduler sees it.

    Args:
        request_id: Unique among the requests at hand.
        prompt_token_ids: The prompt; must not be empty.
        sampling_params: Limits and stops; `max_tokens` None means up to the model's length.
        arrival_time: Breaks ties between equal priorities, and picks the victim of a preemption.
        priority: Lower runs first under the priority policy.
        block_hasher: Computes the hashes of full blocks; None if prefix caching is off.

    Attributes:
        num_tokens: Known tokens, prompt and output.
        num_computed_tokens: Tokens whose KV is in the cache, or will be once the steps in flight are done.
        num_cached_tokens: Tokens of the prefix hit at its first admission, until the frontend has been told.
        num_output_placeholders: Tokens (sampled, or drafts) that steps in flight will bring (async scheduling).
        num_in_flight_tokens: Tokens scheduled by steps whose output is not processed yet.
        num_stale_output_tokens: Those of them that were scheduled before a preemption: their output is still
            delivered, but must not touch the counters.
        drop_stale_output: Discard that output instead.
        spec_token_ids: Draft tokens to verify in the next step.
        is_prefill_chunk: Its last scheduled chunk did not reach the end of its known tokens.
        ready: For a blocked status: what it waits for has arrived.
    """

    __slots__ = (
        "_all_token_ids",
        "_block_hasher",
        "_block_hashes",
        "_next_full_block",
        "arrival_time",
        "cache_salt",
        "drop_stale_output",
        "is_prefill_chunk",
        "lora_request",
        "max_tokens",
        "mm_features",
        "num_cached_tokens",
        "num_computed_tokens",
        "num_in_flight_tokens",
        "num_output_placeholders",
        "num_preemptions",
        "num_prompt_tokens",
        "num_stale_output_tokens",
        "num_tokens",
        "priority",
        "ready",
        "request_id",
        "sampling_params",
        "spec_token_ids",
        "status",
        "stop_reason",
    )

    def __init__(
        self,
        request_id: str,
        prompt_token_ids: Sequence[int],
        sampling_params: SamplingParams,
        *,
        arrival_time: float = 0.0,
        priority: int = 0,
        lora_request: LoRARequest | None = None,
        cache_salt: str | None = None,
        mm_features: Sequence[MultiModalItem] = (),
        block_hasher: BlockHasher | None = None,
        status: RequestStatus = RequestStatus.WAITING,
    ) -> None:
        if not prompt_token_ids:
            raise ValueError(f"request {request_id!r} has an empty prompt: give it at least one token")
        self.request_id = request_id
        self.sampling_params = sampling_params
        self.max_tokens = sampling_params.max_tokens if sampling_params.max_tokens is not None else _NO_LIMIT
        self.arrival_time = arrival_time
        self.priority = priority
        self.lora_request = lora_request
        self.cache_salt = cache_salt
        self.mm_features = tuple(mm_features)
        self.status = status
        self.ready = False
        self.stop_reason: int | str | None = None

        self._all_token_ids: list[int] = list(prompt_token_ids)
        self.num_prompt_tokens = len(self._all_token_ids)
        self.num_tokens = self.num_prompt_tokens
        self.num_computed_tokens = 0
        self.num_preemptions = 0
        self.num_cached_tokens: int | None = None
        self.is_prefill_chunk = False
        self.spec_token_ids: list[int] = []

        self.num_output_placeholders = 0
        self.num_in_flight_tokens = 0
        self.num_stale_output_tokens = 0
        self.drop_stale_output = False

        self._block_hasher = block_hasher
        self._block_hashes: list[bytes] = []
        # How many tokens there are when the next block is full: until then there is nothing to hash.
        self._next_full_block = _NO_LIMIT if block_hasher is None else block_hasher.block_size

    @property
    def prompt_token_ids(self) -> list[int]:
        """A copy of the prompt."""
        return self._all_token_ids[: self.num_prompt_tokens]

    @property
    def all_token_ids(self) -> TokenView:
        """Prompt and output, read-only."""
        return TokenView(self._all_token_ids)

    @property
    def output_token_ids(self) -> TokenView:
        """The output, read-only."""
        return TokenView(self._all_token_ids, self.num_prompt_tokens)

    @property
    def block_hashes(self) -> list[bytes]:
        """One hash per full block. Made when somebody asks: what waits in the queue need not be hashed before the
        first step can start, and most of it is hashed while a step runs."""
        if self.num_tokens >= self._next_full_block and self._block_hasher is not None:
            self._block_hashes.extend(self._block_hasher(self))
            self._next_full_block = (len(self._block_hashes) + 1) * self._block_hasher.block_size
        return self._block_hashes

    @property
    def num_output_tokens(self) -> int:
        return self.num_tokens - self.num_prompt_tokens

    @property
    def num_tokens_with_spec(self) -> int:
        """Known tokens and drafts: what `num_computed_tokens` chases."""
        return self.num_tokens + len(self.spec_token_ids)

    @property
    def is_finished(self) -> bool:
        return self.status.is_finished

    def append_output_token_ids(self, token_id: int) -> None:
        """Append one output token."""
        self._all_token_ids.append(token_id)
        self.num_tokens += 1

    def __lt__(self, other: Request) -> bool:
        """Order of the priority queue: priority, then arrival, then id."""
        return (self.priority, self.arrival_time, self.request_id) < (
            other.priority,
            other.arrival_time,
            other.request_id,
        )

    def __repr__(self) -> str:
        return f"Request({self.request_id!r}, {self.status.name}, {self.num_computed_tokens}/{self.num_tokens})"
