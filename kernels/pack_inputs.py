"""Owns the inputs of a step, made on the device: what `worker/prepared_batch.py` makes on the host.

A *slot* holds one request for as long as it runs: its tokens and its row of block ids. A step's batch is a list of
slots, each with the number of tokens computed before and scheduled now. From these follow, for request r of the batch
and its i-th token,

    query_start_loc[r] = sum of scheduled[0 ... r-1]          seq_lens[r] = computed[r] + scheduled[r]
    position = computed[r] + i                                input_id = token_ids[slot(r), position]
    slot_mapping = block_ids[slot(r), position // block_size] * block_size + position % block_size

The sampler writes each new token into `token_ids` on the device (see `finish_kernel` in `sample.py`), so the next step
finds it there, and the host need not have seen it. Everything past the real tokens is padding: slot_mapping -1,
position 0, token 0; requests past the real ones have no tokens and seq_lens 0. So a captured graph may run on more than
there is.

Upstream: vllm/v1/worker/gpu/input_batch.py::prepare_pos_seq_lens, vllm/v1/worker/gpu/block_table.py.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from minivllm.kernels.launch import padded_requests
from minivllm.kernels.triton_guard import cdiv, jit, jit_for_any, next_power_of_2, tl

TILE = 128


class RequestTable(NamedTuple):
    """What the device knows of every slot."""

    token_ids: torch.Tensor  # (slots, max_model_len) int32
    block_ids: torch.Tensor  # (slots, max blocks) int32


class BatchRows(NamedTuple):
    """A step's batch as the host stages it. All (max requests,) int32."""

    slot: torch.Tensor  # any valid slot past the batch's end
    computed: torch.Tensor  # tokens whose keys and values are in the cache
    scheduled: torch.Tensor  # tokens of this step; 0 past the batch's end


class PackedInputs(NamedTuple):
    """The inputs of a step, in buffers that stay where they are from step to step."""

    query_start_loc: torch.Tensor  # (max requests + 1,) int32
    seq_lens: torch.Tensor  # (max requests,) int32
    block_table: torch.Tensor  # (max requests, max blocks) int32, valid up to each request's last block
    input_ids: torch.Tensor  # (max tokens,) int64
    positions: torch.Tensor  # (max tokens,) int64
    slot_mapping: torch.Tensor  # (max tokens,) int64


