"""Owns looking up what a run's facts are made of: iterations, requests, events, messages. Each map is made once."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from minivllm.trace.events import Event
from minivllm.trace.reader import Log


class FactError(ValueError):
    """An expression that the run has no answer to; the message says which, and why."""


class RunView:
    """One run, by what is looked up in it.

    Args:
        log: The run.
    """

    def __init__(self, log: Log) -> None:
        self._log = log

    @cached_property
    def _map(self) -> dict[str, Any]:
        from minivllm.maps.plan import plan_map

        return plan_map(self._log)

    @cached_property
    def _crossings(self) -> dict[str, Any]:
        from minivllm.maps.process import process_map

        return process_map(self._log)

    @cached_property
    def _iterations(self) -> dict[int, dict[str, Any]]:
        return {here["iteration"]: here for here in self._map["iterations"]}

    @cached_property
    def _requests(self) -> dict[str, dict[str, Any]]:
        return {request["request"]: request for request in self._map["requests"]}

    def _request(self, request: str) -> dict[str, Any]:
        if request not in self._requests:
            raise FactError(f"the run has no request {request!r}; it has {', '.join(self._requests)}")
        return self._requests[request]

    def _here(self, iteration: int) -> dict[str, Any]:
        if iteration not in self._iterations:
            raise FactError(f"the run has no iteration {iteration}; it has 0 to {max(self._iterations)}")
        return self._iterations[iteration]

    def _plan(self, iteration: int) -> dict[str, int]:
        budget = self._here(iteration)["budget"]
        if budget is None:
            raise FactError(f"nothing was planned in iteration {iteration}")
        return budget

    def _entry(self, request: str, iteration: int) -> dict[str, Any] | None:
        self._request(request)
        return next((e for e in self._here(iteration)["scheduled"] if e["request"] == request), None)

    def _scheduled_entry(self, request: str, iteration: int) -> dict[str, Any]:
        entry = self._entry(request, iteration)
        if entry is None:
            raise FactError(f"{request} was not scheduled in iteration {iteration}")
        return entry

    def _state(self, request: str, iteration: int) -> dict[str, Any]:
        from minivllm.maps.state import state_map

        (here,) = state_map(self._log, [iteration])["iterations"]
        for entry in here["requests"]:
            if entry["request"] == request:
                return entry
        raise FactError(f"{request} has no state in iteration {iteration}")

    def _events(self, kind: str, request: str | None) -> list[Event]:
        return [e for e in self._log.events if e.kind == kind and (request is None or e.request == request)]
