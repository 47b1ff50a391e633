"""A fault planted in the running engine is found by `check`, with the iteration in which it shows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minivllm.core.block_pool import BlockPool
from minivllm.core.scheduler import Scheduler
from minivllm.scenarios.registry import get_scenario
from minivllm.scenarios.run import run_scenario
from minivllm.worker import request_slots
from minivllm.worker.batch_state import apply_all_cached
from minivllm.worker.block_table import BlockTable
from minivllm.worker.input_batch import InputBatch
from minivllm.worker.request_columns import RequestColumns


def found(tiny_model: Path, scenario: str = "hello", **settings: Any) -> set[str]:
    run = run_scenario(get_scenario(scenario), {"model": str(tiny_model), **settings}, check=True, logical=True)
    return {violation["message"].partition(":")[0] for violation in run.violations}


def wrap(monkeypatch: pytest.MonkeyPatch, owner: type, name: str, fault: Callable[..., Any]) -> None:
    original = getattr(owner, name)
    monkeypatch.setattr(owner, name, lambda self, *args, **kwargs: fault(original, self, *args, **kwargs))


def test_a_sound_engine_breaks_nothing(tiny_model: Path) -> None:
    assert found(tiny_model) == set()


def test_a_slot_of_the_next_block_is_found(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def off_by_one(original: Any, table: Any, rows: Any, positions: Any) -> Any:
        return original(table, rows, positions) + (positions == 6)

    wrap(monkeypatch, BlockTable, "compute_slot_mapping", off_by_one)
    assert "INV-19" in found(tiny_model)


def test_a_column_that_stays_behind_is_found(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def without_tokens(original: Any, columns: RequestColumns, source: int, target: int) -> None:
        kept = columns.token_ids[target].copy()
        original(columns, source, target)
        columns.token_ids[target] = kept

    wrap(monkeypatch, RequestColumns, "move", without_tokens)
    monkeypatch.setattr(InputBatch, "reorder_batch", lambda self, plan: None)
    assert "INV-23" in found(tiny_model, "condense")


def test_a_leaked_block_is_found(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def leave_one(original: Any, pool: BlockPool, blocks: Any) -> None:
        original(pool, list(blocks)[1:])

    wrap(monkeypatch, BlockPool, "free_blocks", leave_one)
    assert {"INV-01"} <= found(tiny_model)


def test_a_budget_that_is_not_kept_is_found(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def small_budget(original: Any, scheduler: Scheduler) -> Any:
        plan = original(scheduler)
        scheduler.last_decisions.budget = 3  # what it should have kept to
        return plan

    wrap(monkeypatch, Scheduler, "schedule", small_budget)
    assert "INV-03" in found(tiny_model)


def test_a_wrong_position_is_found(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def late(columns: RequestColumns, places: Any, cached: Any) -> None:
        apply_all_cached(columns, places, cached)
        columns.num_computed[places] -= columns.num_computed[places] == 7

    monkeypatch.setattr(request_slots, "apply_all_cached", late)
    assert {"INV-18", "INV-22"} <= found(tiny_model)


def test_a_fault_is_told_in_the_step_in_which_it_happens(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def off_by_one(original: Any, table: Any, rows: Any, positions: Any) -> Any:
        planned.append(1)
        return original(table, rows, positions) + (positions == 6)

    planned: list[int] = []
    told: list[tuple[int, int, str]] = []
    wrap(monkeypatch, BlockTable, "compute_slot_mapping", off_by_one)
    run = run_scenario(
        get_scenario("hello"),
        {"model": str(tiny_model)},
        check=True,
        logical=True,
        on_violation=lambda step, message: told.append((step, len(planned), message)),
    )
    assert {(step, message) for step, _, message in told} == {(v["iteration"], v["message"]) for v in run.violations}
    assert told[0][:2] == (0, 1), "before the second batch is prepared"
    assert told[-1][1] < len(planned), "the run went on"


@pytest.mark.parametrize("name", ["kv-pressure", "abort-in-flight", "async-scheduling", "mixed-batch-drafts", "n2"])
def test_a_sound_run_breaks_nothing_while_it_goes_on(name: str) -> None:
    told: list[str] = []
    run_scenario(get_scenario(name), {}, check=True, on_violation=lambda step, message: told.append(message))
    assert told == []


def test_numbers_of_the_log_are_plain(tiny_model: Path) -> None:
    # What is checked is what is written: no array slips into the log and compares in its own way.
    run = run_scenario(get_scenario("hello"), {"model": str(tiny_model)}, logical=True)
    assert not any(isinstance(value, np.generic) for event in run.log.events for value in event.data.values())
