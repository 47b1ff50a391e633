"""Slots and rows keep a batch in different places and orders, and give the same tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from minivllm.core.scheduler_output import NewRequestData
from minivllm.sampling_params import SamplingParams
from minivllm.worker.request_columns import RequestColumns
from tests.worker.driver import PlanDriver, make_worker

MAX_NUM_SEQS = 4


def test_slots_put_uniform_decodes_first_and_never_move(tiny_llama: Path) -> None:
    driver = PlanDriver(make_worker(tiny_llama, "slots"))
    for name in ("r0", "r1", "r2"):
        driver.add(name, list(range(1, 30)))
    driver.prefill("r0")
    driver.step({"r0": 1, "r1": 20, "r2": 3})
    assert driver.facts.order == ["r0", "r2", "r1"]
    assert driver.facts.places == [0, 2, 1]
    assert driver.facts.query_start_loc == [0, 1, 4, 24]
    driver.finish("r0")
    driver.step({"r1": 9, "r2": 26})
    assert (driver.facts.order, driver.facts.places) == (["r1", "r2"], [1, 2])
    driver.add("r3", [1, 2])
    driver.step({"r1": 1, "r2": 1, "r3": 2})
    assert (driver.facts.order, driver.facts.places) == (["r1", "r2", "r3"], [1, 2, 0])


def test_slots_for_kernels_put_the_longest_context_first_and_new_prompts_last(tiny_llama: Path) -> None:
    worker = make_worker(tiny_llama, "slots")
    worker.runner.batch.is_for_kernels = True
    driver = PlanDriver(worker)
    for name, length in (("short", 3), ("long", 20), ("middle", 7), ("middle too", 7), ("chunked", 30)):
        driver.add(name, list(range(1, length + 1)))
    driver.prefill("short", "long", "middle")
    driver.prefill("middle too")
    driver.step({"short": 1, "chunked": 12, "middle": 1, "long": 1, "middle too": 1})
    assert driver.facts.order == ["long", "middle", "middle too", "short", "chunked"]
    for name, length in (("new", 9), ("shorter", 4)):
        driver.add(name, list(range(1, length + 1)))
    driver.step({"new": 9, "chunked": 18, "short": 1, "long": 1, "shorter": 4})
    assert driver.facts.order == ["long", "short", "chunked", "shorter", "new"]
    assert driver.facts.query_start_loc == [0, 1, 2, 20, 24, 33]


def test_requests_with_all_their_drafts_are_the_uniform_decodes(tiny_llama: Path) -> None:
    driver = PlanDriver(make_worker(tiny_llama, "slots"))
    for name in ("plain", "drafted", "prompt"):
        driver.add(name, [1, 2, 3, 4, 5, 6, 7])
    driver.prefill("plain", "drafted")
    driver.step({"plain": 1, "prompt": 6, "drafted": 4}, drafts={"drafted": [9, 9, 9]})
    assert driver.facts.order == ["drafted", "plain", "prompt"]
    assert driver.facts.query_start_loc == [0, 4, 5, 11]


def test_rows_keep_admission_order(tiny_llama: Path) -> None:
    driver = PlanDriver(make_worker(tiny_llama, "rows"))
    for name in ("r0", "r1", "r2"):
        driver.add(name, list(range(1, 30)))
    driver.prefill("r0")
    driver.step({"r0": 1, "r1": 20, "r2": 3})
    assert driver.facts.order == ["r0", "r1", "r2"]
    assert driver.facts.query_start_loc == [0, 1, 21, 24]


def test_the_highest_rows_move_into_the_lowest_holes(tiny_llama: Path) -> None:
    driver = PlanDriver(make_worker(tiny_llama, "rows"))
    names = ["r0", "r1", "r2", "r3", "r4"]
    for name in names:
        driver.add(name, [1, 2, 3])
    driver.prefill(*names)
    driver.finish("r0")
    driver.finish("r2")
    driver.step({"r1": 1, "r3": 1, "r4": 1})
    assert driver.facts.order == ["r4", "r1", "r3"]


def test_a_new_request_fills_the_lowest_hole_before_rows_move_and_then_decodes_go_first(tiny_llama: Path) -> None:
    driver = PlanDriver(make_worker(tiny_llama, "rows"))
    names = ["r0", "r1", "r2", "r3"]
    for name in names:
        driver.add(name, [1, 2, 3])
    driver.prefill(*names)
    driver.finish("r0")
    driver.finish("r1")
    driver.add("new", [4, 5])
    driver.step({"r2": 1, "r3": 1, "new": 2})
    # new, r3, r2 after the holes are closed; then new and r2 change places.
    assert driver.facts.order == ["r2", "r3", "new"]


def test_rows_stand_in_four_regions(tiny_llama: Path) -> None:
    driver = PlanDriver(make_worker(tiny_llama, "rows"))
    for name in ("first", "long", "decode", "short", "decode 2"):
        driver.add(name, list(range(1, 30)))
    driver.prefill("decode", "decode 2")
    driver.step({"long": 5, "short": 5, "decode": 1, "decode 2": 1})
    driver.step({"decode": 1, "decode 2": 1, "long": 9, "short": 1, "first": 3})
    assert driver.facts.order == ["decode", "decode 2", "short", "long", "first"]
    # With drafts in the plan, a request with all of its own is a decode as well.
    driver.step({"first": 3, "short": 1, "decode": 1, "decode 2": 3}, drafts={"decode 2": [7, 7]})
    assert driver.facts.order == ["decode", "decode 2", "short", "first"]


def test_every_column_moves_with_its_row() -> None:
    columns = RequestColumns(max_num_reqs=3, max_model_len=8, block_size=2, seed=0)
    arrays = {name: value for name, value in vars(columns).items() if isinstance(value, np.ndarray)}
    arrays |= {"block ids": columns.block_table.ids, "num blocks": columns.block_table.num_blocks}
    draw = {"temperature": 0.5, "top_p": 0.9, "top_k": 7, "min_p": 0.1, "seed": 3}
    params = SamplingParams(**draw, repetition_penalty=1.5, logprobs=2, prompt_logprobs=1)
    columns.write_new(2, NewRequestData("a", [4, 5, 6], params, [1, 2], 2))
    for name, array in arrays.items():
        assert not np.array_equal(array[2], array[0]), f"{name}: the rows differ before the move"
    saved = columns.save(2)
    columns.move(2, 0)
    columns.restore(1, saved)
    for name, array in arrays.items():
        assert np.array_equal(array[2], array[0]), f"{name} moved"
        assert np.array_equal(array[2], array[1]), f"{name} was saved and restored"


ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["add", "run", "run", "run", "finish", "preempt"]),
        st.integers(0, 10**6),
    ),
    min_size=5,
    max_size=40,
)


# Every kind of state that a row can have, and rows without any.
FEATURES: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 1.0},
    {"temperature": 1.5, "seed": 3, "top_k": 20, "top_p": 0.9, "min_p": 0.01, "logprobs": 2},
    {"temperature": 0.0, "repetition_penalty": 1.5, "frequency_penalty": 0.5, "presence_penalty": 0.5, "logprobs": 0},
    {"temperature": 1.0, "bad_words_token_ids": ((5,), (6, 7)), "min_tokens": 5, "all_stop_token_ids": (8, 9)},
    {"temperature": 0.0, "logit_bias": {4: 2.0, 5: -9.0}, "prompt_logprobs": 1},
    {"temperature": 1.0, "allowed_token_ids": (3, 14, 15, 92), "frequency_penalty": 2.0, "prompt_logprobs": 0},
]


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(actions=ACTIONS)
def test_slots_and_rows_give_the_same_tokens(tiny_llama: Path, actions: list[tuple[str, int]]) -> None:
    slots = PlanDriver(make_worker(tiny_llama, "slots", max_num_seqs=MAX_NUM_SEQS, blocks=1500))
    rows = PlanDriver(make_worker(tiny_llama, "rows", max_num_seqs=MAX_NUM_SEQS, blocks=1500))
    for driver in (slots, rows):
        play(driver, actions)
    assert slots.tokens == rows.tokens
    assert slots.ranks == rows.ranks
    for name, scores in slots.logprobs.items():
        assert len(scores) == len(slots.output(name))
        for position, other in zip(scores, rows.logprobs[name], strict=True):
            assert position == pytest.approx(other, abs=1e-4)
    assert slots.prompt_logprobs.keys() == rows.prompt_logprobs.keys()
    for name, prompt_scores in slots.prompt_logprobs.items():
        assert len(prompt_scores.logprobs) == slots.prompt_len[name] - 1
        assert prompt_scores.sampled_token_ranks == rows.prompt_logprobs[name].sampled_token_ranks


def play(driver: PlanDriver, actions: list[tuple[str, int]]) -> None:
    """Turn random actions into plans that a scheduler could make."""
    waiting: list[str] = []  # seen or not; holds no place
    running: list[str] = []
    preempted: set[str] = set()
    for count, (action, number) in enumerate(actions):
        if action == "add":
            name = f"r{count}"
            prompt = [1 + (number + i) % 90 for i in range(1 + number % 11)]
            driver.add(name, prompt, SamplingParams(**FEATURES[number % len(FEATURES)]))
            waiting.append(name)
        elif action == "finish" and running:
            driver.finish(running.pop(number % len(running)))
        elif action == "preempt" and running:
            victim = running.pop(number % len(running))
            preempted.add(victim)
            waiting.insert(0, victim)
        else:
            admitted = waiting[: 0 if preempted else MAX_NUM_SEQS - len(running)]
            del waiting[: len(admitted)]
            running += admitted
            chosen = [name for i, name in enumerate(running) if name in admitted or (number >> i) % 4 != 0]
            scheduled = {name: min(driver.debt(name), 1 + (number >> i) % 7) for i, name in enumerate(chosen)}
            driver.step(
                {name: n for name, n in scheduled.items() if driver.computed[name] + n < 100}, preempt=preempted
            )
            preempted = set()
