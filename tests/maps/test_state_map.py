"""The state map: each request in its three places, every block of the pool, and what the iteration changed."""

from __future__ import annotations

import io
import itertools
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

from minivllm.maps.render.pool_strip import PoolStrip
from minivllm.maps.render.state import StateRenderer
from minivllm.maps.state import state_map
from minivllm.scenarios.definition import Scenario, ScenarioRequest
from minivllm.scenarios.registry import get_scenario, prompts_scenario
from minivllm.scenarios.simulate import simulate_to_log
from minivllm.scenarios.workload import load_workload
from minivllm.trace.reader import Log, read_log
from tests.trace.live_states import simulated, traced
from tests.trace.workloads import mixed_workload, simulated_log

WIDTHS = [40, 80, 120, 160]
CHINESE = "从前有一座山,山里有一座庙,庙里有一个老和尚在给小和尚讲故事。" * 3


@pytest.fixture(scope="module")
def logs(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Log]:
    held = Scenario(
        "held",
        "",
        "",
        {"max_model_len": 64, "block_size": 4, "num_gpu_blocks_override": 40},
        (ScenarioRequest("R0", CHINESE[:20], max_tokens=12, sampling={"stop": ["中文的停止串"], "ignore_eos": True}),),
    )
    return {
        "mixed-batch": read_log(get_scenario("mixed-batch").log_path),
        "odd texts": traced(
            prompts_scenario([CHINESE, "a\tb\nc\x1b[31md", "[bold]x[/bold]"], 9, {}), model(tiny_model)
        )[0],
        "held": traced(held, model(tiny_model))[0],
        "simulated": read_log(simulated_log(mixed_workload())),
        "many": many_blocks(tmp_path_factory.mktemp("many")),
    }


def model(folder: Path) -> dict[str, Any]:
    return {"model": str(folder)}


