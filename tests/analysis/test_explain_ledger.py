"""The five accounts of a request agree with what the rest of the log says, and with each other."""

from __future__ import annotations

from typing import Any

import pytest

from minivllm.analysis.answer import CannotKnowError
from minivllm.analysis.explain import explain
from minivllm.analysis.explain_answer import Ask
from minivllm.maps.latency import latency
from minivllm.scenarios.registry import all_scenarios
from minivllm.trace.events import Event
from minivllm.trace.reader import Log
from minivllm.trace.replay import states
from tests.analysis.logs import changed, recorded

NAMES = [s.name for s in all_scenarios() if s.log_path.exists()]


def accounts(log: Log, request: str) -> dict[str, Any]:
    return explain(log, "ledger", Ask(request=request)).values


def scheduled(log: Log) -> list[str]:
    return sorted({request for e in log.events if e.kind == "schedule" for request, _ in e.data["scheduled"]})


@pytest.mark.parametrize("name", NAMES)
def test_a_life_is_queue_prefill_and_decode(name: str) -> None:
    log = recorded(name)
    for request in scheduled(log):
        time = accounts(log, request)["time"]
        parts = [time[f"{part}_iterations"] for part in ("queue", "prefill", "decode")]
        assert sum(parts) == time["life_iterations"]
        assert all(part >= 0 for part in parts)


@pytest.mark.parametrize("name", NAMES)
def test_all_requests_together_hold_what_the_pool_gave(name: str) -> None:
    """Blocks over time, summed over the requests, are the owners that replay finds in the pool after each plan."""
    log = recorded(name)
    requests = scheduled(log)
    memory = {request: accounts(log, request)["memory"] for request in requests}
    given = sum(len(e.data["blocks"]) for e in log.events if e.kind in ("kv.allocated", "kv.shared"))
    back = sum(len(e.data["blocks"]) for e in log.events if e.kind == "kv.freed")
    assert sum(m["allocated_blocks"] + m["shared_blocks"] for m in memory.values()) == given
    assert sum(count for m in memory.values() for _, count in m["freed"]) == back
    over_time = {request: {step: count for step, count in m["over_time"]} for request, m in memory.items()}
    planned = {e.step for e in log.events if e.kind == "schedule"}
    for step, state in states(log):
        for request, entry in state.requests.items():
            if entry.block_ids and step in planned:
                assert over_time[request][step] == len(entry.block_ids), (request, step)


def test_block_iterations_by_hand() -> None:
    """5 prompt tokens and 7 more, in blocks of 8: one block in four iterations, two in the other four."""
    memory = accounts(recorded("two-processes"), "R0")["memory"]
    assert memory["over_time"] == [[step, 1 if step < 4 else 2] for step in range(8)]
    assert memory["block_iterations"] == 4 * 1 + 4 * 2
    assert memory["peak_bytes"] == 2 * 8 * 6144
    assert memory["freed"] == [[7, 2]]


@pytest.mark.parametrize("name", NAMES)
def test_every_token_is_in_the_account(name: str) -> None:
    log = recorded(name)
    own = {request: accounts(log, request)["request"] for request in scheduled(log)}
    plans = [e.data for e in log.events if e.kind == "schedule"]
    assert sum(o["computed_tokens"] for o in own.values()) == sum(plan["total_scheduled"] for plan in plans)
    assert sum(o["preemptions"] for o in own.values()) == sum(len(plan["preempted"]) for plan in plans)
    outputs = [e.data["emitted"] for e in log.events if e.kind == "update"]
    assert sum(o["sampled_tokens"] for o in own.values()) == sum(len(t) for part in outputs for t in part.values())


def test_what_a_preemption_costs_is_recomputed() -> None:
    own = accounts(recorded("kv-pressure"), "R2")["request"]
    assert own["preemptions"] == 1
    assert own["recomputed_tokens"] > 0
    assert own["cached_again"] == 4
    fed = own["prompt_tokens"] + own["sampled_tokens"] - 1
    assert own["computed_tokens"] == fed + own["recomputed_tokens"]


def test_times_are_those_of_the_latency_map() -> None:
    log = recorded("two-processes")
    for request in ("R0", "R1"):
        time, row = accounts(log, request)["time"], latency(log, request)["requests"][0]
        assert time["ttft_ms"] == row["ttft_ms"] > time["prefill_ms"] > 0
        assert time["decode_ms"] == pytest.approx(row["e2e_ms"] - row["ttft_ms"])


def test_messages_are_counted_where_the_request_is_on_board() -> None:
    log = recorded("two-processes")
    carried = [e.data for e in log.events if e.kind == "message" and "R0" in e.data["requests"]]
    account = accounts(log, "R0")["communication"]
    for boundary in (1, 2, 3):
        those = [m for m in carried if m["boundary"] == boundary]
        assert account[f"boundary_{boundary}"]["messages"] == len(those)
        assert account[f"boundary_{boundary}"]["bytes"] == sum(m["bytes"] for m in those)


def test_shares_of_the_processor_add_up_to_the_phases() -> None:
    log = recorded("two-processes")
    busy = {e.step for e in log.events if e.kind == "schedule" and e.data["scheduled"]}
    spans = [e for e in log.events if e.kind == "span" and e.step in busy and e.data["name"] != "step"]
    shares = sum(accounts(log, request)["cpu"]["total_ms"] for request in ("R0", "R1"))
    assert shares == pytest.approx(sum(e.dur_ns or 0 for e in spans) / 1e6)


def test_it_follows_the_log() -> None:
    log = recorded("hello")

    def one_more_token(events: list[Event]) -> None:
        next(e for e in events if e.kind == "update" and e.data["emitted"].get("R0")).data["emitted"]["R0"].append(5)

    before = accounts(log, "R0")["request"]["sampled_tokens"]
    assert accounts(changed(log, one_more_token), "R0")["request"]["sampled_tokens"] == before + 1


@pytest.mark.parametrize("kind", ["schedule", "update", "request.arrived", "kv.allocated"])
def test_without_what_it_rests_on_it_cannot_know(kind: str) -> None:
    log = recorded("hello")
    with pytest.raises(CannotKnowError, match=kind.replace(".", r"\.")):
        explain(Log(log.header, [e for e in log.events if e.kind != kind]), "ledger", Ask(request="R0"))


def test_an_account_without_its_events_is_not_known() -> None:
    answer = explain(recorded("hello"), "ledger", Ask(request="R0"))
    assert answer.values["communication"] is None
    assert answer.values["cpu"] is None
    assert answer.values["time"]["ttft_ms"] is None
    assert [line for line in answer.more if "not known" in line or "no clocks" in line] == answer.more
