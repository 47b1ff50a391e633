"""The inputs of a step, in buffers as long as a graph: padding writes nowhere."""

from __future__ import annotations

import torch

from minivllm.kernels.pack_inputs import BatchRows, PackedInputs, RequestTable


def pack_inputs(table: RequestTable, rows: BatchRows, block_size: int, out: PackedInputs) -> None:
    """Fill a step's buffers, padding included. The buffers stay from step to step; they are as long as the graph.

    Args:
        table: Tokens and block ids of every slot.
        rows: The batch: the slot of each request, its computed and scheduled tokens. Past the last request: zeros.
        block_size: Tokens per block.
        out: Written. `query_start_loc`, `seq_lens` and `block_table` by request; `input_ids`, `positions` and
            `slot_mapping` by token.
    """
    slots, computed, scheduled = rows
    total = int(scheduled.sum())
    out.query_start_loc[0] = 0
    out.query_start_loc[1:] = scheduled.cumsum(0)
    out.seq_lens.copy_(torch.where(scheduled > 0, computed + scheduled, 0))
    out.block_table.copy_(table.block_ids[slots.long()])
    request = torch.repeat_interleave(torch.arange(len(slots)), scheduled.long())  # (tokens,)
    position = (computed[request] + torch.arange(total) - out.query_start_loc[request]).long()
    slot = slots[request].long()
    page_of_token = table.block_ids[slot, position // block_size].long()
    for buffer in (out.input_ids, out.positions):
        buffer.fill_(0)
    out.slot_mapping.fill_(-1)
    out.input_ids[:total] = table.token_ids[slot, position].long()
    out.positions[:total] = position
    out.slot_mapping[:total] = page_of_token * block_size + position % block_size
