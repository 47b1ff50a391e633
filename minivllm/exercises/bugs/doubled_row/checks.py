"""Rows that are swapped by the repaired part: alone, and in the engine."""

from __future__ import annotations

from minivllm.core.scheduler_output import NewRequestData
from minivllm.exercises.bench import Bench
from minivllm.exercises.faults import run_here
from minivllm.exercises.runs import Run
from minivllm.sampling_params import SamplingParams
from minivllm.worker.request_columns import RequestColumns


def engine(bench: Bench) -> list[Run]:
    """The runs that must change when the solution is broken."""
    return [run_here(bench)]


def _columns() -> RequestColumns:
    columns = RequestColumns(max_num_reqs=3, max_model_len=8, block_size=4, seed=0)
    for row, (tokens, blocks) in enumerate([([1, 2, 3], [7]), ([4, 5, 6, 7, 8], [9, 2]), ([9], [5])]):
        params = SamplingParams(temperature=0.5 + row / 4, seed=row)
        columns.write_new(row, NewRequestData(f"R{row}", tokens, params, blocks, row))
    return columns


def test_two_rows_change_places(bench: Bench) -> None:
    """Every column of both rows changes places, and the third row stays."""
    columns, before = _columns(), _columns()
    call = bench.call("swap", columns, 0, 1, text="swap(columns, 0, 1)")
    for name in ("token_ids", "num_tokens", "num_computed", "temperature", "seed"):
        now, was = getattr(columns, name), getattr(before, name)
        call.gives(was[[1, 0, 2]].tolist(), f"Column {name}, rows 0 to 2.", got=now.tolist())
    call.gives(before.block_table.ids[[1, 0, 2]].tolist(), "The block tables.", got=columns.block_table.ids.tolist())
    call.gives([p.seed for p in before.params[[1, 0, 2]]], "The parameters.", got=[p.seed for p in columns.params])


def test_a_row_with_itself(bench: Bench) -> None:
    """A row that changes places with itself stays as it is."""
    columns, before = _columns(), _columns()
    call = bench.call("swap", columns, 1, 1, text="swap(columns, 1, 1)")
    call.gives(before.token_ids.tolist(), "Column token_ids.", got=columns.token_ids.tolist())


def test_every_row_is_its_requests_own(bench: Bench) -> None:
    """In the engine: every row has its own request's tokens and pages."""
    bench.sound(run_here(bench))


def test_everybody_says_the_same(bench: Bench) -> None:
    """In the engine: every request says what it says without the fault."""
    run = run_here(bench)
    bench.same_tokens(run)
    bench.same_plans(run)
