"""Each scenario shows what it says: the fact that it teaches, read from the log that ships with the package."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from minivllm.maps.plan import plan_map
from minivllm.scenarios.registry import all_scenarios, get_scenario
from minivllm.trace.events import Event
from minivllm.trace.reader import read_log


@cache
def plan_of(name: str) -> dict[str, Any]:
    return plan_map(read_log(get_scenario(name).log_path))


def iteration(name: str, number: int | None = None) -> dict[str, Any]:
    """An iteration of a recorded run: the one to look at unless another is named."""
    number = get_scenario(name).look_at if number is None else number
    entry = plan_of(name)["iterations"][number]
    assert isinstance(entry, dict)
    assert entry["iteration"] == number
    return entry


def scheduled(entry: dict[str, Any]) -> dict[str, int]:
    return {e["request"]: e["num_tokens"] for e in entry["scheduled"]}


def reasons(entry: dict[str, Any]) -> dict[str, str]:
    return {e["request"]: e["reason"] for e in entry["not_scheduled"]}


def events(name: str, kind: str) -> list[Event]:
    return [event for event in read_log(get_scenario(name).log_path).events if event.kind == kind]


def lookup(name: str, request: str) -> dict[str, Any]:
    [found] = [event.data for event in events(name, "kv.lookup") if event.request == request]
    return found


def test_hello_the_second_request_joins_while_the_first_decodes() -> None:
    entry = iteration("hello", 3)
    assert scheduled(entry) == {"R0": 1, "R1": 5}


def test_continuous_batching_who_leaves_is_replaced_in_the_next_iteration() -> None:
    assert [e["request"] for e in iteration("continuous-batching", 2)["finished"]] == ["R1"]
    entry = iteration("continuous-batching")
    assert {e["request"]: e["kind"] for e in entry["scheduled"]} == {"R0": "running", "R2": "running", "R3": "new"}
    assert reasons(entry) == {"R4": "max_num_seqs"}
    sizes = [len(e["scheduled"]) for e in plan_of("continuous-batching")["iterations"][:9]]
    assert set(sizes) == {3}, "the batch is never drained"


def test_chunked_only_the_last_chunk_of_a_prompt_samples() -> None:
    chunks = [iteration("chunked", k) for k in range(1, 5)]
    assert [scheduled(entry)["R1"] for entry in chunks] == [63, 63, 63, 11]
    assert ["R1" in entry["sampled"] for entry in chunks] == [False, False, False, True]
    assert all("R0" in entry["sampled"] for entry in chunks), "the other request gets a token in each of them"
    assert sum(scheduled(entry)["R1"] for entry in chunks) > iteration("chunked")["budget"]["tokens"]


def test_long_prefill_interference_the_prompt_takes_the_whole_budget() -> None:
    before, entry = iteration("long-prefill-interference", 4), iteration("long-prefill-interference")
    assert before["budget"]["used"] == 2
    assert entry["budget"]["used"] == entry["budget"]["tokens"] == 512
    assert scheduled(entry) == {"R0": 1, "R1": 1, "R2": 510}
    assert reasons(entry) == {"R3": "token_budget"}


def test_prefix_warmup_the_second_and_third_request_hit_five_blocks() -> None:
    assert lookup("prefix-warmup", "R0")["hit"] == 0
    for request in ("R1", "R2"):
        found = lookup("prefix-warmup", request)
        assert (found["hit"], len(found["blocks"])) == (5 * 8, 5)
        assert found["first_missing"]["why"] == "differs"
        assert found["first_missing"]["other"] == "R0"
    [mine, theirs] = events("prefix-warmup", "kv.shared")
    assert mine.data["blocks"] == theirs.data["blocks"]
    assert set(theirs.data["ref_cnt"]) == {2}, "both own the same blocks"
    assert scheduled(iteration("prefix-warmup")) == {"R1": 9, "R2": 10}


def test_full_hit_the_last_block_is_computed_again() -> None:
    found = lookup("full-hit", "R1")
    assert (found["asked"], found["hit"]) == (24, 24)
    assert found["first_missing"]["why"] == "last_token"
    assert scheduled(iteration("full-hit")) == {"R1": 8}, "a whole block, for one token's logits"
    texts = {request["request"]: request["text"] for request in plan_of("full-hit")["requests"]}
    assert texts["R0"] == texts["R1"]
    hashes = [h for event in events("full-hit", "kv.stored") for h in event.data["hashes"]]
    assert len(hashes) > len(set(hashes)), "the cache knows two blocks with the same content"


def test_short_prefix_nothing_is_found_within_the_first_block() -> None:
    found = lookup("short-prefix", "R1")
    assert (found["asked"], found["hit"]) == (16, 0)
    assert found["first_missing"] == {"index": 0, "why": "differs", "token": 10, "other": "R0"}
    assert lookup("short-prefix", "R2")["hit"] == 16, "who shares the whole block finds it"
    assert any("begins alike, but differs at token 10" in text for text in iteration("short-prefix")["narration"])


def test_kv_pressure_the_youngest_loses_its_computed_tokens_and_comes_back() -> None:
    entry = iteration("kv-pressure")
    assert entry["preemptions"] == [["R2", 14, "R1"]]
    assert reasons(entry)["R2"] == "preempted"
    back = iteration("kv-pressure", 14)
    [again] = back["scheduled"]
    assert (again["kind"], again["num_cached"], again["num_tokens"]) == ("resumed", 4, 11)
    last = [event.data["first_missing"]["why"] for event in events("kv-pressure", "kv.lookup")][-1]
    assert last == "evicted"


def test_kv_pressure_a_preemption_does_not_change_the_text() -> None:
    [victim] = [r for r in plan_of("kv-pressure")["requests"] if r["request"] == "R2"]
    [alone] = [r for r in plan_of("continuous-batching")["requests"] if r["request"] == "R3"]
    assert victim["num_prompt_tokens"] == alone["num_prompt_tokens"], "the same prompt"
    assert victim["text"].startswith(alone["text"])


def test_thrash_one_request_is_preempted_three_times() -> None:
    victims = [victim for e in plan_of("thrash")["iterations"] for victim, _, _ in e["preemptions"]]
    assert victims.count("R4") == 3
    back = [k for k, e in enumerate(plan_of("thrash")["iterations"]) for s in e["scheduled"] if s["kind"] == "resumed"]
    assert len(back) >= 3, "and each time it came back"
    assert iteration("thrash")["preempted"] == ["R4"]


def test_priority_overtakes_in_the_queue_and_picks_the_victim() -> None:
    waiting = iteration("priority", 2)
    assert list(reasons(waiting)) == ["R3", "R2"], "it came later and stands before R2"
    assert set(scheduled(waiting)) == {"R0", "R1"}, "nobody's place is taken for it"
    assert {e["request"]: e["kind"] for e in iteration("priority")["scheduled"]} == {"R1": "running", "R3": "new"}
    [[victim, _, by]] = iteration("priority", 10)["preemptions"]
    assert (victim, by) == ("R1", "R3"), "the least urgent one, though it was running first"


def test_stuck_queue_waits_while_most_blocks_are_free() -> None:
    entry = iteration("stuck-queue")
    total = read_log(get_scenario("stuck-queue").log_path).header.config["cache_config"]["num_gpu_blocks"] - 1
    assert entry["blocks"]["free"] > total / 2
    assert reasons(entry) == dict.fromkeys(("R1", "R2", "R3"), "full_sequence_does_not_fit")
    details = [e["detail"] for e in entry["not_scheduled"]]
    assert details == [
        "its whole sequence must fit: it needs 45 blocks, 40 free",
        *2 * ["behind R1, where the loop stopped"],
    ]
    assert set(scheduled(iteration("stuck-queue", 6))) == {"R1", "R2", "R3"}


def test_abort_in_flight_the_token_is_thrown_away_and_the_blocks_come_back() -> None:
    entry = iteration("abort-in-flight")
    assert entry["aborts"] == [{"request": "R1", "phase": "mid"}]
    assert "R1" in entry["sampled"]
    assert entry["thrown_away"] == ["R1"]
    [freed] = [e for e in events("abort-in-flight", "kv.freed") if e.request == "R1"]
    assert freed.step == 4
    assert freed.data["blocks"]
    assert scheduled(iteration("abort-in-flight", 5)) == {"R0": 1, "R2": 8}


def test_stop_strings_text_is_held_back_and_cut() -> None:
    held = [e.data["held"] for e in events("stop-strings", "output.text") if e.request == "R0"]
    assert held[8] == "her room. She"
    assert max(map(len, held)) == len("room. She knew") - 1
    assert not any(e.data["held"] for e in events("stop-strings", "output.text") if e.request == "R1")
    ends = {r["request"]: (r["finish_reason"], r["stop_reason"]) for r in plan_of("stop-strings")["requests"]}
    assert ends == {"R0": ("stop", "room. She knew"), "R1": ("length", None)}
    [stopped] = iteration("stop-strings")["finished"]
    assert (stopped["request"], stopped["reason"], stopped["stop_reason"]) == ("R0", "stop", "room. She knew")
    text = next(r["text"] for r in plan_of("stop-strings")["requests"] if r["request"] == "R0")
    assert text == " found a little key in her "


def test_utf8_split_a_character_of_four_tokens_is_sent_when_it_is_whole() -> None:
    deltas = [e.data["delta"] for e in events("utf8-split", "output.text") if e.request == "R0"]
    assert deltas[:4] == ["", "", "", "🙂"]
    sentences = [" ".join(iteration("utf8-split", k)["narration"]) for k in range(4)]
    assert ["a part of a character" in text for text in sentences] == [True, True, True, False]
    assert "“🙂”" in sentences[3]


def test_n2_both_children_use_the_prompts_full_blocks() -> None:
    entry = iteration("n2")
    assert list(scheduled(entry)) == ["0_R0", "1_R0"]
    full_blocks = events("n2", "kv.allocated")[0].data["blocks"][: len(lookup("n2", "1_R0")["blocks"])]
    assert lookup("n2", "1_R0")["blocks"] == full_blocks, "found in the very iteration in which the first computes them"
    [shared] = events("n2", "kv.shared")
    assert set(shared.data["ref_cnt"]) == {2}
    tables = entry["batch"]["block_table"]
    assert tables["0_R0"][:-1] == tables["1_R0"][:-1]
    assert tables["0_R0"][-1] != tables["1_R0"][-1], "the partly filled block is each child's own"
    texts = {r["text"] for r in plan_of("n2")["requests"]}
    assert len(texts) == 2, "two draws"


def test_two_processes_bytes_cross_between_two_pids() -> None:
    started = {e.data["role"]: e.data["pid"] for e in events("two-processes", "process.started")}
    assert started["frontend"] != started["engine_core"]
    crossing = [e.data for e in events("two-processes", "message") if e.data["boundary"] == 1]
    assert {"EngineCoreRequest", "EngineCoreOutputs"} <= {message["type"] for message in crossing}
    assert all(message["channel"] == "zmq" and message["bytes"] > 0 for message in crossing)
    assert all(message["recv_ns"] >= message["send_ns"] for message in crossing)


def test_condense_the_last_row_moves_into_the_empty_one() -> None:
    moves = {event.step: event.data["moved"] for event in events("condense", "rows") if event.data["moved"]}
    assert moves[3] == [["R2", 2, 0]]
    assert iteration("condense", 2)["batch"]["order"] == ["R0", "R1", "R2"]
    assert iteration("condense")["batch"]["order"] == ["R2", "R1"]
    blocks = [iteration("condense", k)["batch"]["block_table"]["R2"] for k in (2, 3)]
    assert blocks[0] == blocks[1], "its blocks stay where they are"
    assert 6 not in moves, "whoever comes in time takes the row"


def test_async_scheduling_a_step_is_planned_for_a_request_that_has_stopped() -> None:
    entry = iteration("async-scheduling")
    assert scheduled(entry) == {"R1": 1}
    assert entry["thrown_away"] == ["R1"]
    [(step, finished)] = [
        (e.step, e.data["finished"]) for e in events("async-scheduling", "update") if "R1" in e.data["finished"]
    ]
    assert (step, finished) == (13, {"R1": ["stop", 17]}), "its stop token comes to light after the plan was made"
    late = [e for e in plan_of("async-scheduling")["iterations"][1:12] if e["scheduled"]]
    assert all(s["num_computed_before"] >= s["num_tokens_known"] for e in late for s in e["scheduled"])
    assert reasons(iteration("async-scheduling", 12)) == {"R0": "output_in_flight"}, "a limit can be counted"


@pytest.mark.parametrize("scenario", all_scenarios(), ids=lambda scenario: scenario.name)
def test_a_scenario_is_told_in_full(scenario: Any) -> None:
    assert scenario.title
    assert scenario.teaches.endswith(".")
    if scenario.look_at is not None:
        assert iteration(scenario.name)["narration"]
        assert scenario.note.endswith(".")
    assert scenario.log_path.stat().st_size < 50_000, "the logs of all scenarios travel with the package"


def test_no_two_scenarios_teach_the_same() -> None:
    for words in ("title", "teaches"):
        texts = [getattr(scenario, words) for scenario in all_scenarios()]
        assert len(set(texts)) == len(texts)
