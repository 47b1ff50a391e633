"""Rows move, are swapped and sit out, and each request keeps every column. The batch keeps vLLM's order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minivllm.sampling_params import SamplingParams
from minivllm.worker.input_batch import InputBatch
from minivllm.worker.request_columns import RequestColumns
from tests.worker.driver import PlanDriver

ROWS, LENGTH, BLOCK = 5, 64, 4
ACTIONS = st.lists(
    st.tuples(st.sampled_from(["add", "run", "run", "run", "finish", "preempt"]), st.integers(0, 10**6)),
    min_size=8,
    max_size=40,
)
# A fixed run with every kind of move, for the mutants.
STORY = [
    *[("add", 7 + 10**5 * i) for i in range(6)],
    *[(action, seed * 7919) for seed in range(40) for action in ("run", "run", "add", "finish", "run", "preempt")],
]


def params_of(number: int) -> SamplingParams:
    """Parameters of which no two requests have the same, in any column."""
    return SamplingParams(
        temperature=0.5 + number % 97 / 100,
        top_p=0.5 + number % 89 / 200,
        top_k=1 + number % 83,
        min_p=number % 79 / 100,
        seed=number,
        logprobs=number % 13,
        prompt_logprobs=number % 11,
        logit_bias={number % 50: 1.0} if number % 2 else None,
    )


class Story:
    """Random plans for a batch of rows, beside a batch that is built anew for each look.

    Args:
        forgotten: A column that the batch does not know of, to see that somebody notices.
    """

    def __init__(self, forgotten: int | None = None) -> None:
        self.columns = RequestColumns(ROWS, LENGTH, BLOCK, seed=0)
        if forgotten is not None:
            self.columns._all = self.columns._all[:forgotten] + self.columns._all[forgotten + 1 :]
        self.batch = InputBatch(self.columns, ROWS)
        self.driver = PlanDriver(worker=None, block_size=BLOCK)  # type: ignore[arg-type]
        self.waiting: list[str] = []
        self.running: list[str] = []
        self.preempted: set[str] = set()
        self.count = 0
        self.num_swaps = 0

    def play(self, action: str, number: int) -> None:
        self.count += 1
        if action == "add":
            name = f"r{self.count}"
            prompt = [1 + (number + i) % 90 for i in range(1 + number % 11)]
            self.driver.add(name, prompt, params_of(number + 31 * self.count))
            self.waiting.append(name)
        elif action == "finish" and self.running:
            self.driver.finish(self.running.pop(number % len(self.running)))
        elif action == "preempt" and self.running:
            victim = self.running.pop(number % len(self.running))
            self.preempted.add(victim)
            self.waiting.insert(0, victim)
        else:
            self.run(number)

    def run(self, number: int) -> None:
        driver = self.driver
        admitted = self.waiting[: 0 if self.preempted else ROWS - len(self.running)]
        del self.waiting[: len(admitted)]
        self.running += admitted
        chosen = [name for i, name in enumerate(self.running) if name in admitted or (number >> i) % 4 != 0]
        scheduled = {name: min(driver.debt(name), 1 + (number >> i) % 7) for i, name in enumerate(chosen)}
        before = {name: driver.computed[name] * (name not in self.preempted) for name in scheduled}
        scheduled = {name: n for name, n in scheduled.items() if before[name] + n < LENGTH - 1}
        plan = driver.plan(scheduled, {}, self.preempted)
        self.preempted = set()
        self.batch.update(plan)
        self.check(scheduled, before)
        for name in scheduled:
            if driver.debt(name) == 0:
                token = 1 + (number + self.count) % 90
                driver.tokens[name].append(token)
                self.columns.append_tokens(self.batch.place_of(name), [token])

    def check(self, scheduled: dict[str, int], before: dict[str, int]) -> None:
        """Every row is what it would be if its request had been written just now; and the regions are in order."""
        order = self.batch.order(None)  # type: ignore[arg-type]
        assert set(order) == set(scheduled)
        regions = []
        for row, name in enumerate(order):
            assert self.batch.place_of(name) == row
            expected = self.written_anew(name, before[name])
            found = RequestColumns(1, LENGTH, BLOCK, seed=0)
            for (what, target), source in zip(named(found).items(), named(self.columns).values(), strict=True):
                target[0] = source[row]
                known = len(self.driver.tokens[name])
                ours, anew = (
                    array[0, :known] if what == "token_ids" else array[0] for array in (target, named(expected)[what])
                )
                assert np.array_equal(ours, anew), f"{name}, {what}: {ours} is not {anew}"
            decode = before[name] >= self.driver.prompt_len[name] and scheduled[name] == 1
            regions.append(3 if before[name] == 0 else 2 if scheduled[name] > 1 else 0 if decode else 1)
        assert regions == sorted(regions), f"{order}: {regions}"

    def written_anew(self, name: str, computed: int) -> RequestColumns:
        from minivllm.core.scheduler_output import NewRequestData

        columns = RequestColumns(1, LENGTH, BLOCK, seed=0)
        driver = self.driver
        prompt = driver.tokens[name][: driver.prompt_len[name]]
        columns.write_new(0, NewRequestData(name, prompt, driver._params[name], driver.blocks[name], computed))
        columns.append_tokens(0, driver.output(name))
        return columns


def named(columns: RequestColumns) -> dict[str, Any]:
    """Every array of the columns, also those that a mutant has forgotten."""
    arrays = {name: value for name, value in vars(columns).items() if isinstance(value, np.ndarray)}
    return arrays | {"block ids": columns.block_table.ids, "num blocks": columns.block_table.num_blocks}


@settings(max_examples=60, deadline=None)
@given(actions=ACTIONS)
def test_each_request_keeps_every_column_and_decodes_stand_first(actions: list[tuple[str, int]]) -> None:
    story = Story()
    for action, number in actions:
        story.play(action, number)


def test_the_story_of_the_mutants_swaps_moves_and_parks(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = dict.fromkeys(("swap", "move", "save", "restore"), 0)

    def counted(name: str) -> None:
        plain = getattr(RequestColumns, name)

        def wrapped(*args: Any) -> Any:
            counts[name] += 1
            return plain(*args)

        monkeypatch.setattr(RequestColumns, name, wrapped)

    for name in counts:
        counted(name)
    tell(Story())
    assert min(counts.values()) > 10, counts


NUM_COLUMNS = len(RequestColumns(1, 8, 4, 0)._all)


def test_no_array_is_missing_from_the_columns_that_move() -> None:
    columns = RequestColumns(1, 8, 4, 0)
    assert {id(array) for array in columns._all} == {id(array) for array in named(columns).values()}


@pytest.mark.parametrize("forgotten", range(NUM_COLUMNS))
def test_a_forgotten_column_is_noticed(forgotten: int) -> None:
    with pytest.raises((AssertionError, ValueError, IndexError)):
        tell(Story(forgotten))


@pytest.mark.parametrize("name", ["move", "swap"])
@pytest.mark.parametrize("forgotten", range(NUM_COLUMNS))
def test_a_column_that_only_one_kind_of_move_forgets_is_noticed(
    forgotten: int, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = getattr(RequestColumns, name)

    def forgetful(columns: RequestColumns, first: int, second: int) -> None:
        everything = columns._all
        columns._all = everything[:forgotten] + everything[forgotten + 1 :]
        plain(columns, first, second)
        columns._all = everything

    monkeypatch.setattr(RequestColumns, name, forgetful)
    with pytest.raises((AssertionError, ValueError, IndexError)):
        tell(Story())


def test_rows_of_two_views_are_exchanged_by_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exchanging views writes one row twice; whoever does it is noticed."""

    def aliased(columns: RequestColumns, first: int, second: int) -> None:
        for column in columns._all:
            column[first], column[second] = column[second], column[first]

    monkeypatch.setattr(RequestColumns, "swap", aliased)
    with pytest.raises((AssertionError, ValueError, IndexError)):
        tell(Story())


def tell(story: Story) -> None:
    for action, number in STORY:
        story.play(action, number)
