"""The record of why: complete, true, and small."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from minivllm.core.decisions import Reason
from minivllm.core.scheduler import Scheduler
from minivllm.core.scheduler_output import SchedulerOutput
from minivllm.core.step import PauseState
from minivllm.scenarios.simulate import simulate
from minivllm.scenarios.workload import load_workload
from minivllm.trace.events import EventLog, Header
from tests.core.building import add, make_request, make_scheduler, step
from tests.core.decision_rules import DecisionCheck
from tests.differential.workload_generator import generate_workload


@pytest.mark.parametrize("seed", range(60))
def test_everyone_who_was_looked_at_has_tokens_or_a_reason_that_holds(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = Scheduler.schedule

    def checked(scheduler: Scheduler) -> SchedulerOutput:
        check = DecisionCheck(scheduler)
        plan = plain(scheduler)
        check.check(plan)
        return plan

    path = tmp_path / "workload.json"
    path.write_text(json.dumps(generate_workload(seed)))
    monkeypatch.setattr(Scheduler, "schedule", checked)
    simulate(load_workload(path, "fixed"), EventLog(Header()))


def test_the_record_does_not_grow_with_the_waiting_queue() -> None:
    scheduler = make_scheduler(max_num_seqs=2)
    add(scheduler, *(make_request(f"r{i}") for i in range(300)))
    step(scheduler)
    step(scheduler)
    record = scheduler.last_decisions
    assert record.stop.reason == Reason.MAX_NUM_SEQS
    assert record.stop.request_id == "r2"
    assert record.not_scheduled == record.cut == []


def test_an_empty_step_says_so() -> None:
    scheduler = make_scheduler()
    scheduler.schedule()
    assert (scheduler.last_decisions.stop.request_id, scheduler.last_decisions.stop.reason) == (
        None,
        Reason.QUEUE_EMPTY,
    )


@pytest.mark.parametrize("state", [PauseState.PAUSED_NEW, PauseState.PAUSED_ALL])
def test_a_pause_is_a_reason(state: PauseState) -> None:
    scheduler = make_scheduler()
    add(scheduler, make_request("a"))
    scheduler.pause_state = state
    scheduler.schedule()
    assert scheduler.last_decisions.stop.reason.name == state.name


def test_every_record_has_numbers_that_go_into_json() -> None:
    scheduler = make_scheduler(max_num_batched_tokens=8)
    add(scheduler, make_request("a", 20), make_request("b"))
    scheduler.schedule()
    as_json: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(scheduler.last_decisions)))
    assert as_json["cut"] == [
        {"request_id": "a", "reason": "token_budget", "numbers": {"asked": 20, "granted": 8, "limit": 8}}
    ]
