"""Owns the growth of block tables inside a step: each request may have got one more block since the step before.

    rows of the batch    slot 5   slot 2   slot 9            table[5, 7] = 31
    index                  7       -1        0         ->    table[9, 0] = 44
    block id              31        .       44               -1: nothing new

A decode fills a block every `block_size` steps, so the numbers travel with the batch's other rows, and a captured graph
takes them from there: no further copy, no further launch by the host.

Upstream: vllm/v1/worker/gpu/block_table.py::BlockTables.apply_staged_writes.
"""

from __future__ import annotations

import torch

from minivllm.kernels.triton_guard import cdiv, jit_for_any, tl

TILE = 256


def append_blocks_reference(
    table: torch.Tensor, slots: torch.Tensor, indices: torch.Tensor, block_ids: torch.Tensor
) -> None:
    """What the kernel does, in plain PyTorch. Arguments as in `append_blocks`."""
    is_new = indices >= 0
    table[slots[is_new].long(), indices[is_new].long()] = block_ids[is_new]


@jit_for_any("num_requests")
def append_blocks_kernel(
    table_ptr, slots_ptr, indices_ptr, block_ids_ptr, table_stride, num_requests, tile: tl.constexpr
):
    """A tile of the batch's requests."""
    request = tl.program_id(0) * tile + tl.arange(0, tile)
    is_real = request < num_requests
    index = tl.load(indices_ptr + request, mask=is_real, other=-1)
    slot = tl.load(slots_ptr + request, mask=is_real, other=0).to(tl.int64)
    block_id = tl.load(block_ids_ptr + request, mask=is_real, other=0)
    tl.store(table_ptr + slot * table_stride + index, block_id, mask=index >= 0)


def append_blocks(table: torch.Tensor, slots: torch.Tensor, indices: torch.Tensor, block_ids: torch.Tensor) -> None:
    """Put at most one new block into the table of each request of a batch.

    Args:
        table: (slots, max blocks) int32, changed.
        slots: (requests,) int32. No slot may occur twice among those with a new block.
        indices: (requests,) int32, where the new block goes; -1 for no new block.
        block_ids: (requests,) int32.
    """
    num_requests = len(slots)
    if num_requests:
        append_blocks_kernel[(cdiv(num_requests, TILE),)](
            table, slots, indices, block_ids, table.stride(0), num_requests, tile=TILE, num_warps=4
        )
