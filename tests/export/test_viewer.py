"""The page holds the maps as they are, loads nothing, and shows what a prompt says without doing it."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import msgspec
import pytest

from minivllm.export.viewer import (
    MAX_ITERATIONS,
    thin_pools,
    viewer_document,
    viewer_page,
    whole_pools,
    window_around,
)
from minivllm.maps.hotpath import hot_map
from minivllm.maps.plan import plan_map
from minivllm.maps.process import process_map
from minivllm.maps.state import state_map
from minivllm.maps.timeline import timeline_map
from minivllm.scenarios.registry import all_scenarios, get_scenario
from minivllm.trace.reader import Log, read_log
from tests.trace.workloads import mixed_workload, simulated_log

SCENARIOS = [scenario.name for scenario in all_scenarios()]
EVIL = "</script><script>document.title='owned'</script><img src=x onerror=alert(1)> & <!-- \u2028 @@DATA@@"


class Page(HTMLParser):
    """What a browser makes of the page: its elements, and what stands in its scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data: str) -> None:
        if self.scripts and self.elements[-1][0] == "script":
            self.scripts[-1] += data


def log_of(name: str) -> Log:
    if name == "simulated":
        return read_log(simulated_log(mixed_workload()))
    return read_log(get_scenario(name).log_path)


def page_of(log: Log) -> Page:
    return Page(viewer_page(viewer_document(log, 0, max(log.by_step()))))


def evil_log() -> Log:
    """A run whose prompt, text and name want out of the page."""
    text = msgspec.json.encode(log_of("hello").events).decode()
    quoted = json.dumps(EVIL)[1:-1]
    text = text.replace("Once upon a time", quoted).replace('" there"', f'"{quoted}"')
    log = log_of("hello")
    log.header.scenario = EVIL
    return Log(log.header, msgspec.json.decode(text, type=type(log.events)[type(log.events[0])]), path=log.path)


@pytest.mark.parametrize("name", [*SCENARIOS, "simulated"])
def test_it_holds_the_maps_as_json(name: str) -> None:
    log = log_of(name)
    held = json.loads(page_of(log).scripts[0])

    def as_json(document: Any) -> Any:
        return json.loads(json.dumps(document))

    assert held["plan"] == as_json(plan_map(log))
    assert whole_pools(held["state"]) == as_json(state_map(log))
    assert held["process"] == as_json(process_map(log))
    assert held["timeline"] == as_json(timeline_map(log))
    assert held["hot"]["run"] == as_json(hot_map(log))
    for step, hot in zip(sorted(log.by_step()), held["hot"]["iterations"], strict=True):
        assert hot == {key: value for key, value in as_json(hot_map(log, [step])).items() if key != "latency"}


def test_a_pool_is_told_by_what_changed() -> None:
    state = state_map(log_of("kv-pressure"))
    thin = thin_pools(state)
    assert whole_pools(thin) == state
    assert (
        sum(len(entry["pool"]) for entry in thin["iterations"]) < sum(len(e["pool"]) for e in state["iterations"]) / 2
    )


@pytest.mark.parametrize("name", [*SCENARIOS, "simulated"])
def test_it_loads_nothing(name: str) -> None:
    page = page_of(log_of(name))
    assert not {tag for tag, _ in page.elements} & {
        "link",
        "img",
        "iframe",
        "object",
        "embed",
        "base",
        "video",
        "audio",
    }
    assert not [attrs for _, attrs in page.elements if "src" in attrs or "srcset" in attrs]
    assert all((attrs.get("href") or "#").startswith("#") for _, attrs in page.elements)
    [policy] = [attrs["content"] for _, attrs in page.elements if attrs.get("http-equiv") == "Content-Security-Policy"]
    assert policy is not None
    assert policy.startswith("default-src 'none'")
    own = "".join(
        path.read_text(encoding="utf-8")
        for path in Path(__file__, "../../../minivllm/export/viewer").resolve().iterdir()
    )
    assert not re.findall(r"https?:|//[a-z]+\.|@import|url\(|fetch\(|XMLHttpRequest|innerHTML|eval\(", own)


def test_nothing_that_a_prompt_says_gets_out_of_its_place() -> None:
    log = evil_log()
    text = viewer_page(viewer_document(log, 0, max(log.by_step())))
    page = Page(text)
    assert [tag for tag, _ in page.elements].count("script") == 2
    assert not [tag for tag, _ in page.elements if tag == "img"]
    held = json.loads(page.scripts[0])
    assert held["plan"]["requests"][0]["prompt"] == EVIL
    assert held["run"]["scenario"] == EVIL
    assert EVIL in held["plan"]["requests"][0]["text"]


def test_half_a_character_can_be_written() -> None:
    document = viewer_document(log_of("hello"), 0, 12)
    document["plan"]["requests"][0]["text"] = "\ud83d"
    viewer_page(document).encode("utf-8")


def test_places_are_those_of_the_source() -> None:
    held = viewer_document(log_of("mixed-batch"), 13, 21)
    assert re.fullmatch(r"core/scheduler\.py:\d+", held["places"]["minivllm.core.scheduler:Scheduler.schedule"])


def test_the_order_of_processes_is_that_of_the_map() -> None:
    held = viewer_document(log_of("mixed-batch"), 13, 21)
    lists = {"message": held["process"]["messages"], **{"stage": [], "wait": []}}
    iteration = held["process"]["iterations"][13]
    lists |= {"stage": iteration["stages"], "wait": iteration["waits"]}
    names = [lists[kind][at].get("type") or lists[kind][at].get("name") for kind, at in held["process_order"][13]]
    assert [n for n in names if n] == [
        "EngineCoreRequest", "EngineCoreRequest", "EngineCoreRequest", "schedule", "SchedulerOutput", "update_states",
        "prepare_inputs", "ModelRunnerOutput", "update_from_output", "EngineCoreOutputs", "process_outputs",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("iteration", "last", "window"),
    [
        (0, 9_999, (0, MAX_ITERATIONS - 1)),
        (5_000, 9_999, (5_000 - MAX_ITERATIONS // 2, 5_000 + MAX_ITERATIONS // 2 - 1)),
        (9_999, 9_999, (10_000 - MAX_ITERATIONS, 9_999)),
        (3, 20, (0, 20)),
    ],
)
def test_a_window_is_around_the_iteration(iteration: int, last: int, window: tuple[int, int]) -> None:
    assert window_around(iteration, last) == window
