"""No fault but a help: decodes on padded buffers, as in a graph, on a machine without graphs.

The ordinary forward pass gets the step's own arrays. This one takes the smallest captured size that holds the batch,
and has the inputs packed into buffers that stay. A CPU's kernels take no slot of -1: it is turned into the null page
here, which nobody reads.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from minivllm.attention.backend import AttentionMetadata
from minivllm.kernels import pack_inputs
from minivllm.kernels.pack_inputs import BatchRows, PackedInputs, RequestTable
from minivllm.worker.cuda_graphs import capture_sizes
from minivllm.worker.gpu_model_runner import GPUModelRunner
from minivllm.worker.prepared_batch import PreparedBatch

_forward = GPUModelRunner.model_forward


def padded_forward(self: Any, batch: PreparedBatch) -> torch.Tensor:
    """Hidden states of every token of the batch: (tokens, hidden_size)."""
    requests = len(batch.req_ids)
    if batch.num_tokens != requests:  # only steps of decodes are captured as a whole
        return _forward(self, batch)
    columns = self.batch.columns
    max_num_reqs, max_blocks = columns.block_table.ids.shape
    size = next(size for size in [*capture_sizes(max_num_reqs), max_num_reqs] if size >= requests)
    buffers: PackedInputs = self.__dict__.setdefault("padded_buffers", _buffers(max_num_reqs, max_blocks))
    out = PackedInputs(buffers.query_start_loc[: size + 1], *(buffer[:size] for buffer in buffers[1:]))
    rows = np.zeros((3, size), dtype=np.int32)
    rows[0, :requests], rows[1, :requests], rows[2, :requests] = batch.places, batch.seq_lens - 1, 1
    table = RequestTable(torch.from_numpy(columns.token_ids), torch.from_numpy(columns.block_table.ids).clamp_min(0))
    pack_inputs.pack_inputs_reference(table, BatchRows(*torch.from_numpy(rows).unbind(0)), self.block_size, out)
    metadata = AttentionMetadata(
        query_start_loc=np.arange(size + 1, dtype=np.int32),
        seq_lens=out.seq_lens.clamp_min(1).numpy(),
        block_table=out.block_table.numpy(),
        slot_mapping=out.slot_mapping.clamp_min(0).numpy(),
        block_size=self.block_size,
    )
    prepared = self.attention.prepare(metadata, self.device, self._dtype)
    hidden: torch.Tensor = self.model.forward(out.input_ids, out.positions, self.kv_caches, self.attention, prepared)
    return hidden[:requests]


def _buffers(max_num_reqs: int, max_blocks: int) -> PackedInputs:
    return PackedInputs(
        torch.zeros(max_num_reqs + 1, dtype=torch.int32),
        torch.zeros(max_num_reqs, dtype=torch.int32),
        torch.zeros(max_num_reqs, max_blocks, dtype=torch.int32),
        *(torch.zeros(max_num_reqs, dtype=torch.int64) for _ in range(3)),
    )
