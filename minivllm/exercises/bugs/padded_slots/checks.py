"""Padded inputs from the repaired part: alone, and under a model."""

from __future__ import annotations

import torch

from minivllm.exercises.bench import Bench
from minivllm.exercises.faults import run_here, sound_run
from minivllm.exercises.runs import Run
from minivllm.kernels.pack_inputs import BatchRows, PackedInputs, RequestTable


def engine(bench: Bench) -> list[Run]:
    """The runs that must change when the solution is broken."""
    return [run_here(bench)]


def _ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def _packed(bench: Bench, out: PackedInputs, *scheduled: int) -> None:
    table = RequestTable(
        torch.arange(32, dtype=torch.int32).view(4, 8), torch.arange(8, dtype=torch.int32).view(4, 2) + 1
    )
    rows = BatchRows(_ints(2, 0, 3, 1), _ints(4, 0, 6, 1), _ints(*scheduled))
    bench.call("pack_inputs", table, rows, 4, out, text=f"pack_inputs(..., scheduled={list(scheduled)}, graph of 8)")


def _out(fill: int) -> PackedInputs:
    longs = [torch.full((8,), fill, dtype=torch.int64) for _ in range(3)]
    return PackedInputs(_ints(0, 0, 0, 0, 0), _ints(0, 0, 0, 0), torch.zeros(4, 2, dtype=torch.int32), *longs)


def test_real_tokens_have_their_slots(bench: Bench) -> None:
    """Real tokens have their ids, positions and slots."""
    out = _out(0)
    _packed(bench, out, 1, 3, 1, 0)
    call = bench.call("", lambda: out, text="pack_inputs(..., scheduled=[1, 3, 1, 0], graph of 8)")
    call.gives([20, 0, 1, 2, 30], "The first five of input_ids.", got=out.input_ids[:5].tolist())
    call.gives([4, 0, 1, 2, 6], "The first five of positions.", got=out.positions[:5].tolist())
    call.gives([24, 4, 5, 6, 34], "The first five of slot_mapping.", got=out.slot_mapping[:5].tolist())


def test_padding_writes_nowhere(bench: Bench) -> None:
    """Rows of padding have the slot -1, whatever was in the buffers before."""
    for fill in (0, 5, -1):
        out = _out(fill)
        _packed(bench, out, 1, 1, 1, 0)
        text = f"pack_inputs(..., scheduled=[1, 1, 1, 0], graph of 8), buffers of {fill}"
        call = bench.call("", lambda: None, text=text)
        call.gives([-1] * 5, "The last five of slot_mapping.", got=out.slot_mapping[3:].tolist())


def test_everybody_says_the_same(bench: Bench) -> None:
    """In the engine, on padded buffers: every request says what it says without padding."""
    bench.same_tokens(run_here(bench))


def test_the_plans_stay(bench: Bench) -> None:
    """In the engine: every iteration is as without the fault, and every invariant holds."""
    run = run_here(bench)
    bench.same_plans(run, reference=sound_run(bench.exercise))
    bench.sound(run)
