"""Owns the events of the frontend: what became text, what of it was sent, and what is held back."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from minivllm.sourcemap.registry import lookup
from minivllm.trace.events import EventLog
from minivllm.trace.wrap import Around, Call, Inline, Probe

_SYMBOL = "minivllm.engine.output_processor:RequestState.make_request_output"
_OUTPUTS = "minivllm.engine.output_processor:OutputProcessor.process_outputs"

# Calls whose events are made together.
_TOGETHER = 64
_FACTS = 5


class _Text(msgspec.Struct, omit_defaults=True, gc=False):
    """`schema.OutputText`, as small as can be: a token has one in every step."""

    delta: str
    held: str
    sent: int
    tokens: Any
    finish_reason: str | None
    stop_reason: int | str | None
    sent_tokens: int | None = None


class _TextEvent(msgspec.Struct, omit_defaults=True, gc=False):
    """An `Event` without the fields that this one has not, which gives the same line in half the time."""

    seq: int
    step: int
    process: str
    kind: str
    request: str
    cause: int | None = None
    data: _Text | None = None
    src: str | None = None
    ref: str | None = None
    wall_ns: int | None = None
    dur_ns: int | None = None


class FrontendProbes:
    """`output.text`.

    Every request of every step has one. So calls are only noted while outputs are processed, and their events are made
    when they are written, which is before outputs are processed again: until then, requests stay as they were told.

    Args:
        log: Gets the events.
        tokenizer: Gives single tokens a text; None leaves it empty.
    """

    def __init__(self, log: EventLog, tokenizer: Any) -> None:
        self._log = log
        self._tokenizer = tokenizer
        # Of each request, when its last event was made.
        self._num_told: dict[str, int] = {}
        self._chars_told: dict[str, int] = {}
        # State of the request, why it ended (two), and the clock before and after, of one call after the other: not as
        # tuples, which the garbage collector would count.
        self._calls: list[Any] = []
        self._num_waiting = 0  # batches of calls whose events are not made yet
        self._is_processing = False

    def probes(self) -> dict[str, Probe]:
        return {
            _SYMBOL: Inline(self._noting, Around(lambda args: self._before(), self._after)),
            _OUTPUTS: Around(self._begin, self._end, self._end),
        }

    def _begin(self, args: tuple[Any, ...]) -> None:
        self._before()
        self._is_processing = True

    def _end(self, call: Call) -> None:
        self._is_processing = False
        self._tell()

    def _noting(self, make_request_output: Callable[..., Any]) -> Callable[..., Any]:
        clock, calls = time.monotonic_ns, self._calls

        def noting(state: Any, finish_reason: Any, stop_reason: Any) -> Any:
            is_alone = not self._is_processing
            if is_alone:
                self._before()
            start_ns = clock()
            output = make_request_output(state, finish_reason, stop_reason)
            calls.extend((state, finish_reason, stop_reason, start_ns, clock()))
            if is_alone:
                self._tell()
            return output

        return noting

    def _before(self) -> None:
        if self._num_waiting > 0 and not self._is_processing:
            self._log.flush()

    def _after(self, call: Call) -> None:
        # Others hear of each call, too: the events stay in order.
        self._calls.extend((*call.args[:3], call.start_ns, call.end_ns))
        self._tell()

    def _tell(self) -> None:
        calls, cause = self._calls.copy(), self._log.last.get("update")
        self._calls.clear()
        for start in range(0, len(calls), _FACTS * _TOGETHER):
            some = calls[start : start + _FACTS * _TOGETHER]
            self._num_waiting += 1
            self._log.add_later("output.text", _SYMBOL, partial(self._events, some, cause), len(some) // _FACTS)

    def _events(self, calls: list[Any], cause: int | None, seq: int, step: int) -> list[_TextEvent]:
        # Written out: this is most of what a log costs.
        self._num_waiting -= 1
        ref, is_logical, has_text = lookup(_SYMBOL).vllm, self._log.logical, self._tokenizer is not None
        num_told, chars_told, token_text = self._num_told, self._chars_told, self._token_text
        events = []
        for state, finish_reason, stop_reason, start_ns, end_ns in zip(*[iter(calls)] * _FACTS, strict=True):
            detokenizer, request_id = state.detokenizer, state.request.request_id
            token_ids, sent, sent_tokens = detokenizer.token_ids, state.sent_chars, state.sent_tokens
            start, end = num_told.get(request_id, 0), len(token_ids)
            num_told[request_id] = end
            delta = held = ""
            tokens: Any = ((token_ids[start], ""),) if end == start + 1 else [(i, "") for i in token_ids[start:]]
            if has_text:
                text = detokenizer.output_text
                delta, held = text[chars_told.get(request_id, 0) : sent], text[sent:] + _unfinished(detokenizer)
                chars_told[request_id] = sent
                tokens = [(i, token_text(i)) for i, _ in tokens]
            reason = None
            if finish_reason is not None:
                reason = str(finish_reason)
                del num_told[request_id]
                chars_told.pop(request_id, None)
            data = _Text(delta, held, sent, tokens, reason, stop_reason, None if sent_tokens == end else sent_tokens)
            wall_ns, dur_ns = (None, None) if is_logical else (end_ns, end_ns - start_ns)
            events.append(
                _TextEvent(seq, step, "frontend", "output.text", request_id, cause, data, _SYMBOL, ref, wall_ns, dur_ns)
            )
            seq += 1
        return events

    def _token_text(self, token_id: int) -> str:
        return self._tokenizer.token_text(token_id) if self._tokenizer is not None else ""


def _unfinished(detokenizer: Any) -> str:
    """What the tokens that wait for the rest of a character look like now."""
    stream = detokenizer._stream
    if stream is None or not stream._pending:
        return ""
    text: str = stream._decode(stream._settled + stream._pending)
    return text[len(stream._settled_text) :]
