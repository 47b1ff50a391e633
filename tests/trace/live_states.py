"""Runs with a snapshot of the live engine after every step, taken past the probes."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from minivllm.engine.llm_engine import LLMEngine
from minivllm.scenarios import run as run_module
from minivllm.scenarios import simulate as simulate_module
from minivllm.scenarios.definition import Scenario
from minivllm.scenarios.driver import run as drive
from minivllm.scenarios.workload import Workload
from minivllm.trace.reader import Log
from minivllm.trace.replay import states
from minivllm.trace.snapshot import request_entry, snapshot

# Of a request that has ended nobody counts these any more.
LIVE_ONLY = ("num_in_flight_tokens", "num_stale_output_tokens", "num_scheduled")


@dataclass
class LiveStates:
    """Snapshots by step, and the requests themselves, which the scheduler forgets when they end."""

    by_step: list[dict[str, Any]] = field(default_factory=list)
    requests: dict[str, Any] = field(default_factory=dict)


def simulated(workload: Workload, token_rule: Any = None) -> tuple[Log, LiveStates]:
    """Simulate a workload."""
    live = LiveStates()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulate_module, "run", _watched(live, lambda core: (None, None)))
        log, _ = simulate_module.simulate_to_log(workload, None, token_rule)
    return Log(log.header, log.events), live


def traced(scenario: Scenario, overrides: dict[str, Any], log_path: Path | None = None) -> tuple[Log, LiveStates]:
    """Run a scenario in the real engine."""
    live = LiveStates()
    engines: list[LLMEngine] = []
    make = LLMEngine.from_engine_args

    def remember(*args: Any, **kwargs: Any) -> LLMEngine:
        engines.append(make(*args, **kwargs))
        return engines[-1]

    def parts(core: Any) -> tuple[Any, Any]:
        return core.model_executor.worker.runner, engines[-1].output_processor

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LLMEngine, "from_engine_args", remember)
        patch.setattr(run_module, "run", _watched(live, parts))
        run = run_module.run_scenario(scenario, overrides, log_path=log_path, logical=True)
    assert not run.violations
    return run.log, live


def _watched(live: LiveStates, parts: Any) -> Any:
    def run(core: Any, arrivals: Any, log: Any, *, at_step_end: Any, **options: Any) -> Any:
        runner, output_processor = parts(core)
        scheduler = core.scheduler
        plans: list[Any] = []
        schedule, add_request = scheduler.schedule, scheduler.add_request

        def plan() -> Any:
            plans.append(schedule())
            return plans[-1]

        def add(request: Any) -> None:
            add_request(request)
            live.requests[request.request_id] = request

        scheduler.schedule, scheduler.add_request = plan, add

        def at_end() -> Any:
            extra = at_step_end()
            live.by_step.append(snapshot(core, runner, output_processor, plan=plans[-1] if plans else None))
            plans.clear()
            return extra

        return drive(core, arrivals, log, at_step_end=at_end, **options)

    return run


def assert_replayed(log: Log, live: LiveStates) -> None:
    """Every replayed state is what the engine was: queues and free blocks in their order, too."""
    count = 0
    for step, state in states(log):
        replayed, engine = state.as_dict(), live.by_step[step]
        for name in ("waiting", "skipped_waiting", "running", "in_flight", "pool", "worker"):
            assert replayed[name] == engine[name], f"step {step}: {name}"
        for request_id, entry in replayed["requests"].items():
            if entry["status"] == "REFUSED":
                assert request_id not in live.requests
            elif request_id in engine["requests"]:
                del entry["arrived"]
                assert entry == engine["requests"][request_id], f"step {step}: {request_id}"
            else:
                ended = request_entry(live.requests[request_id])
                for key in (*LIVE_ONLY, "arrived"):
                    entry.pop(key), ended.pop(key, None)
                assert entry == ended, f"step {step}: {request_id}, which has ended"
        assert engine["requests"].keys() <= replayed["requests"].keys()
        live_texts = {i: entry for i, entry in replayed["frontend"].items() if i in engine["frontend"]}
        assert live_texts == engine["frontend"], f"step {step}: frontend"
        count += 1
    assert count == len(live.by_step) > 0
