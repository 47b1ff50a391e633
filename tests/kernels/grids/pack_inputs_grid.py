"""Input packing on the device: random slots, random numbers of tokens, and padding behind them. Integers: all equal."""

from __future__ import annotations

import itertools

import torch

from minivllm.kernels.pack_inputs import BatchRows, PackedInputs, RequestTable, pack_inputs, pack_inputs_reference
from tests.kernels.grids.setup import PAGE_SIZES, Setup

SLOTS, LONGEST = 12, 300
BATCHES = [[], [1], [1, 1, 1], [5, 0, 1, 130], [0, 0, 7], [1] * 12, [129, 1], [0, 0, 0]]


def run(setup: Setup) -> int:
    cases = list(itertools.product(PAGE_SIZES, BATCHES, [0, 1, 150]))
    chosen = setup.choose(cases, 20, 200)
    for block_size, batch, padding in chosen:
        compare(setup, block_size, batch, padding)
    return len(chosen)


def compare(setup: Setup, block_size: int, batch: list[int], padding: int) -> None:
    max_requests = max(1, len(batch) + padding % 4)
    max_blocks = -(-LONGEST // block_size)
    table = RequestTable(
        token_ids=torch.randint(0, 50_000, (SLOTS, LONGEST), dtype=torch.int32),
        block_ids=torch.randperm(SLOTS * max_blocks).int().view(SLOTS, max_blocks),
    )
    slots = torch.zeros(max_requests, dtype=torch.int32)
    slots[: len(batch)] = torch.randperm(SLOTS)[: len(batch)].int()
    computed = torch.randint(0, LONGEST - 130, (max_requests,), dtype=torch.int32)
    scheduled = torch.zeros(max_requests, dtype=torch.int32)
    scheduled[: len(batch)] = torch.tensor(batch, dtype=torch.int32)
    num_tokens = max(1, sum(batch) + padding)

    def buffers(device) -> PackedInputs:
        def full(*shape, dtype):
            return torch.full(shape, -7, dtype=dtype, device=device)

        return PackedInputs(
            full(max_requests + 1, dtype=torch.int32),
            full(max_requests, dtype=torch.int32),
            full(max_requests, max_blocks, dtype=torch.int32),
            full(num_tokens, dtype=torch.int64),
            full(num_tokens, dtype=torch.int64),
            full(num_tokens, dtype=torch.int64),
        )

    expected, got = buffers("cpu"), buffers(setup.device)
    rows = BatchRows(slots, computed, scheduled)
    pack_inputs_reference(table, rows, block_size, expected)
    on_device = RequestTable(*(tensor.to(setup.device) for tensor in table))
    pack_inputs(on_device, BatchRows(*(column.to(setup.device) for column in rows)), block_size, got)
    what = f"{block_size=} {batch=} {padding=}"
    check_inputs(got, expected, block_size, what)


def check_inputs(got: PackedInputs, expected: PackedInputs, block_size: int, what: str) -> None:
    """All equal, and of a block table no more was written than is used: it was -7 everywhere."""
    for name in ("query_start_loc", "seq_lens", "input_ids", "positions", "slot_mapping"):
        assert torch.equal(getattr(got, name).cpu(), getattr(expected, name)), f"{what}: {name} differs"
    for request, length in enumerate(expected.seq_lens.tolist()):
        used = -(-length // block_size)
        row = got.block_table[request].cpu()
        assert torch.equal(row[:used], expected.block_table[request, :used]), f"{what}: block table of {request}"
        assert (row[used:] == -7).all(), f"{what}: more of the block table of {request} was written than is used"