def many_blocks(folder: Path) -> Log:
    """Fifty requests in a pool of 5000 blocks."""
    requests = [
        {"id": f"request-{k}", "arrival_step": k // 3, "prompt_token_ids": [k] * (50 + 7 * k), "max_tokens": 5 + k}
        for k in range(50)
    ]
    limits = {"max_num_seqs": 40, "max_num_batched_tokens": 900, "block_size": 4, "num_gpu_blocks": 5000}
    path = folder / "workload.json"
    path.write_text(json.dumps({"config": {**limits, "max_model_len": 1000}, "requests": requests}))
    log, _ = simulate_to_log(load_workload(path, "fixed"))
    return Log(log.header, log.events)


def iteration(log: Log, number: int) -> dict[str, Any]:
    (found,) = state_map(log, [number])["iterations"]
    return found


# ---- what it says ----------------------------------------------------------------------------------------------------


def test_a_request_is_told_in_its_three_places(logs: dict[str, Log]) -> None:
    r0, r1, _, r3 = iteration(logs["mixed-batch"], 13)["requests"]
    assert r0["request"] == "R0"
    assert {key: r0["scheduler"][key] for key in ("status", "num_tokens", "num_computed_tokens", "num_scheduled")} == {
        "status": "RUNNING",
        "num_tokens": 1026,
        "num_computed_tokens": 1025,
        "num_scheduled": 1,
    }
    assert r0["worker"]["row"] == 0
    assert r0["worker"]["num_computed_tokens"] == 1024, "the worker's own counter stands before the step"
    assert r0["worker"]["block_ids"] == r0["scheduler"]["block_ids"]
    assert r0["worker"]["equal"]
    assert r0["frontend"]["sent"] > 0
    assert r0["scheduler"]["changed"].keys() == {"num_tokens", "num_computed_tokens", "block_ids"}
    assert r0["scheduler"]["changed"]["num_computed_tokens"] == 1024
    assert not r0["is_new"]
    assert r1["is_new"]
    assert r1["frontend"] is None, "nothing has come out of it yet"
    assert (r3["scheduler"]["status"], r3["worker"]) == ("WAITING", None)


def test_one_that_ends_is_told_in_that_iteration_only(logs: dict[str, Log]) -> None:
    log = logs["mixed-batch"]
    (end,) = [e.step for e in log.events if e.kind == "update" and "R2" in e.data["finished"]]
    entry = next(r for r in iteration(log, end)["requests"] if r["request"] == "R2")
    assert entry["scheduler"]["finish_reason"] == "length"
    assert entry["scheduler"]["block_ids"] == []
    assert entry["worker"] is not None, "the worker hears of it with the next plan"
    assert not entry["worker"]["equal"]
    assert "R2" not in [r["request"] for r in iteration(log, end + 1)["requests"]]


def test_a_preempted_request_has_lost_its_blocks_and_its_counts() -> None:
    log, _ = simulated(mixed_workload())
    step, victim = next((e.step, e.data["preempted"][0]) for e in log.events if e.data.get("preempted"))
    told = iteration(log, step)
    entry = next(r for r in told["requests"] if r["request"] == victim)["scheduler"]
    assert (entry["status"], entry["num_computed_tokens"], entry["block_ids"]) == ("PREEMPTED", 0, [])
    assert entry["changed"]["status"] == "RUNNING"
    lost = entry["changed"]["block_ids"]
    assert {"freed"} <= {word for block in lost for word in told["pool"][block]["happened"]}


@pytest.mark.parametrize("name", ["mixed-batch", "simulated"])
def test_every_block_is_in_one_state_and_the_counts_add_up(logs: dict[str, Log], name: str) -> None:
    for told in state_map(logs[name])["iterations"]:
        pool, counts = told["pool"], told["pool_counts"]
        assert [block["block_id"] for block in pool] == list(range(len(pool)))
        assert sum(counts.values()) == len(pool)
        assert pool[0]["state"] == "null"
        for block in pool:
            assert len(block["owners"]) == block["ref_cnt"]
            assert (block["state"] in ("owned", "shared")) == bool(block["owners"])
        free = {block["block_id"] for block in pool if block["state"] in ("free", "cached_free")}
        assert told["free_queue"]["num_blocks"] == len(free)
        assert free >= {*told["free_queue"]["head"], *told["free_queue"]["tail"]}
        held = [block for request in told["requests"] for block in request["scheduler"]["block_ids"]]
        assert sorted(held) == sorted(block["block_id"] for block in pool for _ in block["owners"])


def test_what_changed_is_what_differs_from_the_iteration_before(logs: dict[str, Log]) -> None:
    told = state_map(logs["simulated"])["iterations"]
    keys = ("state", "ref_cnt", "owners", "hash")
    for before, after in itertools.pairwise(told):
        for was, block in zip(before["pool"], after["pool"], strict=True):
            if not block["changed"]:
                assert [was[key] for key in keys] == [block[key] for key in keys]
            if [was[key] for key in keys] != [block[key] for key in keys]:
                assert block["changed"]
                assert block["happened"]
    words = {word for entry in told for block in entry["pool"] for word in block["happened"]}
    assert words == {"taken", "freed", "stored", "evicted"}


def test_only_the_iterations_asked_for_are_told(logs: dict[str, Log]) -> None:
    whole = state_map(logs["simulated"])["iterations"]
    assert state_map(logs["simulated"], [3, 7])["iterations"] == [whole[3], whole[7]]


# ---- how it is drawn -------------------------------------------------------------------------------------------------


def drawn(log: Log, numbers: list[int] | None, width: int, *, ascii_only: bool = False, **console: Any) -> str:
    state = state_map(log, numbers)
    file = io.StringIO()
    renderer = StateRenderer(state, log.header, Console(file=file, width=width, **console), ascii_only=ascii_only)
    for entry in state["iterations"]:
        renderer.draw(entry)
    return file.getvalue()


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", ["mixed-batch", "odd texts", "held", "simulated", "many"])
def test_no_line_is_wider_than_the_screen_and_a_map_fits_it(logs: dict[str, Log], name: str, width: int) -> None:
    steps = sorted(logs[name].by_step())
    for number in steps[:: max(len(steps) // 6, 1)]:
        for ascii_only in (False, True):
            picture = drawn(logs[name], [number], width, ascii_only=ascii_only)
            assert all(cell_len(line) <= width for line in picture.splitlines()), picture
            assert len(picture.splitlines()) <= 42 or width < 80, picture
            assert not ascii_only or picture.isascii()


@pytest.mark.parametrize("width", [80, 120, 160])
def test_the_three_identities_and_the_numbers_are_there_at_every_width(logs: dict[str, Log], width: int) -> None:
    picture = drawn(logs["mixed-batch"], [13], width)
    for said in (
        "STATE after iteration 13",
        "R0",
        "row 0",
        "#302",
        "1025* of 1026*",
        "129 blocks*",
        "RUNNING",
        "WAITING*",
    ):
        assert said in picture
    assert re.search(r"R0 +.*RUNNING", picture)
    assert "✓ equal" in picture


def test_what_changed_is_marked_without_colour_too(logs: dict[str, Log]) -> None:
    lines = drawn(logs["mixed-batch"], [13], 80).splitlines()
    strip = next(k for k, line in enumerate(lines) if line.startswith("  #128"))
    marks = {k for k, mark in enumerate(lines[strip + 1]) if mark == "+"}
    pool = iteration(logs["mixed-batch"], 13)["pool"]
    assert marks == {9 + block["block_id"] - 128 for block in pool[128:192] if block["changed"]}


def test_requests_keep_their_colours_from_map_to_map(logs: dict[str, Log]) -> None:
    options = {"force_terminal": True, "color_system": "standard"}
    pictures = [drawn(logs["mixed-batch"], [number], 120, **options) for number in (13, 15)]
    colours = [re.search(r"\x1b\[([0-9;]+)mR1", picture)[1] for picture in pictures]
    assert colours[0] == colours[1]
    assert "\x1b" not in drawn(logs["mixed-batch"], [13], 120)


def test_text_that_is_held_back_is_shown_on_one_line(logs: dict[str, Log]) -> None:
    picture = drawn(logs["held"], None, 120)
    assert re.search(r"held [1-9]\d*\*? “.", picture)


def test_a_pool_of_thousands_is_drawn_in_a_few_lines(logs: dict[str, Log]) -> None:
    picture = drawn(logs["many"], [20], 80)
    assert "a character is" in picture
    assert re.search(r"#\d+ +·{64} \d+ rows", picture)
    assert re.search(r"and \d+ more: \d+ RUNNING", picture)


def test_a_run_without_a_model_has_no_columns_for_text_and_worker(logs: dict[str, Log]) -> None:
    picture = drawn(logs["simulated"], [5], 120)
    assert "SCHEDULER" in picture
    assert "WORKER, a mirror" not in picture


def without(*kinds: str) -> Callable[[Log], Log]:
    return lambda log: Log(log.header, [event for event in log.events if event.kind not in kinds])


def test_an_empty_iteration_is_drawn(logs: dict[str, Log]) -> None:
    log = without("request.arrived", "schedule", "update", "request.queued")(logs["simulated"])
    only_ends = Log(log.header, [event for event in log.events if event.kind == "step.end"])
    assert "nobody is here" in drawn(only_ends, [0], 80)


def test_a_stop_string_ends_a_request_for_its_caller_and_aborts_it_in_the_core() -> None:
    log = read_log(get_scenario("stop-strings").log_path)
    (step,) = [e.step for e in log.events if e.kind == "output.text" and e.data["finish_reason"] == "stop"]
    entry = next(r for r in iteration(log, step)["requests"] if r["request"] == "R0")
    assert entry["frontend"]["finish_reason"] == "stop"
    assert entry["scheduler"]["status"] == "FINISHED_ABORTED"
    picture = drawn(log, [step], 120)
    assert re.search(r"R0 .*ended: stop\* .*FINISHED abort\* .*not told yet", picture)


def test_a_character_for_many_blocks_never_names_one_owner_of_many() -> None:
    strip = PoolStrip({f"R{k}": "red" for k in range(4)}, 80, ascii_only=False)
    owners = [["R0"], ["R1"], ["R2"], ["R3"]] * 300 + [["R1"]] * 1200
    pool = [
        {
            "block_id": k,
            "state": "owned",
            "owners": owner,
            "ref_cnt": 1,
            "changed": k == 2000,
            "happened": ["taken"] * (k == 2000),
        }
        for k, owner in enumerate(owners)
    ]
    counts = {"null": 0, "owned": 2400, "shared": 0, "cached_free": 0, "free": 0}
    queue = {"num_blocks": 0, "head": [], "tail": []}
    lines = [
        line.plain for line in strip.lines({"pool": pool, "pool_counts": counts, "block_size": 4, "free_queue": queue})
    ]
    rows = [line for line in lines if line.startswith("  #")]
    assert set(rows[0].split()[1]) == {"▒"}
    assert set(rows[-1].split()[1]) == {"B"}
    assert sum(line.strip() == "+" for line in lines) == 1, "one block of thousands changed, and it is to be seen"
    assert any("▒ blocks of several" in line for line in lines)
    assert "free queue: empty" in lines[-1]
