"""Owns a whole step on the device, from staged rows to sampled tokens, so that it can be captured as one graph.

    staged rows -> new blocks -> pack inputs -> forward -> logits -> sample -> token store (the next step's input)
                                                                         `---> `sampled`

Nothing here reads a tensor on the host: what is launched depends on the `Layout` alone. What a request brings once is
written when it takes its slot (`DeviceRequests`).

Upstream: vllm/v1/worker/gpu/model_runner.py::GPUModelRunner.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike

from minivllm.attention.backend import AttentionBackend, AttentionMetadata
from minivllm.attention.paged import PagedBackend, PagedMetadata, Parts
from minivllm.kernels.append_blocks import append_blocks
from minivllm.kernels.pack_decodes import NewBlocks, pack_decodes
from minivllm.kernels.pack_inputs import BatchRows, PackedInputs, pack_inputs
from minivllm.kernels.sample import sample
from minivllm.kernels.scores import SamplingRows
from minivllm.models.registry import CausalLM
from minivllm.worker.cuda_graphs import StepShape
from minivllm.worker.device_requests import DeviceRequests, Limits
from minivllm.worker.staging import StagedRows

# Of a batch's rows: slot, computed, scheduled, slot if a token is sampled, index and id of a new block. The last row
# has one number: tokens of a prefix that all decodes share.
_PADDING = (0, 0, 0, -1, -1, 0, 0)
_COMPUTED, _NEW_INDEX, _NEW_BLOCK = 1, 4, 5


@dataclass(frozen=True, slots=True)
class Layout:
    """The numbers on the host that decide what a step launches: a graph fixes them, any other step has its own.

    Attributes:
        num_tokens: Rows that the kernels run on.
        num_requests: Requests, padding included.
        parts: How the requests are parted among kernels; lengths may be more than there are.
        with_prefix: Whether decodes attend together to a prefix that they share.
        may_read_ahead: Whether attention may read a request's earlier tokens before this step's keys are written: not
            if another request of the step may write some of them.
        needs_all: Whether somebody may look at the hidden states of tokens that are no request's last one, as the host
            may where it samples. A model that runs in another way computes them anyway.
    """

    num_tokens: int
    num_requests: int
    parts: Parts
    with_prefix: bool = False
    may_read_ahead: bool = True
    needs_all: bool = False

    @classmethod
    def of_shape(cls, shape: StepShape) -> Layout:
        """What serves every step of a shape."""
        num_decodes = shape.num_requests if shape.query_len == 1 else 0
        parts = Parts(num_decodes, 0, shape.max_query_len, 0)
        return cls(shape.num_tokens, shape.num_requests, parts, shape.with_prefix)

    @property
    def is_decode(self) -> bool:
        """Whether each token is the last one of its request."""
        return self.parts.num_decodes == self.num_requests


# Hidden states of so many tokens of the packed inputs, given what attention takes.
ModelForward = Callable[[int, Any], torch.Tensor]


class ForwardOutput(NamedTuple):
    """Hidden states of a step's tokens, and of each request's last one."""

    hidden: torch.Tensor | None  # (tokens, hidden_size); None if nobody needs them
    last_hidden: torch.Tensor  # (requests, hidden_size)
    rows: SamplingRows


class DeviceStep:
    """The buffers of a device, and the step that runs on them.

    Args:
        model: With its weights, on the device.
        kv_caches: One a layer.
        attention: On our kernels.
        limits: How large the buffers are.

    Attributes:
        requests: What the device knows of each slot.
        sampled: (max_num_seqs,) int64: after a step, the token of each row; -1 where none was sampled.
    """

    def __init__(
        self, model: CausalLM, kv_caches: list[torch.Tensor], attention: PagedBackend[Any], limits: Limits
    ) -> None:
        self._model, self._kv_caches, self._attention, self._limits = model, kv_caches, attention, limits
        device, seqs = kv_caches[0].device, limits.max_num_seqs
        self.requests = DeviceRequests(limits, model.config.vocab_size, device)

        def zeros(*shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        tokens, max_blocks = limits.max_num_tokens, self.requests.table.block_ids.shape[1]
        self._staged = StagedRows(len(_PADDING), -(-seqs // 4) * 4, device)
        self._inputs = PackedInputs(
            zeros(seqs + 1),
            zeros(seqs),
            zeros(seqs, max_blocks),
            *(zeros(tokens, dtype=torch.int64) for _ in range(3)),
        )
        self.sampled = zeros(seqs, dtype=torch.int64)
        self.stage([], [], [], [])

    def stage(
        self,
        slots: ArrayLike,
        computed: ArrayLike,
        scheduled: ArrayLike,
        samples: ArrayLike,
        new_index: ArrayLike = (),
        new_block: ArrayLike = (),
        prefix_tokens: int = 0,
    ) -> None:
        """Send a step's batch to the device.

        Args:
            slots: Of each request, in batch order.
            computed: Tokens that are in the cache.
            scheduled: Tokens of this step.
            samples: Whether a token is sampled.
            new_index: Where its new block stands in its table; -1 if it has none.
            new_block: That block's id.
            prefix_tokens: Tokens with which all decodes begin, in the same blocks. No decode has fewer.
        """
        sampled_slots = np.where(samples, slots, -1) if np.size(slots) else ()
        rows = [slots, computed, scheduled, sampled_slots, new_index, new_block, [prefix_tokens]]
        self._staged.stage(rows, _PADDING)

    def stage_next(
        self, num_requests: int, computed: ArrayLike, new_index: ArrayLike = -1, new_block: ArrayLike = 0
    ) -> None:
        """Send the batch that was staged last once more: all are further, and some may have a new block."""
        self._staged.stage_again(num_requests, {_COMPUTED: computed, _NEW_INDEX: new_index, _NEW_BLOCK: new_block})

    def run(self, shape: StepShape) -> None:
        """One step of a shape, on what was staged: what a graph records."""
        self.sample(self.forward(Layout.of_shape(shape)), shape.with_penalties)

    def forward(
        self, layout: Layout, host: AttentionMetadata | None = None, model_forward: ModelForward | None = None
    ) -> ForwardOutput:
        """Everything up to the hidden states.

        Args:
            layout: What is launched.
            host: The batch as the host knows it; None while it is recorded.
            model_forward: Runs the model in another way.
        """
        requests, tokens = layout.num_requests, layout.num_tokens
        *rows, prefix = self._staged.on_device[:, :requests].unbind(0)
        slot, computed, scheduled, sampled_slot, index, block = rows
        inputs = PackedInputs(
            self._inputs.query_start_loc[: requests + 1],
            self._inputs.seq_lens[:requests],
            self._inputs.block_table[:requests],
            *(buffer[:tokens] for buffer in self._inputs[3:]),
        )
        table = self.requests.table
        batch_rows = BatchRows(slot, computed, scheduled)
        if layout.is_decode and tokens == requests:
            pack_decodes(table, batch_rows, NewBlocks(index, block), self._limits.block_size, inputs)
        else:
            append_blocks(table.block_ids, slot, index, block)
            pack_inputs(table, batch_rows, self._limits.block_size, inputs)
        tables = (inputs.query_start_loc, inputs.seq_lens, inputs.block_table, inputs.slot_mapping)
        metadata = PagedMetadata(*tables, layout.parts, prefix[:1] if layout.with_prefix else None)
        batch = self._attention.on_device(metadata, host)
        if layout.is_decode and layout.may_read_ahead:
            config = self._model.config
            self._attention.plan_decodes(config.num_attention_heads, self._kv_caches[0], batch, config.windows)
        sampling = SamplingRows(sampled_slot, inputs.seq_lens)
        wanted = None if layout.is_decode else (inputs.query_start_loc[1:] - 1).clamp_min(0)  # (requests,)
        if model_forward is not None:
            hidden = model_forward(tokens, batch)
        elif wanted is None or layout.needs_all:
            hidden = self.model_forward(tokens, self._attention, batch)
        else:
            return ForwardOutput(None, self.model_forward(tokens, self._attention, batch, wanted), sampling)
        return ForwardOutput(hidden, hidden[:requests] if wanted is None else hidden.index_select(0, wanted), sampling)

    def model_forward(
        self, num_tokens: int, attention: AttentionBackend[Any], batch: Any, wanted: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Hidden states of the inputs that were packed last: see `CausalLM.forward`."""
        input_ids, positions = self._inputs.input_ids[:num_tokens], self._inputs.positions[:num_tokens]
        return self._model.forward(input_ids, positions, self._kv_caches, attention, batch, wanted)

    def slot_mapping(self, num_tokens: int) -> torch.Tensor:
        """Where the keys and values of the inputs are written, (tokens,)."""
        return self._inputs.slot_mapping[:num_tokens]

    def sample(self, step: ForwardOutput, with_penalties: bool) -> None:
        """Everything after that."""
        logits = self._model.compute_logits(step.last_hidden)  # (requests, vocab_size)
        state, out = self.requests.state(with_penalties), self.sampled[: len(logits)]
        sample(logits, step.rows, self.requests.parameters, state, out)
