"""Owns what the device knows of each slot: tokens, block ids, how to sample, and how often tokens occurred.

A mirror of the host's columns, written when a request takes its slot and as it grows; what is sampled the device adds
by itself. Writes are gathered on the host and go over together, in a few copies that nobody waits for:

    place(5, tokens), place(2, tokens)  ->  numbers [...  ...], places [5 * width ..., 2 * width ...]  ->  one scatter

They run on the stream of the steps: behind the step that runs, which still reads the old rows, before the next one.

Upstream: vllm/v1/worker/gpu/states.py::RequestState and vllm/v1/worker/gpu/buffer_utils.py::StagedWriteTensor.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from minivllm.config import SchedulerConfig
from minivllm.kernels.pack_inputs import RequestTable
from minivllm.kernels.penalties import count_history
from minivllm.kernels.scores import SamplingParameters, SamplingState
from minivllm.worker.staging import to_device


@dataclass(frozen=True, slots=True)
class Limits:
    """How large the buffers are."""

    max_num_seqs: int
    max_num_tokens: int
    max_model_len: int
    block_size: int

    @classmethod
    def of(cls, limits: SchedulerConfig, block_size: int) -> Limits:
        """What the steps of a scheduler need, recorded ones included."""
        most_tokens = max(limits.max_num_batched_tokens, 2 * limits.max_num_seqs)
        return cls(limits.max_num_seqs, most_tokens, limits.max_model_len, block_size)


class Draw(NamedTuple):
    """How a request is sampled, in the order of `SamplingParameters`."""

    temperature: float = 0.0
    min_p: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0  # of 64 bits, without a sign
    repetition: float = 1.0
    frequency: float = 0.0
    presence: float = 0.0

    @property
    def has_penalties(self) -> bool:
        return (self.repetition, self.frequency, self.presence) != (1.0, 0.0, 0.0)


_SAMPLING_DTYPES = ("float32", "float32", "int32", "float32", "int64", "float32", "float32", "float32")
_SEED = _SAMPLING_DTYPES.index("int64")


class DeviceRequests:
    """The slots.

    Args:
        limits: How large the buffers are.
        vocab_size: Tokens of the vocabulary.
        device: Where they are.

    Attributes:
        table: Tokens and block ids. One slot more than there can be requests: what is to be dropped goes there.
        parameters: How each slot is sampled.
        history: (slots, vocab_size) int32, see `minivllm/kernels/penalties.py`; None until a request has penalties.
    """

    def __init__(self, limits: Limits, vocab_size: int, device: torch.device) -> None:
        slots = limits.max_num_seqs + 1
        max_blocks = -(-limits.max_model_len // limits.block_size)
        self.table = RequestTable(
            torch.zeros((slots, limits.max_model_len + 1), dtype=torch.int32, device=device),
            torch.zeros((slots, max_blocks), dtype=torch.int32, device=device),
        )
        self.history: torch.Tensor | None = None
        self._vocab_size = vocab_size
        self._device = device
        # All parameters lie in one piece of memory, so that one copy brings them: 36 bytes a slot.
        self._host_bytes, columns = _columns(slots)
        self._host = tuple(columns)
        self._device_bytes = torch.zeros(len(self._host_bytes), dtype=torch.uint8, device=device)
        views = [self._device_bytes[start : start + size].view(dtype) for start, size, dtype in _places(slots)]
        self.parameters = SamplingParameters(*views)
        self._tokens: list[tuple[int, NDArray[np.int32]]] = []  # where in the flat table, and what
        self._blocks: list[tuple[int, NDArray[np.int32]]] = []
        self._histories: list[tuple[int, int, int]] = []  # slot, tokens, prompt tokens
        self._has_new_parameters = False

    def state(self, with_history: bool) -> SamplingState:
        """What sampling reads and changes."""
        return SamplingState(self.table.token_ids, self.history if with_history else None)

    def make_room_for_penalties(self) -> bool:
        """Allocate the histories, if they are not there yet. False if there is no memory for them."""
        if self.history is None:
            shape = (len(self.table.token_ids), self._vocab_size)
            try:
                self.history = torch.zeros(shape, dtype=torch.int32, device=self._device)
            except torch.OutOfMemoryError:
                return False
        return True

    def place(
        self, slot: int, token_ids: NDArray[np.int32], num_prompt_tokens: int, block_ids: NDArray[np.int32], draw: Draw
    ) -> None:
        """Give a slot to a request: its known tokens, its blocks, and how it is sampled. Takes effect with `flush`.

        Args:
            slot: Whose.
            token_ids: (tokens,), prompt, then output.
            num_prompt_tokens: How many of them are prompt.
            block_ids: (blocks,).
            draw: How to sample. For penalties, `make_room_for_penalties` comes before.
        """
        assert (token_ids >= 0).all(), "a slot is written anew only when the host knows all of its tokens"
        self._tokens.append((slot * self.table.token_ids.shape[1], token_ids))
        self.append_blocks(slot, 0, block_ids)
        for index, (column, value) in enumerate(zip(self._host, draw, strict=True)):
            column[slot] = np.uint64(value).astype(np.int64) if index == _SEED else value
        self._has_new_parameters = True
        if draw.has_penalties:
            self._histories.append((slot, len(token_ids), num_prompt_tokens))

    def append_blocks(self, slot: int, start: int, block_ids: NDArray[np.int32]) -> None:
        """Put blocks into a slot's table, from its `start`-th on. Takes effect with `flush`."""
        self._blocks.append((slot * self.table.block_ids.shape[1] + start, block_ids))

    def flush(self) -> None:
        """Send what was written since the last time, behind all that was launched before."""
        _scatter(self.table.token_ids, self._tokens)
        _scatter(self.table.block_ids, self._blocks)
        if self._has_new_parameters:
            self._device_bytes.copy_(to_device(self._host_bytes, self._device))
            self._has_new_parameters = False
        for slot, num_tokens, num_prompt_tokens in self._histories:
            assert self.history is not None, "room for penalties is made before"
            count_history(self.history, slot, self.table.token_ids[slot, :num_tokens], num_prompt_tokens)
        self._histories.clear()

    def keep(self, slots: torch.Tensor, positions: torch.Tensor, tokens: torch.Tensor) -> None:
        """Note what was sampled outside of the kernels.

        Args:
            slots: (requests,) int32; -1 where nothing was.
            positions: (requests,) int32, of the new tokens.
            tokens: (requests,) int64.
        """
        dump = len(self.table.token_ids) - 1
        rows = torch.where(slots >= 0, slots, dump).long()
        self.table.token_ids[rows, positions.long()] = tokens.int()
        if self.history is not None:
            self.history.index_put_((rows, tokens), torch.full_like(slots, 2), accumulate=True)


