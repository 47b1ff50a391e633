"""Explanations take their numbers from the run: change one and the answer follows, take the event and it says so."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from minivllm.analysis.answer import CannotKnowError
from minivllm.analysis.explain import TOPICS, explain
from minivllm.analysis.explain_answer import Ask, Explanation
from minivllm.scenarios.registry import all_scenarios
from minivllm.sourcemap.locate import locate
from minivllm.trace.events import Event
from minivllm.trace.reader import Log
from tests.analysis.logs import changed, event_of, recorded

NAMES = [s.name for s in all_scenarios() if s.log_path.exists()]


def without(log: Log, *kinds: str) -> Log:
    return Log(log.header, [event for event in log.events if event.kind not in kinds], path=log.path)


def with_header(log: Log, **changes: Any) -> Log:
    header = copy.deepcopy(log.header)
    for name, value in changes.items():
        setattr(header, name, value)
    return Log(header, log.events, path=log.path)


def with_shape(log: Log, **changes: Any) -> Log:
    return with_header(log, model_shape=log.header.model_shape | changes)


def about(log: Log, topic: str, **ask: Any) -> Explanation:
    return explain(log, topic, Ask(**ask))


class TestSlot:
    def test_every_slot_of_every_run_is_the_workers(self) -> None:
        for name in NAMES:
            log = recorded(name)
            for event in log.events:
                if event.kind != "prepare_inputs":
                    continue
                batch = event.data
                for i, request in enumerate(batch["order"]):
                    at = batch["query_start_loc"][i]
                    answer = about(log, "slot", request=request, pos=batch["positions"][at], iteration=event.step)
                    assert answer.result == batch["slot_mapping"][at] == answer.values["logged"], (name, event.step)
                    assert answer.values["slots_written"] == answer.values["different_slots"]

    def test_it_follows_the_block_table(self) -> None:
        log = recorded("chunked")
        answer = about(log, "slot", request="R1", pos=37)
        assert answer.result == answer.values["block"] * 16 + 5
        assert answer.filled.endswith(f"* 16 + 5 = {answer.result}")

        def move(events: list[Event]) -> None:
            event_of(events, "prepare_inputs", 1).data["block_table"]["R1"][2] = 40

        moved = about(changed(log, move), "slot", request="R1", pos=37)
        assert moved.result == 40 * 16 + 5
        assert "contradict" in moved.more[-1]

    def test_it_says_when_a_position_will_be_there(self) -> None:
        answer = about(recorded("chunked"), "slot", request="R1", pos=150, iteration=2)
        assert answer.result is None
        assert (
            "no slot yet in iteration 2: 126 tokens are computed by then. It is computed in iteration 3"
            in answer.answer
        )

    def test_the_last_token_never_gets_one(self) -> None:
        log = recorded("hello")
        last = about(log, "slot", request="R0")
        answer = about(log, "slot", request="R0", pos=last.values["pos"] + 1)
        assert answer.result is None
        assert "never gets a slot" in answer.answer

    def test_a_position_beyond_the_end_names_the_nearest(self) -> None:
        with pytest.raises(ValueError, match=r"R0 has no position 999: it computed 0 to \d+; the nearest is"):
            about(recorded("hello"), "slot", request="R0", pos=999)

    def test_a_cached_position_is_in_the_other_ones_block(self) -> None:
        log = recorded("full-hit")
        cached = about(log, "slot", request="R1", pos=0)
        assert "was in the prefix cache" in cached.answer
        assert cached.result == about(log, "slot", request="R0", pos=0).result

    def test_without_a_table_it_takes_what_the_pool_gave(self) -> None:
        log = recorded("kv-pressure")
        whole = about(log, "slot", request="R2")
        assert about(without(log, "prepare_inputs"), "slot", request="R2").result == whole.result
        with pytest.raises(CannotKnowError, match=r"prepare_inputs, kv\.allocated"):
            about(without(log, "prepare_inputs", "kv.allocated", "kv.shared"), "slot", request="R2")

    def test_without_a_plan_it_cannot_know(self) -> None:
        with pytest.raises(CannotKnowError, match="schedule"):
            about(without(recorded("hello"), "schedule"), "slot", request="R0", pos=1)


class TestBudget:
    def test_it_counts_down_to_what_is_left(self) -> None:
        answer = about(recorded("mixed-batch"), "budget", iteration=13)
        assert answer.filled == "left = 260 - (1 + 256 + 3) = 0"
        assert [row[:3] for row in answer.tables[0].rows] == [
            ("R0", "1", "259 left"),
            ("R1", "256", "3 left"),
            ("R2", "3", "0 left"),
        ]
        assert any("R3 got none: the token budget is spent" in line for line in answer.more)

    def test_it_follows_the_plan(self) -> None:
        def give_more(events: list[Event]) -> None:
            event_of(events, "schedule", 13).data["budget"] = 300

        answer = about(changed(recorded("mixed-batch"), give_more), "budget", iteration=13)
        assert answer.result == 40
        assert answer.values["max_num_batched_tokens"] == 300

    def test_a_long_prompt_comes_in_chunks(self) -> None:
        answer = about(recorded("chunked"), "budget", request="R1")
        assert answer.filled == "200 = 0 + 63 + 63 + 63 + 11"
        assert answer.values["iterations"] == [1, 2, 3, 4]

    def test_a_prompt_that_the_log_does_not_see_to_its_end(self) -> None:
        log = recorded("chunked")
        cut = Log(log.header, [event for event in log.events if event.step <= 2])
        assert about(cut, "budget", request="R1").more[0] == "74 tokens of it were not computed before the log ended."
        assert "before the log ended" not in " ".join(about(log, "budget", request="R1").more)

    def test_what_was_cached_is_no_chunk(self) -> None:
        answer = about(recorded("mixed-batch"), "budget", request="R1")
        assert answer.values["cached"] == 512
        assert 512 + sum(answer.values["chunks"]) == answer.values["prompt_tokens"] == 2000

    def test_without_the_plan_it_cannot_know(self) -> None:
        log = recorded("mixed-batch")
        events = [event for event in log.events if not (event.kind == "schedule" and event.step == 13)]
        with pytest.raises(CannotKnowError, match=r"plan \(schedule\) of iteration 13"):
            about(Log(log.header, events), "budget", iteration=13)

    def test_without_the_arrival_it_cannot_know(self) -> None:
        with pytest.raises(CannotKnowError, match=r"request\.arrived"):
            about(without(recorded("chunked"), "request.arrived"), "budget", request="R1")


class TestAlloc:
    def test_blocks_come_one_by_one(self) -> None:
        answer = about(recorded("kv-pressure"), "alloc", request="R0")
        assert answer.values["first_blocks"] < answer.result == answer.values["peak_blocks"]
        assert answer.filled == f"blocks = ceil({answer.values['tokens']} / 4) = {answer.result}"

    @pytest.mark.parametrize("name", NAMES)
    def test_blocks_and_tokens_agree_in_every_run(self, name: str) -> None:
        log = recorded(name)
        for request in {e.request for e in log.events if e.kind == "kv.allocated"}:
            assert not any("contradict" in line for line in about(log, "alloc", request=request).more)

    def test_a_hit_is_told_apart_from_new_blocks(self) -> None:
        answer = about(recorded("mixed-batch"), "alloc", request="R2")
        assert (answer.values["shared"], answer.values["allocated"]) == (75, 1)

    def test_it_follows_the_pool(self) -> None:
        def one_more(events: list[Event]) -> None:
            first = next(e for e in events if e.kind == "kv.allocated" and e.request == "R0")
            first.data["blocks"].append(77)

        before = about(recorded("hello"), "alloc", request="R0")
        after = about(changed(recorded("hello"), one_more), "alloc", request="R0")
        assert after.result == before.result + 1
        assert any("contradict" in line for line in after.more)

    def test_the_bound_at_start_up_and_what_ran(self) -> None:
        answer = about(recorded("kv-pressure"), "alloc")
        assert answer.filled == "full requests = (14 - 1) / ceil(64 / 4) = 0.81"
        assert answer.values["most_in_one_iteration"] == 3

    def test_without_the_blocks_it_cannot_know(self) -> None:
        log = without(recorded("hello"), "kv.allocated", "kv.shared")
        for ask in ({"request": "R0"}, {}):
            with pytest.raises(CannotKnowError, match=r"kv\.allocated"):
                about(log, "alloc", **ask)


class TestMemory:
    def test_the_arithmetic_is_the_workers(self) -> None:
        for name in NAMES:
            log = recorded(name)
            answer = about(log, "memory")
            assert answer.result == log.header.kv_cache["bytes_per_block"]
            assert answer.values["kv_bytes"] == log.header.kv_cache["memory_bytes"]
            assert not any("contradict" in line for line in answer.more)

    def test_it_follows_the_shape(self) -> None:
        log = recorded("hello")
        before = about(log, "memory").result
        after = about(with_shape(log, num_hidden_layers=12), "memory")
        assert after.result == 2 * before
        assert "contradict" in after.more[-1]

    def test_without_shape_or_sizing_it_cannot_know(self) -> None:
        log = recorded("hello")
        with pytest.raises(CannotKnowError, match="model_shape"):
            about(with_header(log, model_shape={}), "memory")
        with pytest.raises(CannotKnowError, match="kv_cache"):
            about(with_header(log, kv_cache={}), "memory")


class TestWeights:
    def test_rows_add_up_to_what_the_loader_counts(self) -> None:
        log = recorded("hello")
        answer = about(log, "weights")
        assert answer.result == log.header.model_shape["weight_bytes"] == sum(answer.values["parts"].values())
        assert answer.values["fused"] == ["layers.*.mlp.gate_up_proj.weight", "layers.*.self_attn.qkv_proj.weight"]
        assert any("q_proj, k_proj, v_proj one below the other" in line for line in answer.more)
        assert any("The head is tied" in line for line in answer.more)

    def test_it_follows_the_header(self) -> None:
        log = recorded("hello")
        tensors = copy.deepcopy(log.header.model_shape["tensors"])
        tensors[0][4] += 1
        answer = about(with_shape(log, tensors=tensors), "weights")
        assert answer.result == log.header.model_shape["weight_bytes"] + 256 * 4
        assert "contradict" in answer.more[-1]

    def test_without_tensors_it_cannot_know(self) -> None:
        with pytest.raises(CannotKnowError, match="model_shape"):
            about(with_header(recorded("hello"), model_shape={}), "weights")
        with pytest.raises(CannotKnowError, match="tensors"):
            about(with_shape(recorded("hello"), tensors=[]), "weights")


@pytest.mark.parametrize("topic", TOPICS)
@pytest.mark.parametrize("name", NAMES)
def test_every_topic_of_every_run_is_answered_with_its_places(name: str, topic: str) -> None:
    log = recorded(name)
    if topic == "hit-rate" and not log.header.config["cache_config"]["enable_prefix_caching"]:
        with pytest.raises(ValueError, match="prefix caching is off"):
            explain(log, topic)
        return
    answer = explain(log, topic)
    assert answer.answer.endswith(".")
    assert locate(answer.ours) is not None
    assert "::" in answer.vllm
    document = answer.as_dict()
    assert {"topic", "request", "formula", "values", "result", "source"} <= document.keys()
    assert document["source"]["ours"].count(":") == 1
    for table in answer.tables:
        assert all(len(row) == len(table.columns) for row in table.rows)


@pytest.mark.parametrize("topic", ["memory", "weights", "roofline", "graph"])
def test_a_simulated_run_has_no_model(topic: str) -> None:
    log = with_header(without(recorded("hello"), "prepare_inputs"), model="simulated", model_shape={}, kv_cache={})
    with pytest.raises(CannotKnowError, match="the log cannot say"):
        explain(log, topic)
