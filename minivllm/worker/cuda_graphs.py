"""Owns which steps run as one captured graph, and the graphs.

Launching a kernel costs the host a few microseconds, and a decode step of a small model is 200 launches of kernels that
take less: the GPU waits. A *graph* is the whole step recorded once, and replayed by one call. It fixes the grid and the
pointers of every launch, so it serves one shape only; a step takes the smallest captured shape that holds it, and the
rest is padding: slots of -1, lengths of 0.

    decodes, one token each    5 requests -> shape (8 tokens, 8 requests, 1)      FULL
    prompts and decodes        300 tokens -> shape (304 tokens, ...)              FULL, if mixed steps are captured
    the same                   300 tokens -> 304 tokens, requests as they are     PIECEWISE, as by default
    more than the largest                                                         NONE: launched kernel by kernel

PIECEWISE is the model without attention, see `piecewise_graphs.py`: for steps with prompts in them, whose attention is
another one each time, and for attention that cannot be captured. The mode that is asked for and what the attention
backend supports give the mode that is had.

Upstream: vllm/v1/worker/gpu/cudagraph_utils.py::CudaGraphManager.
"""

from __future__ import annotations

import time
import warnings
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from minivllm.attention.backend import AttentionCGSupport
from minivllm.config import CUDAGraphMode

# vLLM's default of max_cudagraph_capture_size: it launches longer steps kernel by kernel. Decodes go on here: even with
# 1,024 requests a small model's kernels end sooner than the host can launch them.
_LARGEST = 512
_FEW = 8
# Steps in pieces go on, too, as long as they would wait for the host: so many weights times tokens a GPU multiplies
# while the host launches a layer kernel by kernel. On an H200 that took 0.6 ms, and 2,048 tokens of a 0.6B model 5 ms.
_WHILE_A_LAYER_IS_LAUNCHED = 1 << 37
_LONGEST_IN_PIECES = 8192

GraphMode = Literal["NONE", "PIECEWISE", "FULL"]


@dataclass(frozen=True, slots=True)
class StepShape:
    """What a graph fixes of a step.

    Attributes:
        num_tokens: Rows that the kernels run on.
        num_requests: Requests, padding included.
        query_len: Tokens of each request if all have the same number; 0 if they may differ.
        with_penalties: Whether sampling looks at the histories of tokens.
        with_prefix: Whether decodes attend together to a prefix that they share.
    """

    num_tokens: int
    num_requests: int
    query_len: int
    with_penalties: bool = False
    with_prefix: bool = False

    @property
    def max_query_len(self) -> int:
        """The most tokens that a request can have."""
        return self.query_len or self.num_tokens


@dataclass(frozen=True, slots=True)
class Dispatch:
    """How a step runs, and why. Without a graph, the shape is the step's own."""

    mode: GraphMode
    shape: StepShape
    reason: str


def capture_sizes(max_num_seqs: int, query_len: int = 1) -> list[int]:
    """Numbers of tokens that are captured: 1, 2, 4, then every 8th, from 256 on every 16th.

    Close together where steps are short and padding is dear. The end is twice what the decodes can need, so that steps
    which also have a piece of a prompt find a graph, but never more than 512: a longer step keeps the GPU busy anyway.
    """
    end = min(2 * max_num_seqs * query_len, _LARGEST)
    sizes = [1, 2, 4, *range(8, 256, 8), *range(256, _LARGEST + 1, 16)]
    return [size for size in sizes if size <= end]


def longer_decodes(max_num_seqs: int, query_len: int = 1) -> list[int]:
    """Numbers of tokens beyond vLLM's that are captured for decodes: every 32nd up to 1024, then every 64th."""
    end = max_num_seqs * query_len
    return [*range(_LARGEST + 32, min(end, 1025), 32), *range(1088, end, 64)]


