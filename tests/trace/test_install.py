"""Tracing comes and goes without a trace: same objects, same outputs, and a failing probe harms nobody."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

from minivllm.entrypoints.llm import LLM
from minivllm.maps.plan import plan_map
from minivllm.sampling_params import SamplingParams
from minivllm.scenarios.registry import get_scenario
from minivllm.scenarios.replay import workload_from_log
from minivllm.scenarios.run import run_scenario
from minivllm.scenarios.simulate import simulate_to_log
from minivllm.trace import recorder
from minivllm.trace.events import EventLog, Header
from minivllm.trace.install import Installation, Probe, Probes
from minivllm.trace.plan_lines import plan_lines
from minivllm.trace.probes import BlockProbes, FrontendProbes, PlanProbes, WorkerProbes

SCHEDULE = "minivllm.core.scheduler:Scheduler.schedule"


def all_probes() -> dict[str, Probe]:
    log = EventLog(Header())
    groups = (PlanProbes(log), BlockProbes(log), WorkerProbes(log), FrontendProbes(log, None))
    return {symbol: probe for group in groups for symbol, probe in group.probes().items()}


def as_it_stands(symbol: str) -> Any:
    module, _, qualname = symbol.partition(":")
    owner: Any = importlib.import_module(module)
    *path, name = qualname.split(".")
    for part in path:
        owner = getattr(owner, part)
    return owner.__dict__[name]


def test_every_symbol_is_the_very_same_object_afterwards() -> None:
    before = {symbol: as_it_stands(symbol) for symbol in all_probes()}
    with Installation(all_probes()):
        assert all(as_it_stands(symbol) is not before[symbol] for symbol in before)
    assert all(as_it_stands(symbol) is before[symbol] for symbol in before)


def test_an_exception_inside_takes_the_probes_off_as_well() -> None:
    before = as_it_stands(SCHEDULE)
    with pytest.raises(RuntimeError, match="inside"), Installation(all_probes()):
        raise RuntimeError("inside")
    assert as_it_stands(SCHEDULE) is before


def test_installations_can_be_nested() -> None:
    before = as_it_stands(SCHEDULE)
    with Installation(all_probes()):
        outer = as_it_stands(SCHEDULE)
        with Installation(all_probes()):
            assert as_it_stands(SCHEDULE) is not outer
        assert as_it_stands(SCHEDULE) is outer
    assert as_it_stands(SCHEDULE) is before


def test_a_name_that_is_not_there_leaves_everything_as_it_was() -> None:
    before = as_it_stands(SCHEDULE)
    probes = {SCHEDULE: lambda call: None, "minivllm.core.scheduler:Scheduler.nothing": lambda call: None}
    with pytest.raises(KeyError), Installation(probes):
        pass
    assert as_it_stands(SCHEDULE) is before


def test_a_traced_run_samples_what_an_untraced_one_does(tiny_model: Path) -> None:
    scenario = get_scenario("hello")
    traced = run_scenario(scenario, {"model": str(tiny_model)})
    engine = {**scenario.engine, "model": str(tiny_model)}
    for request in scenario.requests:
        params = SamplingParams(temperature=0.0, max_tokens=request.max_tokens, **request.sampling)
        [output] = LLM(**engine).generate(request.prompt, params)
        assert list(traced.result.requests[request.id].output_token_ids) == output.outputs[0].token_ids


@pytest.mark.parametrize("symbol", sorted(all_probes()))
def test_a_failing_probe_is_switched_off_and_named_and_the_run_goes_on(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch, symbol: str
) -> None:
    calls = []

    def failing(call: Any) -> None:
        calls.append(call)
        raise ZeroDivisionError("a probe's own mistake")

    def one_fails(groups: Any) -> Probes:
        return {**original(groups), symbol: [failing]}

    original = recorder.merge
    overrides = {"model": str(tiny_model), "block_size": 4}
    whole = run_scenario(get_scenario("hello"), overrides)
    monkeypatch.setattr(recorder, "merge", one_fails)
    run = run_scenario(get_scenario("hello"), overrides)
    expected = 0 if symbol.endswith(".reset_prefix_cache") else 1
    assert len(calls) == expected
    named = [v for v in run.violations if symbol in v["message"] and "a probe's own mistake" in v["message"]]
    assert len(named) == expected
    outputs = [
        {i: list(request.output_token_ids) for i, request in result.requests.items()}
        for result in (run.result, whole.result)
    ]
    assert outputs[0] == outputs[1]
    assert len(plan_map(run.log)["iterations"]) == run.result.steps


@pytest.mark.parametrize("is_async", [False, True])
def test_a_real_run_and_its_simulation_have_the_same_plans(tiny_model: Path, is_async: bool) -> None:
    overrides = {"model": str(tiny_model), "async_scheduling": is_async}
    run = run_scenario(get_scenario("hello"), overrides)
    workload, token_rule = workload_from_log(run.log, "fixed")
    log, _ = simulate_to_log(workload, None, token_rule)
    assert plan_lines(log.events, is_async=is_async) == plan_lines(run.log.events, is_async=is_async)
