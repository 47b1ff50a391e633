"""The plan map is a function of the log, with the keys that the command line promises."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from minivllm.maps.plan import plan_map
from minivllm.scenarios.registry import get_scenario
from minivllm.scenarios.run import run_scenario
from minivllm.trace.reader import read_log
from tests.trace.workloads import mixed_workload, simulated_log

# What `--json` promises; more keys may stand beside them.
ITERATION = {
    "iteration",
    "budget",
    "scheduled",
    "not_scheduled",
    "stop",
    "preempted",
    "finished",
    "batch",
    "sampled",
    "blocks",
    "narration",
}
KEYS = {
    "budget": {"tokens", "used", "max_num_seqs"},
    "scheduled": {
        "request",
        "kind",
        "num_tokens",
        "num_computed_before",
        "num_tokens_known",
        "num_cached",
        "num_drafts",
    },
    "not_scheduled": {"request", "reason", "detail"},
    "stop": {"reason", "detail"},
    "finished": {"request", "reason", "stop_reason"},
    "batch": {
        "order",
        "query_start_loc",
        "seq_lens",
        "positions",
        "slot_mapping",
        "block_table",
        "logits_indices",
        "num_tokens",
        "num_tokens_padded",
        "graph_mode",
        "attention_backend",
    },
    "blocks": {"free", "owned", "cached", "allocated", "freed", "evicted"},
}


@pytest.fixture(scope="module")
def real_plan(tiny_model: Path) -> dict[str, Any]:
    return plan_map(run_scenario(get_scenario("hello"), {"model": str(tiny_model)}).log)


@pytest.fixture(scope="module")
def simulated_plan() -> dict[str, Any]:
    return plan_map(read_log(simulated_log(mixed_workload())))


@pytest.mark.parametrize("name", sorted(KEYS))
def test_the_promised_keys_are_there(real_plan: dict[str, Any], simulated_plan: dict[str, Any], name: str) -> None:
    seen = 0
    for iteration in [*real_plan["iterations"], *simulated_plan["iterations"]]:
        assert set(iteration) >= ITERATION
        values = iteration[name] if isinstance(iteration[name], list) else [iteration[name]]
        for value in values:
            if value is not None:
                assert set(value) >= KEYS[name]
                seen += 1
    assert seen, f"no iteration has {name}"


def test_kinds_are_new_resumed_and_running(simulated_plan: dict[str, Any]) -> None:
    kinds = {entry["kind"] for iteration in simulated_plan["iterations"] for entry in iteration["scheduled"]}
    assert kinds == {"new", "resumed", "running"}


def test_every_block_is_owned_cached_or_free(simulated_plan: dict[str, Any]) -> None:
    for iteration in simulated_plan["iterations"]:
        blocks = iteration["blocks"]
        assert blocks["owned"] + blocks["free"] == 25, "26 blocks, one of them the null block"
        assert 0 <= blocks["cached"] <= blocks["free"]
    assert any(iteration["blocks"]["freed"] for iteration in simulated_plan["iterations"])
    assert any(iteration["blocks"]["evicted"] for iteration in simulated_plan["iterations"])


def test_a_request_ends_as_it_did(simulated_plan: dict[str, Any]) -> None:
    ends = {request["request"]: request["finish_reason"] for request in simulated_plan["requests"]}
    expected = {"A": "length", "B": "length", "C": "length", "too-long": "refused", "D": "abort", "E": "abort"}
    assert {i: ends[i] for i in expected} == expected
    assert ends["F"] in ("stop", "length")


def test_those_behind_the_stop_share_its_reason() -> None:
    plan = plan_map(read_log(simulated_log(mixed_workload(max_num_batched_tokens=4))))
    behind = [e for iteration in plan["iterations"] for e in iteration["not_scheduled"] if "behind" in e["detail"]]
    assert behind
    for iteration in plan["iterations"]:
        named = [entry["request"] for entry in iteration["not_scheduled"]]
        assert len(named) == len(set(named))
        assert not set(named) & {entry["request"] for entry in iteration["scheduled"]}


def test_with_async_scheduling_a_token_belongs_to_the_plan_that_made_it(tiny_model: Path) -> None:
    overrides = {"model": str(tiny_model), "async_scheduling": True}
    run = run_scenario(get_scenario("hello"), overrides)
    plan = plan_map(run.log)
    for iteration in plan["iterations"]:
        scheduled = {entry["request"] for entry in iteration["scheduled"]}
        assert set(iteration["sampled"]) <= scheduled
    emitted = {request["request"]: request["output_token_ids"] for request in plan["requests"]}
    assert emitted == {i: list(request.output_token_ids) for i, request in run.result.requests.items()}
