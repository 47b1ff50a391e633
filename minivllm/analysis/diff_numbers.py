"""Owns the numbers of a run as a whole and of each of its requests: what two runs are compared by."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import Any

from minivllm.trace.events import Event
from minivllm.trace.reader import Log


@dataclass(slots=True)
class RequestNumbers:
    """One request's life, in iterations.

    Attributes:
        arrived: Iteration before which it came.
        first_scheduled, first_token, finished: When it first got tokens, gave its first, and ended; None if never.
        reason: How it ended: a finish reason, "abort" or "refused"; None if it had not.
        waited: Iterations from its arrival to its first tokens; None if it never got any.
        preemptions, lost: How often it lost its blocks, and how many computed tokens with them.
        hit: Tokens that it found in the prefix cache.
        prompt: Its prompt; None if its arrival is not in the log.
        output: Tokens that it was given.
        logged_text: Text of each of them, if the log has it.
    """

    arrived: int
    first_scheduled: int | None = None
    first_token: int | None = None
    finished: int | None = None
    reason: str | None = None
    preemptions: int = 0
    lost: int = 0
    hit: int = 0
    prompt: list[int] | None = None
    output: list[int] = field(default_factory=list)
    logged_text: list[str] = field(default_factory=list)
    emitted_in: list[int] = field(default_factory=list)  # iteration of each token of `output`

    @property
    def waited(self) -> int | None:
        return None if self.first_scheduled is None else self.first_scheduled - self.arrived

    def as_dict(self) -> dict[str, Any]:
        names = ("arrived", "waited", "first_token", "finished", "reason", "preemptions", "lost", "hit")
        return {name: getattr(self, name) for name in names} | {"output_tokens": len(self.output)}


@dataclass(slots=True)
class RunNumbers:
    """A run in numbers.

    Attributes:
        iterations: Steps of the engine, idle ones included.
        computed: Tokens computed, in all iterations together.
        fullest: Tokens of the iteration that computed most.
        most_running: Most requests that had tokens in one iteration.
        preemptions, lost: How often a request lost its blocks, and computed tokens lost with them.
        looked_up, hit: Tokens looked up and found in the prefix cache.
        peak_blocks, blocks: Most blocks in use at once, and blocks there are.
        in_vain: Tokens that were sampled and not given to anybody.
        tokens_per_step: Tokens that each iteration computed.
        held_back: The iterations in which a rule held somebody back, by rule.
        admitted: Requests in the order in which they first got tokens.
        requests: By id, in order of arrival.
    """

    iterations: int = 0
    computed: int = 0
    fullest: int = 0
    most_running: int = 0
    preemptions: int = 0
    lost: int = 0
    looked_up: int = 0
    hit: int = 0
    peak_blocks: int = 0
    blocks: int = 0
    in_vain: int = 0
    tokens_per_step: list[int] = field(default_factory=list)
    held_back: dict[str, list[int]] = field(default_factory=dict)
    admitted: list[str] = field(default_factory=list)
    requests: dict[str, RequestNumbers] = field(default_factory=dict)

    def times_held_back(self, reasons: Iterable[str]) -> int:
        """In how many iterations any of these rules held somebody back."""
        return len({step for reason in reasons for step in self.held_back.get(reason, ())})

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        requests = [{"request": i, **numbers.as_dict()} for i, numbers in self.requests.items()]
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "requests"} | {"requests": requests}


def run_numbers(log: Log) -> RunNumbers:
    """Count what happened in a run."""
    run = RunNumbers(blocks=max((log.header.config.get("cache_config", {}).get("num_gpu_blocks") or 1) - 1, 0))
    for event in log.events:
        if event.kind == "step.end":
            run.iterations += 1
            run.tokens_per_step += [0] * (event.step + 1 - len(run.tokens_per_step))
        elif event.kind == "request.arrived" and event.request is not None:
            run.requests[event.request] = RequestNumbers(event.step, prompt=event.data["prompt_token_ids"])
        elif event.kind == "schedule":
            _count_plan(run, event)
        elif event.kind == "update":
            _count_output(run, event)
        elif event.kind == "output.text" and event.request in run.requests:
            run.requests[event.request].logged_text += [text for _, text in event.data["tokens"]]
        elif event.kind == "requests.aborted":
            for request in event.data["ended"]:
                _end(run, request, event.step, "abort")
        elif event.kind == "request.refused" and event.request is not None:
            _end(run, event.request, event.step, "refused")
    return run


def _rules_at_work(plan: dict[str, Any]) -> set[str]:
    """The rules by which a plan gave somebody less than they wanted."""
    entries = [*plan["not_scheduled"], *plan["cut"]]
    stop = plan["stop"]
    if stop is not None and stop["request"] is not None:
        entries.append(stop)
    return {entry["reason"] for entry in entries} | ({"preempted"} if plan["preempted"] else set())


def _request(run: RunNumbers, request: str, step: int) -> RequestNumbers:
    return run.requests.setdefault(request, RequestNumbers(step))


def _count_plan(run: RunNumbers, event: Event) -> None:
    plan = event.data
    run.tokens_per_step += [0] * (event.step + 1 - len(run.tokens_per_step))
    run.tokens_per_step[event.step] = plan["total_scheduled"]
    run.computed += plan["total_scheduled"]
    run.fullest = max(run.fullest, plan["total_scheduled"])
    run.most_running = max(run.most_running, len(plan["scheduled"]))
    run.peak_blocks = max(run.peak_blocks, run.blocks - plan["free_blocks_scheduled"])
    for reason in sorted(_rules_at_work(plan)):
        run.held_back.setdefault(reason, []).append(event.step)
    for request, _ in plan["scheduled"]:
        entry = _request(run, request, event.step)
        if entry.first_scheduled is None:
            entry.first_scheduled = event.step
            run.admitted.append(request)
    for victim, lost, _ in plan["preemptions"]:
        entry = _request(run, victim, event.step)
        entry.preemptions += 1
        entry.lost += lost
        run.preemptions += 1
        run.lost += lost
    for request, asked, hit in plan["prefix_cache"]:
        _request(run, request, event.step).hit += hit
        run.looked_up += asked
        run.hit += hit


def _count_output(run: RunNumbers, event: Event) -> None:
    data = event.data
    for request, tokens in data["emitted"].items():
        entry = _request(run, request, event.step)
        if tokens and entry.first_token is None:
            entry.first_token = event.step
        entry.output += tokens
        entry.emitted_in += [event.step] * len(tokens)
    for request, tokens in data["sampled"].items():
        run.in_vain += len(tokens) - len(data["emitted"].get(request, []))
    for request, (reason, _) in data["finished"].items():
        _end(run, request, event.step, reason)


def _end(run: RunNumbers, request: str, step: int, reason: str) -> None:
    entry = _request(run, request, step)
    if entry.finished is None:
        entry.finished, entry.reason = step, reason
