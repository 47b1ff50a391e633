"""Owns a request for several completions: one child request each, and one answer.

Upstream: vllm/v1/engine/parallel_sampling.py::ParentRequest.
"""

from __future__ import annotations

import msgspec

from minivllm.core.messages import EngineCoreRequest
from minivllm.outputs import CompletionOutput
from minivllm.sampling_params import RequestOutputKind
from minivllm.sourcemap.registry import on_map


class ParentRequest:
    """The children of one request. The core knows only them, and not that they belong together.

    Args:
        request: As its caller asked for it, with `n` completions.

    Attributes:
        child_requests: Ids of the children that go on.
        max_num_generation_tokens: Tokens of the longest completion among those that have ended.
    """

    def __init__(self, request: EngineCoreRequest) -> None:
        self.request = request
        self.request_id = request.request_id
        self.children = [self._child(index) for index in range(request.sampling_params.n)]
        self.child_requests = {child.request_id for child in self.children}
        self.max_num_generation_tokens = 0
        self._finals: dict[int, CompletionOutput] = {}

    @on_map(
        "child request",
        vllm="vllm/v1/engine/parallel_sampling.py::ParentRequest.get_child_info",
        process="frontend",
    )
    def _child(self, index: int) -> EngineCoreRequest:
        params = self.request.sampling_params
        # Children that share a seed would draw the same tokens.
        seed = None if params.seed is None else params.seed + index
        return msgspec.structs.replace(
            self.request,
            request_id=f"{index}_{self.request_id}",
            sampling_params=msgspec.structs.replace(params, n=1, seed=seed),
        )

    @on_map(
        "merge children",
        vllm="vllm/v1/engine/parallel_sampling.py::ParentRequest.get_outputs",
        process="frontend",
    )
    def get_outputs(self, child_id: str, completion: CompletionOutput) -> tuple[list[CompletionOutput], bool]:
        """Take what a child has, and say what its caller gets now.

        Returns:
            The completions to pass on: the child's own, or, if only the end is wanted, all of them after the last.
            And whether all children are done.
        """
        if completion.finished():
            self.child_requests.discard(child_id)
        all_done = not self.child_requests
        if self.request.sampling_params.output_kind is not RequestOutputKind.FINAL_ONLY:
            return [completion], all_done
        self._finals[completion.index] = completion
        return [self._finals[index] for index in sorted(self._finals)] if all_done else [], all_done
