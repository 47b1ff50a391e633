"""Owns the copies between host and device that nobody waits for: a step's rows to the device, tokens back.

    host      plan 7 -> ring[1] ----.                                  tokens of 6 <- ring[0]
    main stream          ... step 6 ..'--> copy in, step 7 (reads the rows, samples)
    copy stream                 '--> copy out of 6's tokens, while 7 runs

Both sides use *pinned* memory, which the GPU reads and writes by itself while the host goes on. It must not be touched
while a copy is under way: so there is a ring of buffers, and each has an event that says when its copy is done. The
next step's inputs never wait for the copy out: on the device the new tokens are in place already.

On a CPU the same calls copy at once; there are no streams, and nothing is pinned.

Upstream: vllm/v1/worker/gpu/buffer_utils.py and vllm/v1/worker/gpu/async_utils.py::AsyncOutput.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

# Two steps are in flight at most: the one that runs, and the one that is being prepared.
_RING = 3


def to_device(array: NDArray[Any], device: torch.device) -> torch.Tensor:
    """A copy of an array on the device, without waiting for what runs there.

    The pinned memory in between goes back to PyTorch's pool, which gives it out again only when the copy is done.
    """
    if device.type == "cpu":
        return torch.from_numpy(array.copy())
    pinned = torch.empty(array.shape, dtype=torch.from_numpy(array[:0]).dtype, pin_memory=True)
    pinned.numpy()[...] = array
    return pinned.to(device, non_blocking=True)


class StagedRows:
    """A step's rows of integers, from the host to a fixed place on the device.

    Args:
        num_rows: Different rows, such as slots and counts.
        max_requests: Numbers of each.
        device: Where they go.

    Attributes:
        on_device: (num_rows, max_requests) int32.
    """

    def __init__(self, num_rows: int, max_requests: int, device: torch.device) -> None:
        self.on_device = torch.zeros((num_rows, max_requests), dtype=torch.int32, device=device)
        self._ring = _pinned_ring((num_rows, max_requests), torch.int32, device)
        self._arrays = [buffer.numpy() for buffer in self._ring]
        self._copied = [_event(device) for _ in self._ring]
        self._next = 0

    def stage(self, rows: Sequence[ArrayLike], padding: Sequence[int]) -> None:
        """Copy the rows of a step, each filled up with its padding.

        Args:
            rows: Up to max_requests numbers for each row.
            padding: What stands behind them, one number a row.
        """
        place, array = self._take_buffer()
        for row, (numbers, filler) in enumerate(zip(rows, padding, strict=True)):
            count = np.size(numbers)
            array[row, :count] = numbers
            array[row, count:] = filler
        self._send(place)

    def stage_again(self, count: int, changed: Mapping[int, ArrayLike]) -> None:
        """Copy the rows that were staged last, but for some of them.

        Args:
            count: How many numbers of a row change.
            changed: By row, `count` numbers, or one for all of them.
        """
        last = self._arrays[self._next - 1]
        place, array = self._take_buffer()
        array[...] = last
        for row, numbers in changed.items():
            array[row, :count] = numbers
        self._send(place)

    def _take_buffer(self) -> tuple[int, NDArray[np.int32]]:
        """The next buffer of the ring, when its last copy is done."""
        place, self._next = self._next, (self._next + 1) % len(self._ring)
        event = self._copied[place]
        if event is not None:
            event.synchronize()  # long done, unless the host is more than a ring ahead
        return place, self._arrays[place]

    def _send(self, place: int) -> None:
        self.on_device.copy_(self._ring[place], non_blocking=True)
        event = self._copied[place]
        if event is not None:
            event.record()


class SampledTokens:
    """Sampled tokens on their way to the host.

    Args:
        max_requests: The most of a step.
        device: Where they come from.
    """

    def __init__(self, max_requests: int, device: torch.device) -> None:
        self._ring = _pinned_ring((max_requests,), torch.int64, device)
        # The next step overwrites its tokens, maybe before they are copied out. A copy on the device is soon made.
        self._snapshots = [torch.zeros_like(buffer, device=device) for buffer in self._ring]
        self._views = list(zip(self._ring, self._snapshots, strict=True))
        self._copied = [_event(device) for _ in self._ring]
        self._copies: list[TokenCopy | None] = [None] * len(self._ring)
        self._next = 0
        self._device = device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def start(self, tokens: torch.Tensor) -> TokenCopy:
        """Begin to copy the tokens, (requests,) int64, of the step that was launched last."""
        place, self._next = self._next, (self._next + 1) % len(self._ring)
        earlier = self._copies[place]
        if earlier is not None:
            earlier.tolist()  # done with both buffers; whoever has not read it by now keeps what was there
        target, snapshot = self._buffers(place, len(tokens))
        event = self._copied[place]
        if self._stream is None or event is None:
            target.copy_(tokens)
        else:
            snapshot.copy_(tokens)
            self._stream.wait_stream(torch.cuda.current_stream(self._device))
            with torch.cuda.stream(self._stream):
                target.copy_(snapshot, non_blocking=True)
                event.record()
        self._copies[place] = copy = TokenCopy(target, event)
        return copy

    def _buffers(self, place: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Of a place of the ring, on the host and on the device, `count` long: as a rule as long as the last time."""
        target, snapshot = self._views[place]
        if len(target) != count:
            target, snapshot = self._ring[place][:count], self._snapshots[place][:count]
            self._views[place] = target, snapshot
        return target, snapshot


class TokenCopy:
    """One such copy. To whoever only measures what is copied it looks like a tensor."""

    def __init__(self, target: torch.Tensor, done: torch.cuda.Event | None) -> None:
        self._target = target
        self._done = done
        self._tokens: list[int] | None = None

    def tolist(self) -> list[int]:
        """Wait for the copy, and no longer: later work goes on."""
        if self._tokens is None:
            if self._done is not None:
                self._done.synchronize()
            self._tokens = self._target.tolist()
        return self._tokens

    def is_here(self) -> bool:
        """Whether the copy is made. Does not wait."""
        return self._tokens is not None or self._done is None or self._done.query()

    def numel(self) -> int:
        return self._target.numel()

    def element_size(self) -> int:
        return self._target.element_size()


def _pinned_ring(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> list[torch.Tensor]:
    return [torch.zeros(shape, dtype=dtype, pin_memory=device.type == "cuda") for _ in range(_RING)]


def _event(device: torch.device) -> torch.cuda.Event | None:
    return torch.cuda.Event() if device.type == "cuda" else None