def _places(slots: int) -> list[tuple[int, int, torch.dtype]]:
    """Where each parameter's bytes start, how many there are, and what they are. The widest stands first.

    Each starts at a multiple of 16 bytes: Triton compiles a kernel anew for other alignments.
    """
    slots = -(-slots // 4) * 4
    dtypes = [getattr(torch, name) for name in _SAMPLING_DTYPES]
    start, found = 8 * slots, []
    for index, dtype in enumerate(dtypes):
        if index == _SEED:
            found.append((0, 8 * slots, dtype))
        else:
            found.append((start, 4 * slots, dtype))
            start += 4 * slots
    return found


def _columns(slots: int) -> tuple[NDArray[np.uint8], list[NDArray[np.float32] | NDArray[np.int32] | NDArray[np.int64]]]:
    """The same memory on the host, and its columns."""
    places = _places(slots)
    memory = np.zeros(max(start + size for start, size, _ in places), dtype=np.uint8)
    names = zip(places, _SAMPLING_DTYPES, strict=True)
    return memory, [memory[start : start + size].view(name) for (start, size, _), name in names]


def _scatter(table: torch.Tensor, writes: list[tuple[int, NDArray[np.int32]]]) -> None:
    """Write runs of numbers into a table, each at its place in the flat memory, and forget them."""
    if not writes:
        return
    lengths = np.array([len(numbers) for _, numbers in writes])
    starts = np.array([start for start, _ in writes], dtype=np.int64)
    run_start = np.cumsum(lengths) - lengths
    places = np.repeat(starts - run_start, lengths) + np.arange(lengths.sum())
    numbers = np.concatenate([numbers for _, numbers in writes]).astype(np.int32)
    writes.clear()
    table.view(-1).index_copy_(0, to_device(places, table.device), to_device(numbers, table.device))
