"""Owns a whole step on the device, from staged rows to sampled tokens, so that it can be captured as one graph.

    staged rows -> pack inputs -> forward -> logits -> sample -> token store (the next step's input) and `sampled`

Nothing here reads a tensor on the host: what it launches depends on the `StepShape` alone. What a request brings once
is written when it takes its slot (`place`), its blocks as they come (`append_blocks`).

Upstream: vllm/v1/worker/gpu/model_runner.py::GPUModelRunner.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch

from minivllm.attention.triton import TritonBackend, TritonBatch
from minivllm.kernels.pack_inputs import BatchRows, PackedInputs, RequestTable, pack_inputs
from minivllm.kernels.penalties import count_history
from minivllm.kernels.sample import sample
from minivllm.kernels.scores import SamplingParameters, SamplingRows, SamplingState
from minivllm.models.registry import CausalLM
from minivllm.worker.cuda_graphs import StepShape
from minivllm.worker.staging import StagedRows


@dataclass(frozen=True, slots=True)
class Limits:
    """How large the buffers are."""

    max_num_seqs: int
    max_num_tokens: int
    max_model_len: int
    block_size: int


class Draw(NamedTuple):
    """How a request is sampled, in the order of `SamplingParameters`."""

    temperature: float = 0.0
    min_p: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    repetition: float = 1.0
    frequency: float = 0.0
    presence: float = 0.0

    @property
    def has_penalties(self) -> bool:
        return (self.repetition, self.frequency, self.presence) != (1.0, 0.0, 0.0)


_SAMPLING_DTYPES = (torch.float32, torch.float32, torch.int32, torch.float32, torch.int64) + (torch.float32,) * 3


class DeviceStep:
    """The buffers of a device, and the step that runs on them.

    Args:
        model: With its weights, on the device.
        kv_caches: One a layer.
        limits: How large the buffers are.
        with_penalties: Whether any request may have penalties: they need a number a slot and token of the vocabulary.

    Attributes:
        sampled: (max_num_seqs,) int64: after a step, the token of each row; -1 where none was sampled.
    """

    def __init__(
        self, model: CausalLM, kv_caches: list[torch.Tensor], limits: Limits, with_penalties: bool = False
    ) -> None:
        self._model, self._kv_caches, self._limits = model, kv_caches, limits
        self._attention = TritonBackend()
        device, seqs = kv_caches[0].device, limits.max_num_seqs
        max_blocks = -(-limits.max_model_len // limits.block_size)
        vocab_size = model.config.vocab_size

        def zeros(*shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        self._table = RequestTable(zeros(seqs, limits.max_model_len + 1), zeros(seqs, max_blocks))
        self._parameters = SamplingParameters(*(zeros(seqs, dtype=dtype) for dtype in _SAMPLING_DTYPES))
        self._state = SamplingState(self._table.token_ids, zeros(seqs, vocab_size) if with_penalties else None)
        self._staged = StagedRows(4, seqs, device)
        tokens = limits.max_num_tokens
        self._inputs = PackedInputs(
            zeros(seqs + 1),
            zeros(seqs),
            zeros(seqs, max_blocks),
            *(zeros(tokens, dtype=torch.int64) for _ in range(3)),
        )
        self.sampled = zeros(seqs, dtype=torch.int64)
        self.stage([], [], [], [])

    def place(self, slot: int, token_ids: list[int], num_prompt_tokens: int, block_ids: list[int], draw: Draw) -> None:
        """Give a slot to a request: its known tokens, its blocks, and how it is sampled."""
        tokens = torch.tensor(token_ids, dtype=torch.int32, device=self.sampled.device)
        self._table.token_ids[slot, : len(tokens)] = tokens
        self.append_blocks(slot, 0, block_ids)
        for column, value in zip(self._parameters, draw, strict=True):
            column[slot] = value
        if self._state.history is not None and draw.has_penalties:
            count_history(self._state.history, slot, tokens, num_prompt_tokens)

    def append_blocks(self, slot: int, start: int, block_ids: list[int]) -> None:
        """Put blocks into a slot's table, from its `start`-th on."""
        blocks = torch.tensor(block_ids, dtype=torch.int32, device=self.sampled.device)
        self._table.block_ids[slot, start : start + len(blocks)] = blocks

    def stage(self, slots: list[int], computed: list[int], scheduled: list[int], samples: list[bool]) -> None:
        """Send a step's batch to the device: four numbers a request, in batch order."""
        sampled_slots = [slot if samples_now else -1 for slot, samples_now in zip(slots, samples, strict=True)]
        self._staged.stage([slots, computed, scheduled, sampled_slots], padding=[0, 0, 0, -1])

    def run(self, shape: StepShape) -> None:
        """One step of a shape, on what was staged."""
        requests, tokens = shape.num_requests, shape.num_tokens
        slot, computed, scheduled, sampled_slot = self._staged.on_device[:, :requests].unbind(0)
        inputs = PackedInputs(
            self._inputs.query_start_loc[: requests + 1],
            self._inputs.seq_lens[:requests],
            self._inputs.block_table[:requests],
            *(buffer[:tokens] for buffer in self._inputs[3:]),
        )
        pack_inputs(self._table, BatchRows(slot, computed, scheduled), self._limits.block_size, inputs)
        batch = TritonBatch(
            inputs.query_start_loc,
            inputs.seq_lens,
            inputs.block_table,
            inputs.slot_mapping,
            num_decodes=requests if shape.query_len == 1 else 0,
            max_query_len=shape.max_query_len,
            is_fresh=False,
        )
        hidden = self._model.forward(inputs.input_ids, inputs.positions, self._kv_caches, self._attention, batch)
        if shape.query_len != 1:  # otherwise each token is the last of its request
            last = (inputs.query_start_loc[1:] - 1).clamp_min(0)  # (requests,)
            hidden = hidden.index_select(0, last)
        logits = self._model.compute_logits(hidden)  # (requests, vocab_size)
        rows = SamplingRows(sampled_slot, inputs.seq_lens)
        sample(logits, rows, self._parameters, self._state, self.sampled[:requests])
