"""Holes that close, rows that take everything along, and an engine that mixes nobody up."""

from __future__ import annotations

from minivllm.core.scheduler_output import NewRequestData
from minivllm.exercises.bench import Bench, Run
from minivllm.exercises.replacing import replaced
from minivllm.sampling_params import SamplingParams
from minivllm.scenarios.definition import GO_ON, Scenario, ScenarioRequest
from minivllm.worker.input_batch import InputBatch
from minivllm.worker.request_columns import RequestColumns

_DRAWN = {"temperature": 0.9, "seed": 11, **GO_ON}

# R0 and R1 leave in the same iteration; R3 draws with a temperature and a seed of its own.
TWO_HOLES = Scenario(
    name="two-holes",
    title="Two rows become empty at once, and two requests move",
    teaches="Everything that is kept of a request moves with it: its temperature and seed, too.",
    engine={"max_model_len": 128, "block_size": 8, "num_gpu_blocks_override": 65, "max_num_seqs": 8, "batch": "rows"},
    requests=(
        ScenarioRequest("R0", "Once upon a time", max_tokens=3, sampling=GO_ON),
        ScenarioRequest("R1", "The little dog was", max_tokens=3, sampling=GO_ON),
        ScenarioRequest("R2", "The cat sat on the wall and", max_tokens=9, sampling=GO_ON),
        ScenarioRequest("R3", "Mia had a blue kite.", max_tokens=9, sampling=_DRAWN),
        ScenarioRequest("R4", "One day, a boy named Tim found a", max_tokens=7, arrival_step=4, sampling=GO_ON),
    ),
)


def engine(bench: Bench) -> list[Run]:
    """The runs that must change when the solution is broken."""
    return [bench.run("condense"), bench.run(TWO_HOLES)]


def _condensed(bench: Bench, rows: list[str | None]) -> tuple[str, InputBatch]:
    """A batch with these requests in its rows (None is a hole), after the learner's `condense`."""
    columns = RequestColumns(8, 32, 4, seed=0)
    batch = InputBatch(columns, 8)
    batch._req_ids = list(rows)
    for row, name in enumerate(rows):
        if name is not None:
            batch._rows[name] = row
            number = ord(name)
            columns.write_new(row, NewRequestData(name, [number, number + 1], SamplingParams(), [number % 20], 1))
    call = f"condense(batch)   rows: {_told(rows)}"
    with replaced(bench.replacements()):
        bench.call("condense", batch, text=call)
    return call, batch


def _told(rows: list[str | None]) -> str:
    return "[" + ", ".join(name or "-" for name in rows) + "]"


def test_a_hole_is_filled_by_the_highest_row(bench: Bench) -> None:
    """The highest row moves into the lowest hole."""
    cases: list[tuple[list[str | None], list[str]]] = [
        (["A", None, "C", "D"], ["A", "D", "C"]),
        ([None, "B", "C"], ["C", "B"]),
        ([None, None, "C", "D", "E"], ["E", "D", "C"]),
        (["A", None, "C", None, "E", "F"], ["A", "F", "C", "E"]),
    ]
    for rows, expected in cases:
        call, batch = _condensed(bench, rows)
        bench.same(call, _told(batch._req_ids), _told(list(expected)))


def test_holes_at_the_end_are_dropped(bench: Bench) -> None:
    """Nobody moves if the holes are at the end; the list becomes shorter."""
    cases: list[tuple[list[str | None], list[str]]] = [
        (["A", "B", None], ["A", "B"]),
        ([None, None], []),
        (["A"], ["A"]),
        ([], []),
    ]
    for rows, expected in cases:
        call, batch = _condensed(bench, rows)
        bench.same(call, _told(batch._req_ids), _told(list(expected)))


def test_everything_moves(bench: Bench) -> None:
    """A row that moves takes its tokens, counts and block table along, and is known under its new number."""
    call, batch = _condensed(bench, ["A", None, "C", "D"])
    row = batch._rows.get("D")
    bench.same(f"{call}; row of D", row, 1)
    columns = batch.columns
    bench.same(f"{call}; tokens of row 1", columns.token_ids[1, :2].tolist(), [ord("D"), ord("D") + 1])
    bench.same(f"{call}; computed tokens of row 1", int(columns.num_computed[1]), 1)
    bench.same(f"{call}; pages of row 1", columns.block_table.ids[1, :1].tolist(), [ord("D") % 20])
    columns.temperature[:] = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8]
    text = "_move(batch, source=2, target=0)   temperature [0.1, 0.2, 0.3]; temperature of row 0 afterwards"
    batch._req_ids[0] = None
    with replaced(bench.replacements()):
        bench.call("move", batch, source=2, target=0, text=text)
    bench.same(text, round(float(columns.temperature[0]), 3), 0.3, "Every column moves.")


def test_a_request_is_known_by_its_new_row(bench: Bench) -> None:
    """The old row is empty afterwards."""
    call, batch = _condensed(bench, ["A", None, "C", "D"])
    columns = batch.columns
    bench.same(f"{call}; seed of row 1 is D's", int(columns.seed[1]) == int(columns.seed[3]), True)
    bench.same(f"{call}; pages of row 3", int(columns.block_table.num_blocks[3]), 0, "The old row is empty now.")


def test_the_engine_mixes_nobody_up(bench: Bench) -> None:
    """In the engine: rows move, and every request goes on with its own text."""
    run = bench.run("condense")
    bench.sound(run)
    bench.same_tokens(run)
    bench.same_plans(run)


def test_the_engine_moves_what_a_draw_needs(bench: Bench) -> None:
    """In the engine: two requests move at once, one with a temperature and a seed of its own."""
    run = bench.run(TWO_HOLES)
    bench.sound(run)
    bench.same_tokens(run)
    bench.same_plans(run)
