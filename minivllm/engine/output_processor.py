"""Owns the frontend's view of a request: its text. The core has finished a request when its last token is known; the
caller has it only when that token has become text here.

Upstream: vllm/v1/engine/output_processor.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from minivllm.core.messages import EngineCoreOutput, EngineCoreOutputs, EngineCoreRequest
from minivllm.core.request import FinishReason
from minivllm.engine.detokenizer import IncrementalDetokenizer
from minivllm.outputs import CompletionOutput, RequestOutput
from minivllm.sourcemap.registry import on_map
from minivllm.tokenizer import Tokenizer


@dataclass(slots=True)
class RequestState:
    """One request as the frontend sees it. Upstream: output_processor.py::RequestState.

    Attributes:
        request: What was sent to the core.
        prompt: The prompt as text, if it was text.
        detokenizer: Turns its output into text; None if the model has no tokenizer.
        token_ids: Output tokens so far.
        text: Output text so far.
        num_cached_tokens: Prompt tokens that came from the prefix cache.
    """

    request: EngineCoreRequest
    prompt: str | None
    detokenizer: IncrementalDetokenizer | None
    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    num_cached_tokens: int | None = None


class OutputProcessor:
    """Turns what the core puts out into what callers get.

    Args:
        tokenizer: The model's tokenizer; None leaves all text empty.
    """

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self.tokenizer = tokenizer
        self.request_states: dict[str, RequestState] = {}

    def add_request(self, request: EngineCoreRequest, prompt: str | None) -> None:
        """Register a request; before the core has it, so that no output finds nobody."""
        detokenizer = None
        if self.tokenizer is not None:
            skip_special_tokens = request.sampling_params.skip_special_tokens
            detokenizer = IncrementalDetokenizer(self.tokenizer, request.prompt_token_ids, skip_special_tokens)
        self.request_states[request.request_id] = RequestState(request, prompt, detokenizer)

    @on_map(
        "process outputs",
        vllm="vllm/v1/engine/output_processor.py::OutputProcessor.process_outputs",
        process="frontend",
    )
    def process_outputs(self, outputs: EngineCoreOutputs) -> list[RequestOutput]:
        """Extend every request by what a step brought, and forget those that are done."""
        request_outputs = []
        for output in outputs.outputs:
            state = self.request_states.get(output.request_id)
            if state is None:
                continue  # its caller gave up meanwhile
            self._extend(state, output)
            request_outputs.append(_make_request_output(state, output))
            if output.finish_reason is not None:
                del self.request_states[output.request_id]
        return request_outputs

    def abort_requests(self, request_ids: list[str]) -> None:
        """Forget requests whose caller gave up."""
        for request_id in request_ids:
            self.request_states.pop(request_id, None)

    def _extend(self, state: RequestState, output: EngineCoreOutput) -> None:
        state.token_ids.extend(output.new_token_ids)
        if output.num_cached_tokens is not None:
            state.num_cached_tokens = output.num_cached_tokens
        if state.detokenizer is None:
            return
        visible = output.new_token_ids
        if output.finish_reason is FinishReason.STOP:
            visible = visible[:-1]  # the token that stopped it counts, and is not text
        # A character that the end of the output leaves incomplete is never shown.
        state.text += state.detokenizer.update(visible)


def _make_request_output(state: RequestState, output: EngineCoreOutput) -> RequestOutput:
    finish_reason = None if output.finish_reason is None else str(output.finish_reason)
    completion = CompletionOutput(0, state.text, list(state.token_ids), finish_reason, output.stop_reason)
    return RequestOutput(
        request_id=state.request.request_id,
        prompt=state.prompt,
        prompt_token_ids=state.request.prompt_token_ids,
        outputs=[completion],
        finished=finish_reason is not None,
        num_cached_tokens=state.num_cached_tokens,
    )
