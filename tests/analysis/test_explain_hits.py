"""The hit rate is the engine's own: what was counted, by whom, and what was not."""

from __future__ import annotations

from typing import Any

import pytest

from minivllm.analysis.answer import CannotKnowError
from minivllm.analysis.explain import explain
from minivllm.analysis.explain_answer import Ask
from minivllm.engine.llm_engine import LLMEngine
from minivllm.scenarios.registry import get_scenario
from minivllm.scenarios.run import run_scenario
from minivllm.trace.events import Event
from minivllm.trace.reader import Log
from tests.analysis.logs import changed, recorded


@pytest.mark.parametrize("name", ["kv-pressure", "prefix-warmup", "full-hit", "stuck-queue"])
def test_the_rate_is_the_engines_own_metric(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    engines: list[Any] = []
    make = LLMEngine.from_engine_args

    def keep(args: Any) -> LLMEngine:
        engines.append(make(args))
        return engines[-1]

    monkeypatch.setattr(LLMEngine, "from_engine_args", keep)
    log = run_scenario(get_scenario(name), {}, logical=True).log
    stats = engines[0].engine_core.scheduler.kv_cache_manager.prefix_cache_stats
    answer = explain(log, "hit-rate")
    counted = tuple(answer.values[key] for key in ("queries", "hits", "lookups"))
    assert counted == (stats.queries, stats.hits, stats.requests)
    assert answer.result == stats.hits / stats.queries
    apart = tuple(answer.values[f"preempted_{key}"] for key in ("queries", "hits", "lookups"))
    assert apart == (stats.preempted_queries, stats.preempted_hits, stats.preempted_requests)


def test_the_sum_by_hand() -> None:
    answer = explain(recorded("kv-pressure"), "hit-rate")
    assert answer.filled == "hit rate = (0 + 0 + 0) / (11 + 10 + 8) = 0 / 29"
    apart = {"preempted_queries": 15, "preempted_hits": 4, "preempted_lookups": 1}
    assert answer.values == {"queries": 29, "hits": 0, "lookups": 3, "block_size": 4} | apart


def test_requests_add_up_to_the_run() -> None:
    log = recorded("mixed-batch")
    parts = [explain(log, "hit-rate", Ask(request=r)).values for r in ("W1", "W2", "R0", "R1", "R2", "R3")]
    whole = explain(log, "hit-rate").values
    for key in ("queries", "hits", "lookups"):
        assert sum(part[key] for part in parts) == whole[key]


def test_it_follows_what_was_counted() -> None:
    def found_more(events: list[Event]) -> None:
        plan = next(e.data for e in events if e.kind == "schedule" and e.data["prefix_cache"])
        plan["prefix_cache"][0][2] += 8  # of a new request

    log = recorded("kv-pressure")
    assert explain(changed(log, found_more), "hit-rate").values["hits"] == explain(log, "hit-rate").values["hits"] + 8


def test_those_who_came_back_are_counted_apart() -> None:
    answer = explain(recorded("kv-pressure"), "hit-rate")
    assert any("1 look-up with 4 hits in 15 tokens of preempted requests" in line for line in answer.more)
    assert any("A count of everything would say 4 of 44 tokens" in line for line in answer.more)


def test_a_blocked_request_is_not_counted_until_it_gets_in() -> None:
    log = recorded("kv-pressure")
    tried = [e.step for e in log.events if e.kind == "kv.lookup" and e.request == "R2"]
    assert tried == [0, 8, 10, 11]  # it got in in iterations 0 and 14
    answer = explain(log, "hit-rate", Ask(request="R2"))
    assert (answer.values["lookups"], answer.values["preempted_lookups"]) == (1, 1)
    assert any("3 look-ups more that led to no admission" in line for line in answer.more)


def test_without_the_look_ups_it_cannot_know() -> None:
    log = recorded("kv-pressure")
    with pytest.raises(CannotKnowError, match=r"look-up \(kv\.lookup\) of R0"):
        explain(Log(log.header, [e for e in log.events if e.kind != "kv.lookup"]), "hit-rate")
    with pytest.raises(CannotKnowError, match="schedule"):
        explain(Log(log.header, [e for e in log.events if e.kind != "schedule"]), "hit-rate")


def test_an_unadmitted_request_has_no_rate() -> None:
    with pytest.raises(ValueError, match="R9 was not admitted"):
        explain(recorded("kv-pressure"), "hit-rate", Ask(request="R9"))
