"""What the frontend does when a caller gives up. The engine runs this function instead of its own; it has a fault."""

from __future__ import annotations

from collections.abc import Iterable

from minivllm.core.request import FinishReason
from minivllm.engine.output_processor import OutputProcessor


def abort_requests(self: OutputProcessor, request_ids: Iterable[str], internal: bool = False) -> list[str]:
    """End requests whose caller gave up. Ids that are unknown or done are ignored.

    Args:
        self: The frontend's books: `request_states` by the core's ids, `external_req_ids` by the caller's id (each with
            a list of the core's ids), `parent_requests` by the parent's id. `_forget(state)` drops every trace of one.
        request_ids: Ids as callers gave them (each may stand for several requests), or, if `internal`, as the core or a
            queue has them.
        internal: Which of the two.

    Returns:
        The ids to abort in the core.
    """
    ended = []
    for request_id in request_ids:
        for child_id in self._completions_of(request_id, internal):
            state = self.request_states[child_id]
            request_output = state.make_request_output(FinishReason.ABORT, None)
            if state.queue is not None and request_output is not None:
                state.queue.put(request_output)
            del self.request_states[child_id]
            siblings = self.external_req_ids[state.external_req_id]
            siblings.remove(child_id)
            if not siblings:
                del self.external_req_ids[state.external_req_id]
            ended.append(child_id)
    return ended
