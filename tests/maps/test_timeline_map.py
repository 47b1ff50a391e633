"""The timeline: what every request did in every iteration, and when."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.cells import cell_len
from rich.console import Console

from minivllm.maps.render.timeline import TimelineRenderer
from minivllm.maps.timeline import timeline_map
from minivllm.scenarios.registry import get_scenario
from minivllm.scenarios.simulate import simulate_to_log
from minivllm.scenarios.workload import load_workload
from minivllm.trace.events import Event, Header
from minivllm.trace.reader import Log, read_log
from tests.trace.workloads import mixed_workload, simulated_log


@pytest.fixture(scope="module")
def mixed() -> Log:
    return read_log(simulated_log(mixed_workload()))


def row(log: Log, request_id: str) -> list[dict[str, Any] | None]:
    return next(entry["cells"] for entry in timeline_map(log)["requests"] if entry["request"] == request_id)


def states_of(log: Log, request_id: str) -> list[str]:
    return [cell["state"] if cell else "" for cell in row(log, request_id)]


def drawn(log: Log, width: int, *, ascii_only: bool = False, **console: Any) -> str:
    file = io.StringIO()
    screen = Console(file=file, width=width, **console)
    TimelineRenderer(timeline_map(log), log.header, screen, ascii_only=ascii_only).draw()
    return file.getvalue()


def test_a_cell_says_what_a_request_did(mixed: Log) -> None:
    assert states_of(mixed, "A")[:3] == ["prefill", "decode", "decode"]
    assert row(mixed, "A")[0]["num_tokens"] == 24
    assert states_of(mixed, "B")[:2] == ["", "prefill"]
    assert row(mixed, "B")[1]["num_cached"] == 16
    assert states_of(mixed, "too-long")[2:4] == ["refused", ""]
    assert "aborted" in states_of(mixed, "D")
    assert states_of(mixed, "E")[-1] == ""
    preempted = states_of(mixed, "C").index("preempted")
    assert states_of(mixed, "C")[preempted + 1] == "waiting"
    last = max(place for place, cell in enumerate(row(mixed, "A")) if cell is not None)
    assert row(mixed, "A")[last]["finished"]


def test_the_cells_hold_every_token_of_the_plans(mixed: Log) -> None:
    timeline = timeline_map(mixed)
    plans = {event.step: dict(event.data["scheduled"]) for event in mixed.events if event.kind == "schedule"}
    for place, step in enumerate(timeline["iterations"]):
        cells = {entry["request"]: entry["cells"][place] for entry in timeline["requests"]}
        assert {i: cell["num_tokens"] for i, cell in cells.items() if cell and cell["num_tokens"]} == plans.get(
            step, {}
        )


def test_a_grid_is_drawn_as_it_was(mixed: Log) -> None:
    picture = drawn(mixed, 80)
    grid = {line.split()[0]: line for line in picture.splitlines() if line[:2] == "  " and line.strip()}
    assert grid["too-long"].split() == ["too-long", "r"]
    assert grid["D"].endswith("a")
    assert "h entered with a prefix hit" in picture
    assert "┄" in grid["A"], "a long run of the same is folded"
    starts = {name: len(line) - len(line[len(name) + 2 :].lstrip()) for name, line in grid.items() if name in "ABCDEF"}
    assert starts["B"] == starts["A"] + 1
    assert starts["C"] == starts["A"] + 2


@pytest.mark.parametrize("width", [40, 80, 120, 160])
def test_no_line_is_wider_than_the_screen(mixed: Log, width: int) -> None:
    for log in (mixed, read_log(get_scenario("mixed-batch").log_path), with_clocks(mixed)):
        for ascii_only in (False, True):
            picture = drawn(log, width, ascii_only=ascii_only)
            assert all(cell_len(line) <= width for line in picture.splitlines()), picture
            assert not ascii_only or picture.isascii()


def with_clocks(log: Log) -> Log:
    """The same run, a millisecond a step, and the steps of prompts three times as long."""
    events: list[Event] = []
    now = 5_000_000
    for inside in log.by_step().values():
        length = 3_000_000 if any(event.data.get("total_scheduled", 0) > 10 for event in inside) else 1_000_000
        for event in inside:
            is_end = event.kind == "step.end"
            events.append(msgspec.structs.replace(event, wall_ns=now + length if is_end else now, dur_ns=0))
        now += length
    return Log(log.header, events)


def test_where_there_are_clocks_it_is_drawn_over_time_too(mixed: Log) -> None:
    assert "OVER TIME" not in drawn(mixed, 80)
    timeline = timeline_map(with_clocks(mixed))
    assert timeline["times"][0] == {"iteration": 0, "start_ns": 0, "end_ns": 3_000_000}
    picture = drawn(with_clocks(mixed), 120)
    assert "OVER TIME" in picture
    below = picture[picture.index("OVER TIME") :].splitlines()
    first = next(line for line in below if line.startswith("  A "))
    assert first.split()[1].startswith("▓▓▓█"), "a prompt of three milliseconds, then tokens of one"


def test_a_long_run_is_cut_in_the_middle(tmp_path: Path) -> None:
    requests = [{"id": f"R{k}", "arrival_step": 5 * k, "prompt_token_ids": [k] * 9, "max_tokens": 2} for k in range(40)]
    path = tmp_path / "workload.json"
    limits = {"max_num_seqs": 4, "max_num_batched_tokens": 24, "block_size": 4, "num_gpu_blocks": 26}
    path.write_text(json.dumps({"config": {**limits, "max_model_len": 128}, "requests": requests}))
    log, _ = simulate_to_log(load_workload(path, "fixed"))
    picture = drawn(Log(log.header, log.events), 24)
    assert re.search(r"… iterations \d+ to \d+", picture)
    assert "and 16 more request" in picture
    assert len(picture.splitlines()) < 60


def test_an_empty_run_is_drawn() -> None:
    assert "empty" in drawn(Log(Header(), []), 80)


def test_a_stop_string_is_an_end_and_no_abort() -> None:
    log = read_log(get_scenario("stop-strings").log_path)
    last = [cell for cell in row(log, "R0") if cell is not None][-1]
    assert (last["state"], last["finished"]) == ("decode", True)
    (entry,) = [entry for entry in timeline_map(log)["requests"] if entry["request"] == "R0"]
    assert entry["finish_reason"] == "stop"
