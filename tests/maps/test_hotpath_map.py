"""The hot-path map adds up: times of calls, of what they called, of the device, and of what a caller waited for."""

from __future__ import annotations

import io
from itertools import pairwise

import pytest
from rich.cells import cell_len
from rich.console import Console

from minivllm.maps.calltree import call_tree
from minivllm.maps.hotpath import hot_map
from minivllm.maps.latency import latency
from minivllm.maps.render.hotpath import HotPathRenderer, bar
from minivllm.maps.stages import median, percentile
from minivllm.trace.reader import Log
from tests.maps.hand_made import MS, US, LogBuilder, gpu_log

WIDTHS = [40, 60, 80, 100, 120, 140, 160]


def drawn(log: Log, width: int, *, ascii_only: bool = False) -> str:
    out = io.StringIO()
    step = hot_map(log, [0])
    renderer = HotPathRenderer(step, hot_map(log), log.header, Console(file=out, width=width), ascii_only=ascii_only)
    renderer.draw_header()
    renderer.draw_step()
    renderer.draw_run()
    return out.getvalue()


def calls_log() -> LogBuilder:
    """A step as calls: step > (schedule > lookup, lookup), (execute > forward); ids as they were given at the start."""
    builder = LogBuilder(device="cuda")
    builder.step = 0
    runner = "minivllm.worker.gpu_model_runner:GPUModelRunner"
    builder.call(3, 2, "engine_core", "minivllm.core.kv_cache_manager:KVCacheManager.lookup", 10, 5, "control")
    builder.call(4, 2, "engine_core", "minivllm.core.kv_cache_manager:KVCacheManager.lookup", 20, 7, "control")
    builder.call(2, 1, "engine_core", "minivllm.core.scheduler:Scheduler.schedule", 0, 40, "control")
    builder.call(6, 5, "worker", f"{runner}.model_forward", 60, 30, "data")
    builder.call(5, 1, "worker", f"{runner}.execute_model", 50, 100, "data")
    builder.call(1, None, "engine_core", "minivllm.engine.core:EngineCore.step_sync", 0, 200, "control")
    builder.span("worker", "forward", 61, 29, device=80, src=f"{runner}.model_forward")
    builder.span("worker", "sync", 100, 40, src=f"{runner}.to_host")
    return builder


def test_the_tree_has_every_call_under_its_caller() -> None:
    [step] = hot_map(calls_log().log())["tree"]
    assert step["name"] == "EngineCore.step_sync"
    schedule, execute = step["children"]
    [lookups] = schedule["children"]
    assert (lookups["calls"], lookups["cpu_ns"]) == (2, 12 * US), "two calls of one symbol are one line"
    assert [child["name"] for child in execute["children"]] == ["GPUModelRunner.model_forward", "sync"]


def test_self_time_is_what_is_left_of_the_total() -> None:
    [step] = hot_map(calls_log().log())["tree"]
    schedule, execute = step["children"]
    assert step["self_ns"] == (200 - 40 - 100) * US
    assert schedule["self_ns"] == (40 - 12) * US
    assert execute["self_ns"] == (100 - 30 - 40) * US, "the wait for the device is told apart"
    assert step["share"] == 1.0
    assert schedule["share"] == 0.2


def test_the_device_time_stands_at_the_call_that_started_it() -> None:
    hot = hot_map(calls_log().log())
    [step] = hot["tree"]
    [forward, sync] = step["children"][1]["children"]
    assert forward["device_ns"] == 80 * US
    assert sync["is_sync"]
    assert hot["device"] == {"name": "cuda", "enqueue_ns": 29 * US, "device_ns": 80 * US}
    [point] = hot["sync_points"]
    assert (point["calls"], point["cpu_ns"]) == (1, 40 * US)
    assert point["src"] == "minivllm.worker.gpu_model_runner:GPUModelRunner.to_host"


def test_the_call_that_waits_is_the_sync_itself() -> None:
    builder = calls_log()
    src = "minivllm.worker.gpu_model_runner:GPUModelRunner.to_host"
    builder.call(7, 5, "worker", src, 99, 42, "data")
    [step] = hot_map(builder.log())["tree"]
    nodes = {node["name"]: node for node in step["children"][1]["children"]}
    assert nodes["GPUModelRunner.to_host"]["is_sync"]
    assert nodes["GPUModelRunner.to_host"]["children"] == []
    assert not nodes["GPUModelRunner.model_forward"]["is_sync"]


