"""Every event of every recorded scenario is what the published schema says, and the page says what the schema does."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import msgspec
import pytest

from minivllm.scenarios.registry import all_scenarios, get_scenario
from minivllm.scenarios.run import run_scenario
from minivllm.scenarios.simulate import simulate_to_log
from minivllm.trace.events import Event
from minivllm.trace.reader import read_log
from minivllm.trace.schema import CLOCKED_KINDS, KINDS, check_event, json_schema
from tests.trace.workloads import mixed_workload

DOCS = Path(__file__).parents[2] / "docs"
RECORDED = [scenario for scenario in all_scenarios() if scenario.log_path.exists()]


@pytest.mark.parametrize("name", [scenario.name for scenario in RECORDED])
def test_a_recorded_log_is_what_the_schema_says(name: str) -> None:
    log = read_log(get_scenario(name).log_path)
    assert log.events
    for event in log.events:
        check_event(event)
        assert (event.kind in CLOCKED_KINDS) <= (log.header.clock == "wall")


@pytest.mark.parametrize("mp", [False, True])
def test_so_is_a_log_with_clocks_and_everything_in_it(mp: bool) -> None:
    run = run_scenario(get_scenario("hello"), {}, mp=mp, level="function", logits=True)
    kinds = set()
    for event in run.log.events:
        check_event(event)
        assert event.wall_ns is not None
        kinds.add(event.kind)
    assert kinds >= CLOCKED_KINDS - {"kernels", "device.time"} | {"logits", "output.text", "rows"}
    assert "message.half" not in kinds


def test_so_is_a_simulation() -> None:
    log, _ = simulate_to_log(mixed_workload())
    for event in log.events:
        check_event(event)
    assert {"request.refused", "requests.aborted", "step.idle", "keyframe"} <= {event.kind for event in log.events}


def test_an_event_that_is_something_else_is_not_let_through() -> None:
    good = Event(0, 0, "engine_core", "kv.allocated", data={"blocks": [1]})
    check_event(good)
    for data in ({}, {"blocks": ["1"]}, {"blocks": [1], "more": 1}):
        with pytest.raises(msgspec.ValidationError):
            check_event(msgspec.structs.replace(good, data=data))
    with pytest.raises(KeyError):
        check_event(msgspec.structs.replace(good, kind="kv.unheard"))


def test_the_schema_has_every_kind() -> None:
    document = json_schema()
    kinds = [
        rule["allOf"][1]["properties"].get("kind", {}).get("const") for rule in document["oneOf"] if "allOf" in rule
    ]
    assert [kind for kind in kinds if kind is not None] == list(KINDS)


def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate_log", DOCS / "generate_log.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_and_the_published_schema_are_up_to_date() -> None:
    module = generator()
    assert module.PAGE.read_text(encoding="utf-8") == module.page(), "run: python docs/generate_log.py"
    assert module.SCHEMA_FILE.read_text(encoding="utf-8") == module.schema_text(), "run: python docs/generate_log.py"


def test_the_kernels_of_some_forward_passes_are_told() -> None:
    run = run_scenario(get_scenario("hello"), {}, level="kernel")
    assert run.violations == []
    [event] = [event for event in run.log.events if event.kind == "kernels"]
    check_event(event)
    names = {name for name, _, _, _ in event.data["kernels"]}
    assert any("aten::" in name for name in names)
    assert all(calls > 0 and cpu_ns >= 0 for _, calls, cpu_ns, _ in event.data["kernels"])
    assert any(event.kind == "call" for event in run.log.events)
