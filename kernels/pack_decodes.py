"""Owns the inputs of a step in which each request has one token: what `append_blocks` and `pack_inputs` do, in one
launch instead of four.

    request r of the batch is token r:     a program finds its position and its slot, puts its new block into its table
                                           if it has got one, and copies the table's row for attention

Nothing has to be searched, nor summed up but by rows of padding. Three launches less saved 3 us of a step on an H200.

Upstream: vllm/v1/worker/gpu/input_batch.py::prepare_pos_seq_lens, vllm/v1/worker/gpu/block_table.py.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from minivllm.kernels.append_blocks import append_blocks_reference
from minivllm.kernels.launch import padded_requests
from minivllm.kernels.pack_inputs import (
    BatchRows,
    PackedInputs,
    RequestTable,
    pack_inputs_reference,
)
from minivllm.kernels.triton_guard import jit_for_any, tl

# Block ids that a program copies at a time: a context of 8,192 tokens in blocks of 16.
TILE = 512


class NewBlocks(NamedTuple):
    """What the requests of a batch have got since the step before. Both (requests,) int32."""

    place: torch.Tensor  # where the new block stands in its request's table; -1 if there is none
    block_id: torch.Tensor


def pack_decodes_reference(
    table: RequestTable, rows: BatchRows, new: NewBlocks, block_size: int, out: PackedInputs
) -> None:
    """What the kernel does, in plain PyTorch. Arguments as in `pack_decodes`."""
    append_blocks_reference(table.block_ids, rows.slot, new.place, new.block_id)
    pack_inputs_reference(table, rows, block_size, out)


@jit_for_any("num_requests")
def pack_decodes_kernel(
    query_start_loc_ptr,
    seq_lens_ptr,
    block_table_ptr,
    input_ids_ptr,
    positions_ptr,
    slot_mapping_ptr,
    slots_ptr,
    computed_ptr,
    scheduled_ptr,
    new_place_ptr,
    new_block_ptr,
    token_ids_ptr,
    block_ids_ptr,
    token_ids_stride,
    block_ids_stride,
    table_stride,
    num_requests,
    block_size: tl.constexpr,
    tile: tl.constexpr,
    requests_padded: tl.constexpr,
):
    """One request, or a row of padding behind them."""
    request = tl.program_id(0).to(tl.int64)
    is_real = tl.load(scheduled_ptr + request) > 0
    position = tl.load(computed_ptr + request, mask=is_real, other=0)
    slot = tl.load(slots_ptr + request, mask=is_real, other=0).to(tl.int64)
    new_place = tl.load(new_place_ptr + request, mask=is_real, other=-1)
    new_block = tl.load(new_block_ptr + request)
    end = request + 1
    if is_real == 0:  # it begins where the last request ends
        others = tl.arange(0, requests_padded)
        end = tl.sum(tl.load(scheduled_ptr + others, mask=others < num_requests, other=0), 0).to(tl.int64)
    if request == 0:
        tl.store(query_start_loc_ptr, 0)
    tl.store(query_start_loc_ptr + 1 + request, end)
    tl.store(seq_lens_ptr + request, tl.where(is_real, position + 1, 0))

    # Nobody waits for the new block to be written: whoever reads its place takes it from here.
    own_blocks_ptr = block_ids_ptr + slot * block_ids_stride
    last_block = position // block_size
    page_of_token = tl.load(own_blocks_ptr + last_block, mask=is_real, other=0)
    page_of_token = tl.where(last_block == new_place, new_block, page_of_token)
    slot_of_token = page_of_token.to(tl.int64) * block_size + position % block_size
    input_id = tl.load(token_ids_ptr + slot * token_ids_stride + position, mask=is_real, other=0)
    tl.store(input_ids_ptr + request, input_id.to(tl.int64))
    tl.store(positions_ptr + request, position.to(tl.int64))
    tl.store(slot_mapping_ptr + request, tl.where(is_real, slot_of_token, -1))

    num_blocks = tl.where(is_real, last_block + 1, 0)
    for start in range(0, num_blocks, tile):
        block = start + tl.arange(0, tile)
        is_block = block < num_blocks
        block_id = tl.load(own_blocks_ptr + block, mask=is_block, other=0)
        block_id = tl.where(block == new_place, new_block, block_id)
        tl.store(block_table_ptr + request * table_stride + block, block_id, mask=is_block)
    tl.store(own_blocks_ptr + new_place, new_block, mask=new_place >= 0)


def pack_decodes(table: RequestTable, rows: BatchRows, new: NewBlocks, block_size: int, out: PackedInputs) -> None:
    """Fill the buffers of a step of decodes, padding included.

    Args:
        table: What the device knows of every slot; its block ids are changed.
        rows: The batch: one token each, and rows with none behind them.
        new: Blocks that the requests have got. No slot may occur twice among those with one.
        block_size: Tokens per block.
        out: Written; as many tokens as requests.
    """
    num_requests = len(rows.slot)
    assert len(out.input_ids) == num_requests, "each request has one token"
    pack_decodes_kernel[(num_requests,)](
        out.query_start_loc,
        out.seq_lens,
        out.block_table,
        out.input_ids,
        out.positions,
        out.slot_mapping,
        *rows,
        *new,
        table.token_ids,
        table.block_ids,
        table.token_ids.stride(0),
        table.block_ids.stride(0),
        out.block_table.stride(0),
        num_requests,
        block_size=block_size,
        tile=TILE,
        requests_padded=padded_requests(num_requests),
        num_warps=4,
    )