def test_kernels_of_profiled_passes_are_summed_and_labelled() -> None:
    builder = gpu_log(2)
    for step, kernels in enumerate([[["mm", 4, 100, 900], ["add", 2, 50, 10]], [["mm", 4, 100, 700]]]):
        builder.step = step
        builder.add("worker", "kernels", 20_000, 1, data={"of": "forward", "kernels": kernels})
    log = builder.log()
    assert hot_map(log)["kernels"] == {
        "iterations": [0, 1],
        "rows": [
            {"name": "mm", "calls": 8, "cpu_ns": 200, "device_ns": 1600},
            {"name": "add", "calls": 2, "cpu_ns": 50, "device_ns": 10},
        ],
    }
    assert "2 profiled passes, each slower for being profiled" in drawn(log, 120)
    assert "kernels of forward" not in drawn(gpu_log(2).log(), 120)


def test_planes_share_all_the_work() -> None:
    planes = hot_map(calls_log().log())["planes"]
    assert planes["data"]["cpu_ns"] == 100 * US, "execute_model with all that it called"
    assert planes["control"]["cpu_ns"] == 100 * US
    assert planes["data"]["share"] + planes["control"]["share"] == 1.0


def test_a_loop_that_never_ends_is_no_work() -> None:
    builder = calls_log()
    builder.call(9, None, "engine_core", "minivllm.engine.core_proc:EngineCoreProc.run_busy_loop", 0, 9e9, "control")
    builder.call(
        10, 9, "engine_core", "minivllm.engine.core_proc:EngineCoreProc._handle_client_request", 0, 3, "control"
    )
    roots = call_tree(builder.events)
    assert {root.name for root in roots} == {"EngineCore.step_sync", "EngineCoreProc._handle_client_request"}


def test_stages_have_the_keys_of_the_contract_and_their_medians() -> None:
    hot = hot_map(gpu_log(3).log())
    assert hot["steps"] == 3
    stages = {row["name"]: row for row in hot["stages"]}
    assert list(stages) == [
        "schedule", "update_states", "prepare_inputs", "forward", "sample", "sync", "update_from_output",
        "process_outputs",
    ]  # fmt: skip
    keys = {"name", "plane", "calls", "cpu_ns", "self_ns", "device_ns", "share"}
    assert all(keys <= set(row) for row in stages.values())
    assert [stages[name]["plane"] for name in ("schedule", "forward", "sync", "process_outputs")] == [
        "control", "data", "data", "control",
    ]  # fmt: skip
    sync = stages["sync"]
    assert (sync["calls"], sync["cpu_ns"]) == (3, (4320 + 3600 + 3600) * US)
    assert (sync["median_ns"], sync["p99_ns"]) == (3600 * US, 4320 * US)
    assert stages["forward"]["device_ns"] == (4680 + 3900 + 3900) * US


def test_times_of_some_iterations_only() -> None:
    hot = hot_map(gpu_log(3).log(), [1])
    assert (hot["steps"], hot["iterations"]) == (1, [1])
    assert sum(row["calls"] for row in hot["stages"]) == 8
    assert hot["step_ns"]["by_iteration"] == {1: 4230 * US}


def test_latencies_are_those_that_a_caller_felt() -> None:
    """R0 arrives at 0 and is queued at 20 to 21; planned at 1090; its tokens come at 5900, 10180 and 15180."""
    felt = latency(gpu_log(3).log())
    first = felt["requests"][0]
    assert first["request"] == "R0"
    assert first["queue_ms"] == pytest.approx((1090 - 21) / 1e3)
    tokens = [1000 + 370 + 4320 + 210, 6000 + 370 + 3600 + 210, 11000 + 370 + 3600 + 210]
    assert first["ttft_ms"] == pytest.approx(tokens[0] / 1e3)
    assert first["itls_ms"] == pytest.approx([(b - a) / 1e3 for a, b in pairwise(tokens)])
    assert first["tpot_ms"] == pytest.approx((tokens[2] - tokens[0]) / 2 / 1e3)
    assert felt["itl_ms"] == pytest.approx((tokens[1] - tokens[0]) / 1e3)
    assert felt["p99"]["itl_ms"] == pytest.approx((tokens[2] - tokens[1]) / 1e3)
    assert [row["request"] for row in latency(gpu_log(3).log(), "R1")["requests"]] == ["R1"]


