"""Owns a run of the engine as an exercise looks at it: made, kept for comparison, and compared."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from minivllm.analysis.diff import Diff, diff_logs, first_divergence
from minivllm.exercises.course import Exercise
from minivllm.exercises.report import MapPlace
from minivllm.scenarios.definition import Scenario
from minivllm.scenarios.driver import RunResult
from minivllm.scenarios.run import run_scenario
from minivllm.trace.reader import Log

# An engine that plans nobody goes on for ever; every scenario is over long before.
MAX_STEPS = 300


@dataclass(frozen=True, slots=True)
class Run:
    """A run of the engine.

    Attributes:
        scenario: What ran.
        overrides: With which settings instead of the scenario's.
        log: Every event.
        result: How it ended.
        violations: Invariants that did not hold: (iteration, message).
        path: File of the log; None for the reference.
    """

    scenario: Scenario
    overrides: dict[str, Any]
    log: Log
    result: RunResult
    violations: list[tuple[int, str]]
    path: Path | None

    @property
    def call(self) -> str:
        """How the run is called in a report."""
        return f"the engine, on the scenario {self.scenario.name}"

    def at(self, iteration: int, kind: str = "plan", request: str | None = None) -> MapPlace | None:
        """A slice of a map of this run."""
        return None if self.path is None else MapPlace(kind, iteration, str(self.path), request)

    @property
    def tokens(self) -> dict[str, list[int]]:
        """What each request said."""
        return {name: list(request.output_token_ids) for name, request in self.result.requests.items()}


def run_with(scenario: Scenario, overrides: Mapping[str, Any], path: Path | None = None) -> Run:
    """Run a scenario on the engine as it is now."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
    traced = run_scenario(
        scenario, dict(overrides), log_path=path, check=True, logical=True, level="step", max_steps=MAX_STEPS
    )
    found = [(violation["iteration"], violation["message"]) for violation in traced.violations]
    return Run(scenario, dict(overrides), traced.log, traced.result, sorted(found), path)


def difference(a: Run, b: Run, *, tokens: bool = True, only_decisions: bool = False) -> Diff:
    """Where two runs part. Names of blocks do not count: any will do that are equal where ours are."""
    logs = _nameless(a.log), _nameless(b.log)
    diff = diff_logs(*logs, tokens=tokens)
    if only_decisions:
        diff.first = first_divergence(*logs, decisions_only=True, with_tokens=tokens)
    return diff


def _nameless(log: Log) -> Log:
    config = dict(log.header.config)
    config["cache_config"] = {**config["cache_config"], "hash_seed": None}
    # Asking for no block is as good as not asking.
    events = [event for event in log.events if event.kind != "kv.allocated" or event.data["blocks"]]
    return dataclasses.replace(log, events=events, header=msgspec.structs.replace(log.header, config=config))


_references: dict[str, Run] = {}


def reference_of(scenario: Scenario, overrides: Mapping[str, Any]) -> Run:
    """The run with the engine's own parts; made once."""
    key = run_key(scenario, overrides)
    if key not in _references:
        _references[key] = run_with(scenario, overrides)
    return _references[key]


def run_key(scenario: Scenario, overrides: Mapping[str, Any]) -> str:
    """The same for two runs that are the same on the same engine."""
    return f"{scenario!r} {sorted(overrides.items())!r}"


def planted(exercise: Exercise) -> dict[str, Any]:
    """The fault of a bug exercise: what takes the place of which symbol."""
    if not exercise.plants:
        return {}
    fault = importlib.import_module(exercise.module("fault"))
    return {symbol: getattr(fault, name) for symbol, name in exercise.plants.items()}