def pack_inputs_reference(table: RequestTable, rows: BatchRows, block_size: int, out: PackedInputs) -> None:
    """What the kernels do, in plain PyTorch. Arguments as in `pack_inputs`."""
    slots, computed, scheduled = rows
    total = int(scheduled.sum())
    out.query_start_loc[0] = 0
    out.query_start_loc[1:] = scheduled.cumsum(0)
    out.seq_lens.copy_(torch.where(scheduled > 0, computed + scheduled, 0))
    out.block_table.copy_(table.block_ids[slots.long()])
    request = torch.repeat_interleave(torch.arange(len(slots), device=slots.device), scheduled.long())  # (tokens,)
    index_in_query = torch.arange(total, device=slots.device) - out.query_start_loc[request]
    position = (computed[request] + index_in_query).long()
    slot = slots[request].long()
    page_of_token = table.block_ids[slot, position // block_size].long()
    for buffer, padding in ((out.input_ids, 0), (out.positions, 0), (out.slot_mapping, -1)):
        buffer.fill_(padding)
    out.input_ids[:total] = table.token_ids[slot, position].long()
    out.positions[:total] = position
    out.slot_mapping[:total] = page_of_token * block_size + position % block_size


@jit_for_any("num_requests")
def pack_requests_kernel(
    query_start_loc_ptr,
    seq_lens_ptr,
    computed_ptr,
    scheduled_ptr,
    num_requests,
    requests_padded: tl.constexpr,
):
    """All requests in one program: a running sum needs them together, and even the 4096
    that 1024 are padded to are 32 numbers a thread.

    scheduled         [ 3  1  4 | 0 0 ... ]      the zeros are padding
    running sum       [ 3  4  8 | 8 8 ... ]
    query_start_loc [0  3  4  8 | 8 8 ... ]
    """
    request = tl.arange(0, requests_padded)
    is_real = request < num_requests
    scheduled = tl.load(scheduled_ptr + request, mask=is_real, other=0)
    computed = tl.load(computed_ptr + request, mask=is_real & (scheduled > 0), other=0)
    tl.store(query_start_loc_ptr + 1 + request, tl.cumsum(scheduled, 0), mask=is_real)
    tl.store(query_start_loc_ptr + request, 0, mask=request == 0)
    tl.store(seq_lens_ptr + request, computed + scheduled, mask=is_real)


@jit_for_any("num_requests", "num_tokens", "halvings")
def pack_tokens_kernel(
    input_ids_ptr,
    positions_ptr,
    slot_mapping_ptr,
    query_start_loc_ptr,
    slots_ptr,
    computed_ptr,
    token_ids_ptr,
    block_ids_ptr,
    token_ids_stride,
    block_ids_stride,
    num_requests,
    num_tokens,
    halvings,
    block_size: tl.constexpr,
    tile: tl.constexpr,
):
    """A tile of the flat batch. Each token finds its request by halving:

    query_start_loc  [ 0     3  4        8 ]        token 6: 0 <= 6 < 8 -> [4, 8) -> request 2
    token              0 1 2 3  4 5 6 7  8 9 ...    8 and 9 are padding
    """
    token = tl.program_id(0) * tile + tl.arange(0, tile)
    total = tl.load(query_start_loc_ptr + num_requests)
    is_real = token < total
    # The last request that starts at or before the token; those without tokens start where the next one does.
    lower = tl.zeros([tile], tl.int32)
    upper = tl.zeros([tile], tl.int32) + num_requests
    for _ in range(halvings):
        middle = (lower + upper) // 2
        is_before = tl.load(query_start_loc_ptr + middle) <= token
        lower = tl.where(is_before, middle, lower)
        upper = tl.where(is_before, upper, middle)
    slot = tl.load(slots_ptr + lower, mask=is_real, other=0).to(tl.int64)
    computed = tl.load(computed_ptr + lower, mask=is_real, other=0)
    position = computed + token - tl.load(query_start_loc_ptr + lower, mask=is_real, other=0)
    position = tl.where(is_real, position, 0)
    input_id = tl.load(token_ids_ptr + slot * token_ids_stride + position, mask=is_real, other=0)
    page_of_token = tl.load(block_ids_ptr + slot * block_ids_stride + position // block_size, mask=is_real, other=0)
    slot_of_token = page_of_token.to(tl.int64) * block_size + position % block_size
    in_buffer = token < num_tokens
    tl.store(input_ids_ptr + token, input_id.to(tl.int64), mask=in_buffer)
    tl.store(positions_ptr + token, position.to(tl.int64), mask=in_buffer)
    tl.store(slot_mapping_ptr + token, tl.where(is_real, slot_of_token, -1), mask=in_buffer)


@jit
def gather_block_table_kernel(
    block_table_ptr,
    slots_ptr,
    seq_lens_ptr,
    block_ids_ptr,
    table_stride,
    block_ids_stride,
    block_size: tl.constexpr,
    tile: tl.constexpr,
):
    """The block ids of one request of the batch: only those that its tokens need."""
    request = tl.program_id(0).to(tl.int64)
    num_blocks = (tl.load(seq_lens_ptr + request) + block_size - 1) // block_size
    slot = tl.load(slots_ptr + request, mask=num_blocks > 0, other=0).to(tl.int64)
    for start in range(0, num_blocks, tile):
        block = start + tl.arange(0, tile)
        is_real = block < num_blocks
        block_id = tl.load(block_ids_ptr + slot * block_ids_stride + block, mask=is_real, other=0)
        tl.store(block_table_ptr + request * table_stride + block, block_id, mask=is_real)


def pack_inputs(table: RequestTable, rows: BatchRows, block_size: int, out: PackedInputs) -> None:
    """Fill a step's buffers, padding included.

    Args:
        table: What the device knows of every slot.
        rows: The batch.
        block_size: Tokens per block.
        out: Written.
    """
    num_requests, num_tokens = len(rows.slot), len(out.input_ids)
    pack_requests_kernel[(1,)](
        out.query_start_loc,
        out.seq_lens,
        rows.computed,
        rows.scheduled,
        num_requests,
        requests_padded=padded_requests(num_requests),
        num_warps=4,
    )
    pack_tokens_kernel[(cdiv(num_tokens, TILE),)](
        out.input_ids,
        out.positions,
        out.slot_mapping,
        out.query_start_loc,
        rows.slot,
        rows.computed,
        table.token_ids,
        table.block_ids,
        table.token_ids.stride(0),
        table.block_ids.stride(0),
        num_requests,
        num_tokens,
        next_power_of_2(num_requests).bit_length(),
        block_size=block_size,
        tile=TILE,
        num_warps=4,
    )
    gather_block_table_kernel[(num_requests,)](
        out.block_table,
        rows.slot,
        out.seq_lens,
        table.block_ids,
        out.block_table.stride(0),
        table.block_ids.stride(0),
        block_size=block_size,
        tile=TILE,
        num_warps=1,
    )