def most_in_pieces(max_num_batched_tokens: int, weights_per_layer: int) -> int:
    """Tokens of the longest step that is captured in pieces.

    A longer one keeps the GPU busy while the host launches it, and padding would only give it more to do: 8,192 tokens
    of a model of 0.6B, 512 of one of 8B.
    """
    worth_it = min(_LONGEST_IN_PIECES, max(_LARGEST, _WHILE_A_LAYER_IS_LAUNCHED // weights_per_layer))
    return min(max_num_batched_tokens, 1 << (worth_it.bit_length() - 1))


def piece_sizes(most: int) -> list[int]:
    """Numbers of tokens that are captured in pieces: to 512 as `capture_sizes`, then eight to a doubling, and the most.

    From 128 tokens on, less than an eighth of a step is padding; a step as long as steps can be has none.
    """
    sizes = [1, 2, 4, *range(8, 256, 8), *range(256, _LARGEST, 16)]
    for size in (512, 1024, 2048, 4096):
        sizes += range(size, 2 * size, size // 8)
    return [size for size in sizes if size < most] + [most]


def resolve_cudagraph_mode(
    asked: CUDAGraphMode | None, support: AttentionCGSupport, backend: str
) -> tuple[CUDAGraphMode, str | None]:
    """The mode that is had of the one that was asked for, and what had to be changed about it.

    Args:
        asked: None is the default: decodes as whole graphs where that can be, and other steps in pieces.
        support: Of which steps the attention backend can be recorded.
        backend: Its name.

    Raises:
        ValueError: Whole graphs of all steps were asked for, and attention can be recorded in none.
    """
    if asked is None:
        return ("FULL_AND_PIECEWISE", None) if support else ("PIECEWISE", f"{backend} cannot be recorded")
    mode, what = asked, f"attention backend {backend} supports graphs {support.name}"
    if mode == "FULL" and support == AttentionCGSupport.NEVER:
        raise ValueError(f"cudagraph_mode FULL cannot be had: {what}; take PIECEWISE")
    if mode == "FULL" and support < AttentionCGSupport.ALWAYS:
        mode = "FULL_AND_PIECEWISE"
    if mode in ("FULL_DECODE_ONLY", "FULL_AND_PIECEWISE") and support == AttentionCGSupport.NEVER:
        mode = "PIECEWISE"
    return mode, None if mode == asked else f"{mode} instead of {asked}: {what}"


class GraphDispatcher:
    """Finds the shape of a step. Pure arithmetic.

    Args:
        max_num_seqs: The most requests of a step.
        query_len: Tokens of a request that only decodes: 1, or 1 + the number of drafts.
        capture_mixed: Whether steps with prompts in them are captured, too.
        most_in_pieces: What is not captured as a whole is captured without attention, up to so many tokens.
        capture_decodes: Whether steps of decodes are captured as a whole.
    """

    def __init__(
        self,
        max_num_seqs: int,
        query_len: int = 1,
        capture_mixed: bool = False,
        most_in_pieces: int = 0,
        capture_decodes: bool = True,
    ) -> None:
        self._query_len = query_len
        self._max_num_seqs = max_num_seqs
        sizes = capture_sizes(max_num_seqs, query_len)
        # Whole requests only: with 3 tokens each, the graph of 8 tokens becomes one of 9. None for more than can come.
        below = [size for size in sizes + longer_decodes(max_num_seqs, query_len) if size < max_num_seqs * query_len]
        self._decodes = sorted({min(-(-size // query_len), max_num_seqs) for size in below} | {max_num_seqs})
        self._decodes = self._decodes if capture_decodes else []
        self._mixed = sizes if capture_mixed else []
        self._pieces = piece_sizes(most_in_pieces) if most_in_pieces else []

    @classmethod
    def for_mode(cls, mode: CUDAGraphMode, max_num_seqs: int, most_in_pieces: int) -> GraphDispatcher:
        """The one of a mode that is had."""
        return cls(
            max_num_seqs,
            capture_mixed=mode == "FULL",
            most_in_pieces=most_in_pieces if mode in ("PIECEWISE", "FULL_AND_PIECEWISE") else 0,
            capture_decodes=mode != "PIECEWISE",
        )

    @property
    def largest_pieces(self) -> int:
        """The largest number of tokens that is captured without attention; 0 if none is."""
        return self._pieces[-1] if self._pieces else 0

    def first_pieces(self) -> list[int]:
        """Numbers of tokens that are captured without attention, in the order of their worth: see `first_shapes`.

        A few small ones come early only if decodes need them: a step with prompts is seldom so short.
        """
        most_few = 0 if self._decodes else _FEW
        largest, few = self._pieces[-1:], [size for size in self._pieces[:-1] if size <= most_few]
        return [*largest, *few, *[size for size in self._pieces[-2::-1] if size > most_few]]

    def first_shapes(self) -> list[StepShape]:
        """All shapes in the order of their worth: the largest, which makes the pool large enough; a few small ones,
        where launching costs most; then the other decodes and the mixed steps, the largest first."""
        if not (self._decodes or self._mixed):
            return []
        largest, *others = self.shapes()
        few = [shape for shape in others if shape.query_len and shape.num_requests <= _FEW]
        rest = [shape for shape in others if shape not in few]
        return [largest, *few[::-1], *sorted(rest, key=lambda shape: shape.query_len == 0)]

    def shapes(self) -> list[StepShape]:
        """All shapes, the largest first: they share one pool of memory, and what comes first makes it large enough."""
        shapes = [self._decode_shape(count) for count in self._decodes] + [self._mixed_shape(n) for n in self._mixed]
        return sorted(shapes, key=lambda shape: (shape.num_tokens, shape.num_requests), reverse=True)

    def dispatch(self, query_lens: Sequence[int] | NDArray[np.int32]) -> Dispatch:
        """Choose the graph of a step.

        Args:
            query_lens: Scheduled tokens of each request, in batch order.
        """
        lengths = np.asarray(query_lens)
        tokens, requests = int(lengths.sum()), len(lengths)
        is_uniform = bool((lengths == self._query_len).all())
        if is_uniform and self._decodes and requests <= self._decodes[-1]:
            shape = self._decode_shape(self._decodes[bisect_left(self._decodes, requests)])
            return Dispatch("FULL", shape, f"{requests} decodes, padded to {shape.num_requests}")
        own = StepShape(tokens, requests, self._query_len if is_uniform else 0)
        if self._pieces and tokens <= self._pieces[-1]:
            shape = StepShape(self._pieces[bisect_left(self._pieces, tokens)], requests, own.query_len)
            return Dispatch("PIECEWISE", shape, f"{tokens} tokens, padded to {shape.num_tokens}; attention is not")
        if self._pieces:
            return Dispatch("NONE", own, f"{tokens} tokens, and the largest pieces have {self._pieces[-1]}")
        if is_uniform:
            return Dispatch("NONE", own, f"{requests} decodes, and the largest graph has {_last(self._decodes)}")
        if not self._mixed:
            return Dispatch("NONE", own, "prompts in the step, and only steps of decodes are captured")
        if tokens > self._mixed[-1]:
            return Dispatch("NONE", own, f"{tokens} tokens, and the largest graph has {self._mixed[-1]}")
        shape = self._mixed_shape(self._mixed[bisect_left(self._mixed, tokens)])
        if requests > shape.num_requests:
            return Dispatch("NONE", own, f"{requests} requests, and the graph has {shape.num_requests}")
        return Dispatch("FULL", shape, f"{tokens} tokens, padded to {shape.num_tokens}")

    def _decode_shape(self, requests: int) -> StepShape:
        return StepShape(requests * self._query_len, requests, self._query_len)

    def _mixed_shape(self, tokens: int) -> StepShape:
        return StepShape(tokens, min(tokens, self._max_num_seqs), 0)


class CudaGraphs:
    """The recorded steps of one device. A shape that is not recorded yet is recorded when it is first needed.

    Args:
        run: Runs a whole step of a shape on the device: it reads and writes the same tensors each time, keeps nothing
            that it allocates, and never waits for the host.
        device: A GPU. On a CPU nothing can be recorded: every step is launched kernel by kernel.
    """

    def __init__(self, run: Callable[[StepShape], None], device: torch.device) -> None:
        self._run = run
        self._device = device
        self._graphs: dict[StepShape, torch.cuda.CUDAGraph] = {}
        self._refused: dict[StepShape, str] = {}
        self._pool: Any = None  # of memory, shared by all graphs: only one of them runs at a time

    def capture(self, shapes: Sequence[StepShape], seconds: float = float("inf")) -> None:
        """Record shapes, in their order, as long as there is time. Their inputs must be padding only.

        Args:
            shapes: The largest first: what comes first makes the pool large enough.
            seconds: After these no further one is begun; the rest is recorded as it is needed.
        """
        end = time.monotonic() + seconds
        for shape in shapes:
            if time.monotonic() > end:
                return
            self.replay(shape)

    def __contains__(self, shape: StepShape) -> bool:
        return shape in self._graphs

    def why_not(self, shape: StepShape) -> str | None:
        """Why the next step of a shape will be launched kernel by kernel; None if it will be replayed."""
        if shape in self._graphs:
            return None
        return self._refused.get(shape, "the first of its shape is launched kernel by kernel, and recorded then")

    def __len__(self) -> int:
        return len(self._graphs)

    def replay(self, shape: StepShape) -> None:
        """Run a step of a shape on the current stream: as a graph if there is one, and record it if not."""
        graph = self._graphs.get(shape)
        if graph is not None:
            graph.replay()
            return
        # This run compiles what is not compiled yet, which must not be recorded.
        self._run(shape)
        if self._device.type == "cuda" and shape not in self._refused:
            self._record(shape)

    def _record(self, shape: StepShape) -> None:
        """Record a step. It is not run."""
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.current_stream(self._device)
        try:
            with torch.cuda.graph(graph, pool=self._pool):
                self._run(shape)
        except RuntimeError as error:  # out of memory, or an operation that cannot be recorded: it can still be run
            torch.cuda.set_stream(stream)  # PyTorch leaves the recording's own stream behind
            self._refused[shape] = f"it could not be recorded: {str(error).splitlines()[0]}"
            warnings.warn(f"{shape}: {self._refused[shape]}; its steps are launched kernel by kernel", stacklevel=2)
            return
        self._pool = self._pool or graph.pool()
        self._graphs[shape] = graph


def _last(sizes: list[int]) -> int:
    return sizes[-1] if sizes else 0