def test_an_output_without_tokens_is_no_gap() -> None:
    """A held-back text comes without tokens."""
    builder = gpu_log(2)
    before = latency(builder.log())["requests"][0]["itls_ms"]
    builder.text("R0", 0, 20_000)
    assert latency(builder.log())["requests"][0]["itls_ms"] == before


def test_a_request_without_tokens_has_no_latency() -> None:
    builder = LogBuilder()
    builder.step = 0
    builder.arrive("R0", 0)
    felt = latency(builder.log())
    assert felt["ttft_ms"] is felt["tpot_ms"] is felt["itl_ms"] is felt["queue_ms"] is None


def test_without_clocks_there_are_counts_and_no_times() -> None:
    builder = LogBuilder("logical", device="cpu")
    builder.step = 0
    builder.add("engine_core", "kv.lookup", request="R0", data={}, src="minivllm.core.kv_cache_manager:K.lookup")
    builder.add("engine_core", "kv.lookup", request="R1", data={}, src="minivllm.core.kv_cache_manager:K.lookup")
    builder.schedule([("R0", 1)])
    builder.update({"R0": [7]})
    hot = hot_map(builder.log())
    assert hot["clock"] == "logical"
    assert [(node["name"], node["calls"]) for node in hot["tree"]] == [("schedule", 1), ("update_from_output", 1)]
    assert [(node["name"], node["calls"]) for node in hot["tree"][0]["children"]] == [("K.lookup", 2)]
    times = [hot["total_ns"], hot["planes"]["data"]["share"], *(row["cpu_ns"] for row in hot["stages"])]
    assert set(times) == {None}
    picture = drawn(builder.log(), 100)
    assert "keeps no clocks" in picture
    assert " ms" not in picture


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("ascii_only", [False, True])
def test_a_picture_keeps_to_its_width_and_characters(width: int, ascii_only: bool) -> None:
    for log in (gpu_log().log(), calls_log().log()):
        picture = drawn(log, width, ascii_only=ascii_only)
        assert max(map(cell_len, picture.splitlines())) <= width
        assert picture.isascii() or not ascii_only


def test_the_picture_marks_where_the_cpu_waits() -> None:
    picture = drawn(gpu_log().log(), 120)
    [line] = [line for line in picture.splitlines() if "sync ◀ waits for the device" in line]
    assert "4.32 ms" in line
    assert "TTFT" in picture


def test_a_log_of_calls_names_where_each_is() -> None:
    [line] = [line for line in drawn(calls_log().log(), 120).splitlines() if line.startswith("EngineCore.step_sync")]
    assert "engine/core.py:" in line


@pytest.mark.parametrize(
    ("share", "cells"), [(0.0, 0), (0.0001, 1), (0.05, 1), (0.1, 1), (0.5, 5), (0.99, 10), (1.0, 10), (1.7, 10)]
)
def test_a_bar_is_to_scale_and_never_too_small_to_see(share: float, cells: int) -> None:
    assert cell_len(bar(share, 10)) == cells


def test_percentiles_are_numbers_that_were_measured() -> None:
    assert percentile([], 99) is None
    assert percentile([5], 99) == 5
    assert median([4, 1, 3, 2]) == 2
    assert percentile(range(1, 101), 99) == 99
    assert percentile([1 * MS, 2 * MS], 99) == 2 * MS


def test_time_outside_of_all_stages_is_told_when_it_is_longer_than_any() -> None:
    """The machine makes execute_model wait, and the longest stage is not where the time went."""
    builder = LogBuilder(device="cpu")
    builder.step = 0
    runner = "minivllm.worker.gpu_model_runner:GPUModelRunner"
    builder.call(2, 1, "worker", f"{runner}.model_forward", 10, 20, "data")
    builder.call(1, None, "worker", f"{runner}.execute_model", 0, 100, "data")
    builder.span("worker", "forward", 11, 19, src=f"{runner}.model_forward")
    picture = " ".join(drawn(builder.log(), 160).split())
    assert "More time went by outside of all stages: 80 % in GPUModelRunner.execute_model itself." in picture
