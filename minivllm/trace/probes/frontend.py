"""Owns the events of the frontend: what became text, what of it was sent, and what is held back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from minivllm.trace.events import Event, EventLog
from minivllm.trace.wrap import Around, Call, Probe

_MAKE_OUTPUT = "minivllm.engine.output_processor:RequestState.make_request_output"
_PROCESS_OUTPUTS = "minivllm.engine.output_processor:OutputProcessor.process_outputs"

_NOTHING = (0, 0)


class FrontendProbes:
    """`output.text`.

    Every request of every step has one. So calls are only noted while outputs are processed, and told together then.

    Args:
        log: Gets the events.
        tokenizer: Gives single tokens a text; None leaves it empty.
    """

    def __init__(self, log: EventLog, tokenizer: Any) -> None:
        self._log = log
        self._token_text: Callable[[int], str] = (lambda token_id: "") if tokenizer is None else tokenizer.token_text
        self._told: dict[str, tuple[int, int]] = {}  # tokens and characters of the last event
        self._is_processing = False
        self._calls: list[Call] = []

    def probes(self) -> dict[str, Probe]:
        probes: dict[str, Probe] = {_MAKE_OUTPUT: self._note}
        if self._log.header.level == "step":  # else other calls in between are told, too, and stay in their order
            probes[_PROCESS_OUTPUTS] = Around(self._begin, self._end, self._end)
        return probes

    def _begin(self, args: tuple[Any, ...]) -> None:
        self._is_processing = True

    def _note(self, call: Call) -> None:
        self._calls.append(call)
        if not self._is_processing:  # a request is aborted
            self._tell()

    def _end(self, call: Call) -> None:
        self._is_processing = False
        self._tell()

    def _tell(self) -> None:
        calls, self._calls = self._calls, []
        events, told, cause = [], self._told, self._log.last.get("update")
        for call in calls:
            state, finish_reason, stop_reason = call.args[:3]
            detokenizer, request_id, sent = state.detokenizer, state.request.request_id, state.sent_chars
            token_ids, stream, entry, end_ns = detokenizer.token_ids, detokenizer._stream, call.entry, call.end_ns
            num_tokens = len(token_ids)
            start_token, start_char = told.get(request_id, _NOTHING)
            told[request_id] = (num_tokens, sent)
            if finish_reason is not None:
                del told[request_id]
            data: Any = _Text(
                token_ids,
                start_token,
                num_tokens,
                detokenizer.output_text,
                start_char,
                sent,
                state.sent_tokens,
                "" if stream is None or not stream._pending else _unfinished(stream),
                finish_reason,
                stop_reason,
                self._token_text,
            )
            event = Event(
                -1, -1, "frontend", "output.text", request_id, None, None, cause, data, entry.ours, entry.vllm
            )
            event.wall_ns, event.dur_ns = end_ns, end_ns - call.start_ns
            events.append(event)
        self._log.add_all(events)


class _Text(msgspec.Struct, gc=False):
    """What a request's event is made of when it is written: every request of every step has one.

    None of it changes: a text is never changed in place, and to the list of tokens others are only appended.
    """

    token_ids: list[int]
    start_token: int
    num_tokens: int
    text: str
    start_char: int
    sent: int
    sent_tokens: int
    unfinished: str
    finish_reason: Any
    stop_reason: int | str | None
    token_text: Callable[[int], str]

    def __call__(self) -> dict[str, Any]:
        """The event's data."""
        token_ids = self.token_ids[self.start_token : self.num_tokens]
        data = {
            "delta": self.text[self.start_char : self.sent],
            "held": self.text[self.sent :] + self.unfinished,
            "sent": self.sent,
            "tokens": [(i, self.token_text(i)) for i in token_ids],
            "finish_reason": None if self.finish_reason is None else str(self.finish_reason),
            "stop_reason": self.stop_reason,
        }
        if self.sent_tokens != self.num_tokens:
            data["sent_tokens"] = self.sent_tokens
        return data


def _unfinished(stream: Any) -> str:
    """What the tokens that wait for the rest of a character look like now."""
    text: str = stream._decode(stream._settled + stream._pending)
    return text[len(stream._settled_text) :]
