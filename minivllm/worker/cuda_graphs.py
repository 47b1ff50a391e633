"""Owns which steps run as one captured graph, and the graphs.

Launching a kernel costs the host a few microseconds, and a decode step of a small model is 200 launches of kernels that
take less: the GPU waits. A *graph* is the whole step recorded once, and replayed by one call. It fixes the grid and the
pointers of every launch, so it serves one shape only; a step takes the smallest captured shape that holds it, and the
rest is padding: slots of -1, lengths of 0.

    decodes, one token each    5 requests -> shape (8 tokens, 8 requests, 1)      FULL
    prompts and decodes        300 tokens -> shape (304 tokens, ...)              FULL, if mixed steps are captured
    more than the largest                                                         NONE: launched kernel by kernel

(vLLM also has PIECEWISE graphs, with attention outside of them, for backends that cannot be captured. Ours can.)

Upstream: vllm/v1/worker/gpu/cudagraph_utils.py::CudaGraphManager.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch

_LARGEST = 512

GraphMode = Literal["NONE", "FULL"]


@dataclass(frozen=True, slots=True)
class StepShape:
    """What a graph fixes of a step.

    Attributes:
        num_tokens: Rows that the kernels run on.
        num_requests: Requests, padding included.
        query_len: Tokens of each request if all have the same number; 0 if they may differ.
    """

    num_tokens: int
    num_requests: int
    query_len: int

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


class GraphDispatcher:
    """Finds the shape of a step. Pure arithmetic.

    Args:
        max_num_seqs: The most requests of a step.
        query_len: Tokens of a request that only decodes: 1, or 1 + the number of drafts.
        capture_mixed: Whether steps with prompts in them are captured, too.
    """

    def __init__(self, max_num_seqs: int, query_len: int = 1, capture_mixed: bool = False) -> None:
        self._query_len = query_len
        self._max_num_seqs = max_num_seqs
        sizes = capture_sizes(max_num_seqs, query_len)
        # Whole requests only: with 3 tokens each, the graph of 8 tokens becomes one of 9. None for more than can come.
        requests = sorted({-(-size // query_len) for size in sizes if size < max_num_seqs * query_len} | {max_num_seqs})
        self._decodes = [count for count in requests if count * query_len <= _LARGEST]
        self._mixed = sizes if capture_mixed else []

    def shapes(self) -> list[StepShape]:
        """All shapes, the largest first: they share one pool of memory, and what comes first makes it large enough."""
        shapes = [self._decode_shape(count) for count in self._decodes] + [self._mixed_shape(n) for n in self._mixed]
        return sorted(shapes, key=lambda shape: (shape.num_tokens, shape.num_requests), reverse=True)

    def dispatch(self, query_lens: list[int]) -> Dispatch:
        """Choose the graph of a step.

        Args:
            query_lens: Scheduled tokens of each request, in batch order.
        """
        tokens, requests = sum(query_lens), len(query_lens)
        is_uniform = all(length == self._query_len for length in query_lens)
        if is_uniform and self._decodes and requests <= self._decodes[-1]:
            shape = self._decode_shape(self._decodes[bisect_left(self._decodes, requests)])
            return Dispatch("FULL", shape, f"{requests} decodes, padded to {shape.num_requests}")
        own = StepShape(tokens, requests, self._query_len if is_uniform else 0)
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
    """The recorded steps of one device.

    Args:
        run: Runs a whole step of a shape on the device: it reads and writes the same tensors each time, keeps nothing
            that it allocates, and never waits for the host. Before a capture its inputs must be padding only.
        shapes: What to capture, the largest first.
    """

    def __init__(self, run: Callable[[StepShape], None], shapes: list[StepShape]) -> None:
        self._run = run
        self._shapes = shapes
        self._graphs: dict[StepShape, torch.cuda.CUDAGraph] = {}
        self._pool: Any = None  # of memory, shared by all graphs: only one of them runs at a time

    def capture(self) -> None:
        """Record every shape. The first run of each compiles what is not compiled yet, and must not be recorded."""
        for shape in self._shapes:
            self._run(shape)
        torch.cuda.synchronize()
        for shape in self._shapes:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self._pool):
                self._run(shape)
            self._pool = self._pool or graph.pool()
            self._graphs[shape] = graph

    def __contains__(self, shape: StepShape) -> bool:
        return shape in self._graphs

    def replay(self, shape: StepShape) -> None:
        """Run a recorded step on the current stream."""
        self._graphs[shape].replay()


def _last(sizes: list[int]) -> int:
    return sizes[-1] if sizes else 0
