"""Input packing of decodes on the device: some have a new block, and behind them is padding. Integers: all equal."""

from __future__ import annotations

import itertools

import torch

from minivllm.kernels.pack_decodes import NewBlocks, pack_decodes, pack_decodes_reference
from minivllm.kernels.pack_inputs import BatchRows, PackedInputs, RequestTable
from tests.kernels.grids.pack_inputs_grid import check_inputs
from tests.kernels.grids.setup import PAGE_SIZES, Setup

LONGEST = 1300
REQUESTS = [(1, 0), (1, 3), (0, 2), (5, 0), (7, 1), (70, 10)]  # and rows of padding


def run(setup: Setup) -> int:
    cases = list(itertools.product(PAGE_SIZES, REQUESTS, [30, LONGEST]))
    chosen = setup.choose(cases, 14, 200)
    for block_size, (requests, padding), longest in chosen:
        compare(setup, block_size, requests, padding, longest)
    return len(chosen)


def compare(setup: Setup, block_size: int, requests: int, padding: int, longest: int) -> None:
    rows, max_blocks = requests + padding, -(-LONGEST // block_size)
    slots = requests + 3
    token_ids = torch.randint(0, 50_000, (slots, LONGEST), dtype=torch.int32)
    block_ids = torch.randperm(slots * max_blocks).int().view(slots, max_blocks)
    slot, computed, scheduled = (torch.zeros(rows, dtype=torch.int32) for _ in range(3))
    index, block_id = torch.full((rows,), -1, dtype=torch.int32), torch.zeros(rows, dtype=torch.int32)
    slot[:requests] = torch.randperm(slots)[:requests].int()
    computed[:requests] = torch.randint(0, longest, (requests,), dtype=torch.int32)
    scheduled[:requests] = 1
    # The one that this token begins, most of the time; or another, which need not be looked at yet.
    has_new = torch.rand(requests) < 0.5
    index[:requests] = torch.where(has_new, computed[:requests] // block_size, -1)
    index[:requests:4] = (computed[:requests:4] // block_size + 1).clamp(max=max_blocks - 1)
    block_id[:requests] = torch.randint(0, 2**31 // block_size - 1, (requests,), dtype=torch.int32)

    def buffers(device: str) -> PackedInputs:
        def full(*shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
            return torch.full(shape, -7, dtype=dtype, device=device)

        tokens = (full(rows, dtype=torch.int64) for _ in range(3))
        return PackedInputs(full(rows + 1), full(rows), full(rows, max_blocks), *tokens)

    expected, got = buffers("cpu"), buffers(setup.device)
    table = RequestTable(token_ids, block_ids)
    on_device = RequestTable(*(tensor.clone().to(setup.device) for tensor in table))
    batch, new = BatchRows(slot, computed, scheduled), NewBlocks(index, block_id)
    pack_decodes_reference(table, batch, new, block_size, expected)
    columns = (type(rows)(*(column.to(setup.device) for column in rows)) for rows in (batch, new))
    pack_decodes(on_device, *columns, block_size, got)
    what = f"{block_size=} {requests=} {padding=} {longest=}"
    assert torch.equal(on_device.block_ids.cpu(), table.block_ids), f"{what}: the table of slots differs"
    check_inputs(got, expected, block_size, what)
