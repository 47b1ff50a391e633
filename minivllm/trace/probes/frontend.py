"""Owns the events of the frontend: what became text, what of it was sent, and what is held back."""

from __future__ import annotations

from typing import Any

from minivllm.trace.events import EventLog
from minivllm.trace.wrap import Call, Probe

_STATE = "minivllm.engine.output_processor:RequestState"


class FrontendProbes:
    """`output.text`.

    Args:
        log: Gets the events.
        tokenizer: Gives single tokens a text; None leaves it empty.
    """

    def __init__(self, log: EventLog, tokenizer: Any) -> None:
        self._log = log
        self._tokenizer = tokenizer
        self._told: dict[str, tuple[int, int]] = {}  # tokens and characters of the last event

    def probes(self) -> dict[str, Probe]:
        return {f"{_STATE}.make_request_output": self._text}

    def _text(self, call: Call) -> None:
        state, finish_reason, stop_reason = call.args[:3]
        detokenizer, request_id = state.detokenizer, state.request_id
        num_tokens, num_chars = self._told.pop(request_id, (0, 0))
        text, sent = detokenizer.output_text, state.sent_chars
        if finish_reason is None:
            self._told[request_id] = (len(detokenizer.token_ids), sent)
        data = {
            "delta": text[num_chars:sent],
            "held": text[sent:] + _unfinished(detokenizer),
            "sent": sent,
            "tokens": [[i, self._token_text(i)] for i in detokenizer.token_ids[num_tokens:]],
            "finish_reason": None if finish_reason is None else str(finish_reason),
            "stop_reason": stop_reason,
        }
        if state.sent_tokens != len(detokenizer.token_ids):
            data["sent_tokens"] = state.sent_tokens
        self._log.add(
            "frontend",
            "output.text",
            request=request_id,
            cause=self._log.last.get("update"),
            data=data,
            src=call.entry.ours,
            ref=call.entry.vllm,
            wall_ns=call.end_ns,
            dur_ns=call.end_ns - call.start_ns,
        )

    def _token_text(self, token_id: int) -> str:
        return self._tokenizer.token_text(token_id) if self._tokenizer is not None else ""


def _unfinished(detokenizer: Any) -> str:
    """What the tokens that wait for the rest of a character look like now."""
    stream = detokenizer._stream
    if stream is None or not stream._pending:
        return ""
    text: str = stream._decode(stream._settled + stream._pending)
    return text[len(stream._settled_text) :]
