"""The named runs: they show what they say they show, and the simulator plans them exactly as the real engine does."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from minivllm.maps.plan import plan_map
from minivllm.scenarios.registry import Scenario, UnknownScenarioError, all_scenarios, get_scenario
from minivllm.scenarios.replay import workload_from_log
from minivllm.scenarios.run import TracedRun, run_scenario
from minivllm.scenarios.simulate import simulate_to_log
from minivllm.trace.plan_lines import dump, plan_lines, summary_line
from minivllm.trace.reader import read_log

MODES: list[dict[str, Any]] = [
    {},
    {"async_scheduling": True},
    {"batch": "rows"},
    {"batch": "slots"},
    {"max_num_batched_tokens": 96, "long_prefill_token_threshold": 64},
]


def lines_of(run: TracedRun) -> list[str]:
    is_async = run.log.header.config["scheduler_config"]["async_scheduling"]
    return [dump(line) for line in plan_lines(run.log.events, is_async=is_async)] + [dump(summary_line(run.result))]


# Those in which the modes matter most: drafts, chunks, a batch that changes, preemptions.
IN_ALL_MODES = ("hello", "mixed-batch-drafts", "kv-pressure")


@pytest.mark.parametrize("overrides", MODES, ids=str)
@pytest.mark.parametrize("name", IN_ALL_MODES)
def test_simulating_what_was_traced_gives_equal_plans_in_every_mode(
    name: str, overrides: dict[str, Any], tiny_model: Path, tmp_path: Path
) -> None:
    check_simulating(get_scenario(name), {"model": str(tiny_model), **overrides}, tmp_path)


@pytest.mark.parametrize("scenario", all_scenarios(), ids=lambda scenario: scenario.name)
def test_simulating_what_was_traced_gives_equal_plans(scenario: Scenario, tiny_model: Path, tmp_path: Path) -> None:
    check_simulating(scenario, {"model": str(tiny_model)}, tmp_path)


def check_simulating(scenario: Scenario, settings: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl.gz"
    traced = run_scenario(scenario, settings, log_path=path, check=True)
    assert not traced.violations
    workload, token_rule = workload_from_log(read_log(path), "fixed")
    log, result = simulate_to_log(workload, None, token_rule)
    is_async = workload.vllm_config.scheduler_config.async_scheduling
    simulated = [dump(line) for line in plan_lines(log.events, is_async=is_async)] + [dump(summary_line(result))]
    assert simulated == lines_of(traced)


@pytest.mark.parametrize("overrides", [{}, {"async_scheduling": True}], ids=str)
def test_a_stop_string_ends_a_request_in_the_log_and_when_it_is_planned_again(
    overrides: dict[str, Any], tiny_model: Path, tmp_path: Path
) -> None:
    hello = get_scenario("hello")
    requests = tuple(
        replace(request, max_tokens=40, sampling={"stop": ["a", "e"], "ignore_eos": True}) for request in hello.requests
    )
    path = tmp_path / "log.jsonl"
    settings = {"model": str(tiny_model), **overrides}
    traced = run_scenario(replace(hello, requests=requests), settings, log_path=path, check=True)
    assert not traced.violations
    assert set(traced.result.finals.values()) == {("abort", None)}, "the core hears of an abort, not of a string"
    reasons = [e.data["finish_reason"] for e in traced.log.events if e.kind == "output.text"]
    assert reasons.count("stop") == len(requests)
    assert "frontend" in {e.data["phase"] for e in traced.log.events if e.kind == "requests.aborted"}
    workload, token_rule = workload_from_log(read_log(path), "fixed")
    log, result = simulate_to_log(workload, None, token_rule)
    is_async = workload.vllm_config.scheduler_config.async_scheduling
    simulated = [dump(line) for line in plan_lines(log.events, is_async=is_async)] + [dump(summary_line(result))]
    assert simulated == lines_of(traced)


def iteration_to_look_at(name: str, model: Path, **overrides: Any) -> dict[str, Any]:
    scenario = get_scenario(name)
    run = run_scenario(scenario, {"model": str(model), **overrides}, check=True)
    iteration = plan_map(run.log)["iterations"][scenario.look_at]
    assert isinstance(iteration, dict)
    return iteration


def test_the_mixed_batch_has_the_numbers_of_the_article(tiny_model: Path) -> None:
    iteration = iteration_to_look_at("mixed-batch", tiny_model)
    scheduled = {entry["request"]: entry for entry in iteration["scheduled"]}
    assert (scheduled["R0"]["num_computed_before"], scheduled["R0"]["num_tokens_known"]) == (1024, 1025)
    assert (scheduled["R1"]["num_cached"], scheduled["R1"]["num_tokens_known"]) == (512, 2000)
    assert (scheduled["R2"]["num_cached"], scheduled["R2"]["num_tokens_known"]) == (600, 603)
    assert {i: entry["num_tokens"] for i, entry in scheduled.items()} == {"R0": 1, "R1": 256, "R2": 3}
    assert scheduled["R1"]["kind"] == scheduled["R2"]["kind"] == "new"
    assert iteration["budget"] == {"tokens": 260, "used": 260, "max_num_seqs": 8}

    batch = iteration["batch"]
    assert batch["order"] == ["R0", "R1", "R2"]
    assert batch["query_start_loc"] == [0, 1, 257, 260]
    assert batch["seq_lens"] == [1025, 768, 603]
    assert batch["positions"] == [1024, *range(512, 768), *range(600, 603)]
    assert batch["logits_indices"] == [0, 256, 259]
    assert sorted(iteration["sampled"]) == ["R0", "R2"], "R1's prompt is not finished: its sample is thrown away"

    [waits] = iteration["not_scheduled"]
    assert (waits["request"], waits["reason"]) == ("R3", "token_budget")


def test_the_mixed_batch_in_slots_has_decodes_first(tiny_model: Path) -> None:
    batch = iteration_to_look_at("mixed-batch", tiny_model, batch="slots")["batch"]
    assert batch["order"] == ["R0", "R2", "R1"]
    assert batch["query_start_loc"] == [0, 1, 4, 260]


def test_three_drafts_take_four_query_tokens(tiny_model: Path) -> None:
    iteration = iteration_to_look_at("mixed-batch-drafts", tiny_model)
    scheduled = {entry["request"]: entry for entry in iteration["scheduled"]}
    assert scheduled["R2"]["num_drafts"] == 3
    assert scheduled["R2"]["num_tokens"] == 1 + 3
    assert iteration["budget"]["used"] == 261
    batch = iteration["batch"]
    k = batch["order"].index("R2")
    start, end = batch["query_start_loc"][k : k + 2]
    assert end - start == 4
    assert [row for row in batch["logits_indices"] if start <= row < end] == list(range(start, end))
    assert 1 <= len(iteration["sampled"]["R2"]) <= 4


@pytest.mark.parametrize("scenario", all_scenarios(), ids=lambda scenario: scenario.name)
def test_every_slot_is_the_address_that_the_block_table_says(scenario: Scenario, tiny_model: Path) -> None:
    run = run_scenario(scenario, {"model": str(tiny_model)})
    block_size = run.log.header.config["cache_config"]["block_size"]
    for iteration in plan_map(run.log)["iterations"]:
        batch = iteration["batch"]
        if batch is None:
            continue
        assert len(set(batch["slot_mapping"])) == batch["num_tokens"], "no two tokens are written to one slot"
        for k, request_id in enumerate(batch["order"]):
            table = batch["block_table"][request_id]
            for token in range(*batch["query_start_loc"][k : k + 2]):
                position = batch["positions"][token]
                address = table[position // block_size] * block_size + position % block_size
                assert batch["slot_mapping"][token] == address


@pytest.mark.parametrize("scenario", all_scenarios(), ids=lambda scenario: scenario.name)
def test_the_recorded_log_is_what_running_it_again_gives(scenario: Scenario) -> None:
    recorded = read_log(scenario.log_path)
    fresh = run_scenario(scenario, {}, logical=True)
    is_async = recorded.header.config["scheduler_config"]["async_scheduling"]
    assert recorded.header.config == json.loads(json.dumps(fresh.log.header.config, default=str))
    assert plan_lines(recorded.events, is_async=is_async) == plan_lines(fresh.log.events, is_async=is_async)


def test_an_unknown_scenario_is_told_with_what_it_may_have_been() -> None:
    with pytest.raises(UnknownScenarioError, match="did you mean 'mixed-batch'"):
        get_scenario("mixed-bach")
    with pytest.raises(UnknownScenarioError, match="there are: hello"):
        get_scenario("zzz")
