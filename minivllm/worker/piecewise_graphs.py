"""Owns the forward pass as a row of graphs with attention between them, for attention that cannot be recorded.

    piece 0                  piece 1                                piece n
    [embed, norm, qkv, ...]  [o, norm, gate and up, ..., norm, qkv] [o, ..., final norm]
                           attend                                 attend

Everything but attention asks only how many tokens a step has: rows of padding cost a little, and who they belong to
does not matter. So one row of graphs serves every step of up to so many tokens, whatever its requests; and attention
gets the step as it is, without padding.

The model is not cut up for it. It runs once as always, with an attention backend in its hands that ends the recording
when it is called, notes the call with the tensors it was given, and begins the next one. A replay goes through pieces
and calls in turn.

All pieces take their memory from one pool, in which a tensor's place is given out again when the model lets go of it,
as it will be in a replay. A noted call must not hold on to the tensors, or no layer could take the place of the one
before it: it holds their addresses.

Upstream: vllm/compilation/breakable_cudagraph.py::BreakableCUDAGraphWrapper; vllm/compilation/cuda_graph.py.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Protocol

import torch

from minivllm.attention.backend import AttentionBackend, AttentionMetadata
from minivllm.attention.paged import PagedBackend, PagedMetadata

# Runs the model on so many tokens of the packed inputs.
ModelForward = Callable[[int, AttentionBackend[Any], Any], torch.Tensor]


class Graph(Protocol):
    """What is asked of a recorded piece."""

    def replay(self) -> None: ...


class Recorder(Protocol):
    """Records what is launched between `begin` and `end`, without running it."""

    def recording(self) -> AbstractContextManager[None]:
        """Around all pieces of one forward pass. A piece that has begun and not ended is given up at its end."""

    def begin(self) -> None: ...

    def end(self) -> Graph: ...


class CudaRecorder:
    """Records CUDA graphs.

    Args:
        device: A GPU.
    """

    def __init__(self, device: torch.device) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)
        self._graph: torch.cuda.CUDAGraph | None = None

    @contextmanager
    def recording(self) -> Iterator[None]:
        torch.cuda.synchronize()
        with torch.cuda.stream(self._stream):
            try:
                yield
            finally:
                # Here and not outside: PyTorch ends a recording only on the stream on which it began. One that is left
                # open would let every allocation after it fail.
                self._drop()

    def begin(self) -> None:
        self._graph = torch.cuda.CUDAGraph()
        self._graph.capture_begin(pool=self._pool)

    def end(self) -> Graph:
        graph, self._graph = self._graph, None
        assert graph is not None, "a piece ends after it began"
        graph.capture_end()
        return graph

    def _drop(self) -> None:
        if self._graph is not None:
            graph, self._graph = self._graph, None
            with suppress(RuntimeError):  # it says again what has failed
                graph.capture_end()


@dataclass(slots=True)
class Pieces:
    """A forward pass of some tokens: pieces, with one call of attention behind each but the last."""

    graphs: list[Graph] = field(default_factory=list)
    calls: list[Callable[[Any], Any]] = field(default_factory=list)
    hidden: torch.Tensor | None = None  # (tokens, hidden_size), valid until the next step

    def replay(self, batch: Any) -> torch.Tensor:
        for graph, call in zip(self.graphs, self.calls, strict=False):
            graph.replay()
            call(batch)
        self.graphs[-1].replay()
        assert self.hidden is not None, "it was recorded to its end"
        return self.hidden


class BreakingAttention(PagedBackend[Any]):
    """In the hands of the model while it is recorded: attention is where a piece ends and the next one begins.

    Writing keys and values needs nothing but slots, so it belongs to the piece.
    """

    name = "breaking"

    def __init__(self, inner: PagedBackend[Any], recorder: Recorder, pieces: Pieces) -> None:
        super().__init__(inner.scales)
        self._inner, self._recorder, self._pieces = inner, recorder, pieces

    def on_device(self, batch: PagedMetadata, host: AttentionMetadata | None) -> Any:
        return batch

    def attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        batch: Any,
        window: int | None,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        out = torch.empty(query.shape, dtype=query.dtype, device=query.device)  # where the next piece will find it
        self._pieces.graphs.append(self._recorder.end())
        step_own = (same_memory(query), same_memory(key), same_memory(value))
        self._pieces.calls.append(self._call(step_own, kv_cache, window, same_memory(out)))
        self._recorder.begin()
        return out

    def _call(
        self,
        step_own: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
        kv_cache: torch.Tensor,
        window: int | None,
        out: torch.Tensor,
    ) -> Callable[[Any], Any]:
        """What is called between two pieces, once the batch of a step is known."""
        return lambda batch: self._inner.attend(*step_own, kv_cache, batch, window, out)


class NoAttention(PagedBackend[Any]):
    """Computes nothing: for a pass of which only the operations around attention count."""

    name = "none"

    def on_device(self, batch: PagedMetadata, host: AttentionMetadata | None) -> Any:
        return batch

    def attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        batch: Any,
        window: int | None,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        return torch.zeros(query.shape, dtype=query.dtype, device=query.device)


class PiecewiseGraphs:
    """The recorded forward passes of one device, by their number of tokens.

    Args:
        forward: Runs the model on so many tokens of inputs that stay where they are.
        slot_mapping: Where their keys and values are written.
        attention: What runs between the pieces.
        recorder: None where nothing can be recorded: every pass is launched operation by operation.
        largest: The most tokens that can come; 0 does not say.
    """

    def __init__(
        self,
        forward: ModelForward,
        slot_mapping: Callable[[int], torch.Tensor],
        attention: PagedBackend[Any],
        recorder: Recorder | None,
        largest: int = 0,
    ) -> None:
        self._forward, self._slot_mapping, self._attention = forward, slot_mapping, attention
        self._recorder, self._largest = recorder, largest
        self._passes: dict[int, Pieces] = {}
        self._met: set[int] = set()
        self._refused: dict[int, str] = {}

    def __len__(self) -> int:
        return len(self._passes)

    def why_not(self, num_tokens: int) -> str | None:
        """Why the next pass of so many tokens will be launched operation by operation; None if it will be replayed."""
        if self._recorder is None or num_tokens in self._passes:
            return None
        if num_tokens in self._met:
            return self._refused.get(num_tokens)
        return "the first of its size is launched kernel by kernel, the second is recorded"

    def capture(self, sizes: Sequence[int], seconds: float = float("inf")) -> None:
        """Record passes of some numbers of tokens, in their order, as long as there is time."""
        end = time.monotonic() + seconds
        for num_tokens in sizes:
            if time.monotonic() > end:
                return
            nowhere = torch.full_like(self._slot_mapping(num_tokens), -1)
            # Compiles what is not compiled yet, which must not be recorded.
            self._forward(num_tokens, NoAttention(self._attention.scales), SimpleNamespace(slot_mapping=nowhere))
            self._met.add(num_tokens)
            self.record(num_tokens)

    def run(self, num_tokens: int, batch: Any) -> torch.Tensor:
        """Hidden states of a step, (tokens, hidden_size): its inputs are packed and padded, its batch is as it is.

        Recording takes as long as some steps, and many sizes come only once. So it is done when one comes again: its
        kernels are compiled by then, and it need not run before it is recorded.
        """
        if num_tokens not in self._passes and num_tokens in self._met and num_tokens not in self._refused:
            self._make_room(num_tokens)
            self.record(num_tokens)
        pieces = self._passes.get(num_tokens)
        if pieces is not None:
            return pieces.replay(batch)
        if self._recorder is not None:
            self._met.add(num_tokens)
        return self._forward(num_tokens, self._attention, batch)

    def _make_room(self, num_tokens: int) -> None:
        """Record the largest pass before one that is larger than all so far: its memory has room for every other.

        One after the other, each a little larger, they would all take memory of their own.
        """
        if num_tokens > max(self._passes, default=0) and self._largest > num_tokens and self._largest not in self._met:
            self.capture([self._largest])

    def record(self, num_tokens: int) -> None:
        """Record a pass. It is not run."""
        pieces, recorder = Pieces(), self._recorder
        assert recorder is not None, "something records"
        attention = BreakingAttention(self._attention, recorder, pieces)
        slots = SimpleNamespace(slot_mapping=self._slot_mapping(num_tokens))
        try:
            with recorder.recording():
                recorder.begin()
                hidden = self._forward(num_tokens, attention, slots)
                pieces.hidden = same_memory(hidden)
                pieces.graphs.append(recorder.end())
        except RuntimeError as error:  # out of memory, or an operation that cannot be recorded: it can still be run
            self._refused[num_tokens] = f"it could not be recorded: {str(error).splitlines()[0]}"
            warnings.warn(f"{num_tokens} tokens: {self._refused[num_tokens]}", stacklevel=2)
            return
        self._passes[num_tokens] = pieces


def same_memory(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor at the same address that does not keep the memory: the graph's pool goes on giving it out."""
    if tensor.device.type != "cuda":
        return tensor
    numbers = tensor.view(torch.int16) if tensor.element_size() == 2 else tensor  # the protocol has no bfloat16
    place = dict(numbers.__cuda_array_interface__)
    return torch.as_tensor(SimpleNamespace(__cuda_array_interface__=place), device=tensor.device).view(tensor.dtype)
