"""Owns the life of each request as a trace tells it: queued, prefill, decode, preempted; and what came of it when."""

from __future__ import annotations

from typing import Any

from minivllm.export.clock import Clock
from minivllm.trace.events import Event
from minivllm.trace.reader import Log

QUEUED, PREFILL, DECODE, PREEMPTED = "queued", "prefill", "decode", "preempted"
_PHASE_OF_STATUS = {"PREEMPTED": PREEMPTED, "RUNNING": DECODE, "WAITING": QUEUED}

Told = dict[str, Any]


def lives_of(log: Log, clock: Clock, pid: int) -> list[Told]:
    """Nestable asynchronous events (b, n, e) of every request, in order of time.

    Args:
        log: What is told.
        clock: Its time axis.
        pid: The group that they stand in.
    """
    lives = _Lives(pid)
    if log.events and log.start:
        for request_id, entry in log.start["requests"].items():
            if entry["status"] in _PHASE_OF_STATUS:
                lives.begin(request_id, clock.start(log.events[0]), {"num_prompt_tokens": entry["num_prompt_tokens"]})
                lives.enter(request_id, _PHASE_OF_STATUS[entry["status"]], clock.start(log.events[0]))
    last = 0.0
    for event in log.events:
        last = max(last, clock.end(event))
        _apply(event, lives, clock.end(event))
    lives.close(last)
    return lives.told


class _Lives:
    """What is open, and what was told so far."""

    def __init__(self, pid: int) -> None:
        self.told: list[Told] = []
        self._pid = pid
        self.phase: dict[str, str] = {}
        self._latest: dict[str, float] = {}

    def _tell(self, ph: str, request: str, name: str, at: float, args: Told) -> None:
        # Events of two processes may be logged in another order than that of their clocks.
        at = self._latest[request] = max(at, self._latest.get(request, 0.0))
        place = {"cat": "request", "id": request, "pid": self._pid, "tid": 0}
        self.told.append({"ph": ph, "name": name, **place, "ts": at, "args": args})

    def begin(self, request: str, at: float, args: Told) -> None:
        self._tell("b", request, request, at, args)

    def enter(self, request: str, phase: str, at: float, **args: Any) -> None:
        if request in self.phase:
            self._tell("e", request, self.phase[request], at, {})
        self.phase[request] = phase
        self._tell("b", request, phase, at, args)

    def note(self, request: str, what: str, at: float, **args: Any) -> None:
        if request in self.phase:
            self._tell("n", request, what, at, args)

    def end(self, request: str, at: float, **args: Any) -> None:
        if request in self.phase:
            self._tell("e", request, self.phase.pop(request), at, {})
            self._tell("e", request, request, at, args)

    def close(self, at: float) -> None:
        """The log ends before they do."""
        for request in list(self.phase):
            self.end(request, at, still_alive=True)
        self.told.sort(key=lambda entry: entry["ts"])


def _apply(event: Event, lives: _Lives, at: float) -> None:
    data, facts = event.data, {"iteration": event.step, "src": event.src, "ref": event.ref}
    if event.kind == "request.arrived" and event.request is not None:
        lives.begin(
            event.request, at, {"num_prompt_tokens": len(data["prompt_token_ids"]), "prompt": data.get("prompt")}
        )
        lives.enter(event.request, QUEUED, at, **facts)
    elif event.kind == "request.refused" and event.request is not None:
        lives.end(event.request, at, reason="refused", message=data["message"])
    elif event.kind == "kv.lookup" and event.request is not None and data["hit"]:
        lives.note(event.request, f"prefix hit: {data['hit']} tokens", at, **facts, blocks=data["blocks"])
    elif event.kind == "schedule":
        for victim in data["preempted"]:
            lives.enter(victim, PREEMPTED, at, **facts)
        for request_id in (*data["new"], *data["resumed"]):
            lives.enter(request_id, PREFILL, at, **facts)
    elif event.kind == "update":
        for request_id, tokens in data["emitted"].items():
            if tokens and lives.phase.get(request_id) == PREFILL:
                lives.enter(request_id, DECODE, at, **facts)
            lives.note(request_id, f"tokens {tokens}", at, iteration=event.step)
        for request_id, (reason, stop_reason) in data["finished"].items():
            lives.end(request_id, at, reason=reason, stop_reason=stop_reason, **facts)
    elif event.kind == "requests.aborted":
        for request_id in data["ended"]:
            lives.end(request_id, at, reason="abort", **facts)
