"""Owns why a request ended when it did: its limits, its stops, its caller, or a refusal."""

from __future__ import annotations

from typing import Any

from minivllm.analysis.answer import Answer, CannotKnowError
from minivllm.analysis.iteration import DEFAULT_MAX_TOKENS
from minivllm.analysis.moments import answer_for
from minivllm.maps.wording import Words
from minivllm.trace.events import Event
from minivllm.trace.reader import Log

# An abort comes from outside: the event of it has no place in the engine's source.
_ABORT = ("minivllm.engine.core:EngineCore.abort_requests", "vllm/v1/engine/core.py::EngineCore.abort_requests")


def finished(log: Log, request: str, iteration: int | None, words: Words) -> Answer:
    """Why a request ended when it did."""
    step, reason, stop_reason, event = _end(log, request)
    if iteration is not None and step != iteration:
        raise ValueError(f"{request} did not end in iteration {iteration}; it ended in iteration {step}")
    arrived = next((e for e in log.events if e.kind == "request.arrived" and e.request == request), None)
    params = arrived.data.get("sampling_params", {}) if arrived is not None else {}
    emitted = [e.data["emitted"].get(request, []) for e in log.events if e.kind == "update"]
    tokens = [token for part in emitted for token in part]
    max_tokens = params.get("max_tokens", DEFAULT_MAX_TOKENS)
    max_model_len = log.header.config["scheduler_config"]["max_model_len"]
    numbers: dict[str, Any] = {"output_tokens": len(tokens), "max_tokens": max_tokens, "max_model_len": max_model_len}
    prompt = len(arrived.data["prompt_token_ids"]) if arrived is not None else None
    if prompt is not None:
        numbers["prompt_tokens"] = prompt
    how = _how(reason, stop_reason, tokens, numbers, words)
    text = words("ended", request=request, step=step, how=how)
    answer = answer_for(request, "finished", step, text, reason, numbers | {"stop_reason": stop_reason})
    answer.ours, answer.vllm = "minivllm.core.stop_check:check_stop", "vllm/v1/core/sched/utils.py::check_stop"
    if reason == "abort" or isinstance(stop_reason, str):
        answer.ours, answer.vllm = event.src or _ABORT[0], event.ref or _ABORT[1]
    if isinstance(stop_reason, str):
        answer.more.append(words("frontend_found"))
    if reason == "abort":
        answer.more += _left_behind(log, request, words)
    return answer


def _left_behind(log: Log, request: str, words: Words) -> list[str]:
    """What an abort leaves: a token of the step that was running, and blocks."""
    said: list[str] = []
    abort = next((e for e in log.events if e.kind == "requests.aborted" and request in e.data["ended"]), None)
    if abort is None:
        return said
    for event in log.events:
        if event.kind == "update" and event.step >= abort.step:
            dropped = event.data["sampled"].get(request, [])[len(event.data["emitted"].get(request, [])) :]
            said += [words("thrown_away", token=token) for token in dropped]
        if event.kind == "kv.freed" and event.request == request and event.step == abort.step:
            said.append(words("went_back", count=len(event.data["blocks"])))
    return said


def _end(log: Log, request: str) -> tuple[int, str, int | str | None, Event]:
    """Iteration, reason, stop reason and event of a request's end. What its caller was told counts first."""
    for event in log.events:
        if event.kind == "output.text" and event.request == request and event.data["finish_reason"] is not None:
            return event.step, event.data["finish_reason"], event.data["stop_reason"], event
    for event in log.events:
        if event.kind == "update" and request in event.data["finished"]:
            reason, stop_reason = event.data["finished"][request]
            return event.step, reason, stop_reason, event
        if event.kind == "requests.aborted" and request in event.data["ended"]:
            return event.step, "abort", None, event
        if event.kind == "request.refused" and event.request == request:
            return event.step, "refused", event.data["message"], event
    raise CannotKnowError(f"the log does not hold an end of {request}: it goes on, or the log was cut off before")


def _how(reason: str, stop_reason: int | str | None, tokens: list[int], numbers: dict[str, Any], words: Words) -> str:
    count, limit = len(tokens), numbers["max_tokens"]
    if reason == "length":
        if numbers.get("prompt_tokens") is not None and limit is not None and count >= limit:
            return words("how_max_tokens", count=count, limit=limit)
        known = numbers.get("prompt_tokens", 0) + count
        return words("how_model_length", known=known, limit=numbers["max_model_len"])
    if reason == "stop":
        if stop_reason is None:
            return words("how_eos", token=tokens[-1] if tokens else "?", count=count)
        if isinstance(stop_reason, str):
            return words("how_stop_string", stop=repr(stop_reason), count=count)
        return words("how_stop_token", stop=stop_reason, count=count)
    if reason == "abort":
        return words("how_abort", count=count)
    if reason == "refused":
        return words("how_refused", message=stop_reason)
    return words("how_other", reason=reason, count=count)
