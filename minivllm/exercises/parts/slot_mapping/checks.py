"""Slots and logits rows: the arithmetic, and the tokens that come out of the engine."""

from __future__ import annotations

from typing import Any

import numpy as np

from minivllm.exercises.bench import Bench, Run
from minivllm.scenarios.definition import GO_ON, Piece, Scenario, ScenarioRequest
from minivllm.worker.block_table import BlockTable

DRAFTS = Scenario(
    name="guesses-to-check",
    title="One request decodes, one is in its prompt, one has guesses to check",
    teaches="k guesses take k more rows of logits.",
    engine={"max_model_len": 128, "block_size": 8, "num_gpu_blocks_override": 33, "max_num_seqs": 4},
    requests=(
        ScenarioRequest("R0", "Once upon a time", max_tokens=8, sampling=GO_ON),
        ScenarioRequest("R1", "The little dog was", 12, drafts={2: Piece(3, 2), 4: Piece(9, 3)}, sampling=GO_ON),
        ScenarioRequest("R2", (Piece(0, 30),), max_tokens=4, arrival_step=2, sampling=GO_ON),
    ),
)


def engine(bench: Bench) -> list[Run]:
    """The runs that must change when the solution is broken."""
    return [bench.run("condense"), bench.run(DRAFTS)]


def _slots(bench: Bench, tables: list[list[int]], tokens: list[tuple[int, int]], size: int = 8) -> tuple[str, Any]:
    table = BlockTable(len(tables), 64, size)
    for row, pages in enumerate(tables):
        table.replace(row, pages)
    rows = np.array([row for row, _ in tokens], dtype=np.intp)
    positions = np.array([position for _, position in tokens], dtype=np.int64)
    text = f"compute_slot_mapping(table, {rows.tolist()}, {positions.tolist()})   pages {tables}, block_size {size}"
    called = bench.call("compute_slot_mapping", table, rows, positions, text=text)
    called.is_true(isinstance(called.value, np.ndarray), "a NumPy array")
    return text, called.value.tolist()


def test_a_position_has_a_slot(bench: Bench) -> None:
    """A token's slot is its page times the block size, plus its offset."""
    text, slots = _slots(bench, [[5, 2, 9]], [(0, 0), (0, 7), (0, 8), (0, 17)])
    bench.same(text, slots, [40, 47, 16, 73])


def test_every_request_has_its_own_table(bench: Bench) -> None:
    """Each token is looked up in the table of its own request."""
    text, slots = _slots(bench, [[5, 2], [3, 4], [7]], [(2, 1), (0, 4), (1, 3), (0, 0)], size=4)
    bench.same(text, slots, [29, 8, 15, 20])


def test_the_last_token_of_each_request_has_logits(bench: Bench) -> None:
    """Without guesses, the last token of each request has logits."""
    _logits(bench, [[], [], []], [0, 1, 257, 260], [0, 256, 259])


def test_guesses_need_more_rows(bench: Bench) -> None:
    """A request with k guesses has k + 1 rows."""
    _logits(bench, [[], [7, 7, 7], [], [8]], [0, 1, 5, 12, 14], [0, 1, 2, 3, 4, 11, 12, 13])


def _logits(bench: Bench, drafts: list[list[int]], starts: list[int], expected: list[int]) -> None:
    text = f"logits_indices({drafts}, {starts})"
    called = bench.call("logits_indices", drafts, np.array(starts, dtype=np.int32), text=text)
    called.gives(expected, got=np.asarray(called.value).tolist())


def test_the_engine_reads_what_it_wrote(bench: Bench) -> None:
    """In the engine: every request reads its own keys and values, whatever its row, and says what it should."""
    run = bench.run("condense")
    bench.sound(run)
    bench.same_plans(run)
    bench.same_tokens(run)


def test_the_engine_checks_guesses(bench: Bench) -> None:
    """In the engine: guesses are checked by the logits of the token before each."""
    run = bench.run(DRAFTS)
    bench.sound(run)
    bench.same_plans(run)
    bench.same_tokens(run)
