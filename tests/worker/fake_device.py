"""A device without a model: a step's kernels are their references, and a token depends on all that the cache holds.

What the engine, the runner and the copies do around it is the real thing. Whatever they get wrong (a token that is not
there yet, a block of someone else, a slot that has changed hands) changes the tokens.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from minivllm.config import VllmConfig
from minivllm.kernels.append_blocks import append_blocks_reference
from minivllm.kernels.pack_inputs import BatchRows, PackedInputs, pack_inputs_reference
from minivllm.kernels.scores import SamplingRows
from minivllm.sample.sampler import Sampler
from minivllm.worker import captured_runner
from minivllm.worker.captured_runner import CapturedModelRunner
from minivllm.worker.device_step import DeviceStep, ForwardOutput, Layout

VOCAB_SIZE = 5
UNWRITTEN = -1000


def next_token(tokens: list[int]) -> int:
    """The model: every token counts, and so does its place."""
    return (sum((i + 3) * token for i, token in enumerate(tokens)) * 7 + len(tokens)) % VOCAB_SIZE


class FakeStep(DeviceStep):
    """The step, with the cache as one number a slot: the token that was computed there.

    In a step of decodes that may be read ahead, what stands before a request's last block is read before anything of
    the step is written.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.cache = torch.full((self._kv_caches[0].shape[1] * self._limits.block_size,), UNWRITTEN)

    def forward(self, layout: Layout, host: Any = None, model_forward: Any = None) -> ForwardOutput:
        requests, tokens, size = layout.num_requests, layout.num_tokens, self._limits.block_size
        *rows, shared = self._staged.on_device[:, :requests].unbind(0)
        slot, computed, scheduled, sampled_slot, index, block = rows
        table = self.requests.table
        append_blocks_reference(table.block_ids, slot, index, block)
        inputs = PackedInputs(
            torch.zeros(requests + 1, dtype=torch.int32),
            torch.zeros(requests, dtype=torch.int32),
            torch.zeros((requests, table.block_ids.shape[1]), dtype=torch.int32),
            *(torch.zeros(tokens, dtype=torch.int64) for _ in range(3)),
        )
        pack_inputs_reference(table, BatchRows(slot, computed, scheduled), size, inputs)
        is_real = inputs.slot_mapping >= 0
        old = self.cache.clone()
        self.cache[inputs.slot_mapping[is_real]] = inputs.input_ids[is_real]
        logits = torch.zeros(requests, VOCAB_SIZE + 1)  # one more, that is never the most likely one
        prefix = int(shared[0])
        assert (prefix > 0) == layout.with_prefix, "a step with a prefix is launched as one"
        for row, length in enumerate(inputs.seq_lens.tolist()):
            if length:
                place = torch.arange(length)
                page_of_token = inputs.block_table[row, place // size].long()
                if row < layout.parts.num_decodes:  # the first request's blocks serve all decodes
                    assert length >= prefix, "no decode has fewer tokens than the prefix that it shares"
                    page_of_token[:prefix] = inputs.block_table[0, place[:prefix] // size].long()
                where = page_of_token * size + place % size
                numbers = self.cache[where]
                if layout.is_decode and layout.may_read_ahead and self._attention.can_read_ahead(requests, 1, old):
                    ahead = (length - 1) // size * size
                    numbers[:ahead] = old[where[:ahead]]
                seen = numbers.tolist()
                logits[row, next_token(seen)] = 1000.0  # drawn at any temperature
        hidden = torch.zeros(tokens, VOCAB_SIZE + 1)
        return ForwardOutput(hidden, logits, SamplingRows(sampled_slot, inputs.seq_lens))

    def sample(self, step: ForwardOutput, with_penalties: bool) -> None:
        for row, (slot, position) in enumerate(zip(step.rows.slot.tolist(), step.rows.position.tolist(), strict=True)):
            token = int(step.last_hidden[row].argmax()) if slot >= 0 else -1
            self.sampled[row] = token
            if slot >= 0:
                self.requests.table.token_ids[slot, position] = token


class FakeAttention:
    name = "fake"
    on_kernels = False
    least_sharing = 2  # decodes

    def can_read_ahead(self, num_decodes: int, num_heads: int, kv_cache: torch.Tensor) -> bool:
        return True

    def use_cascade_attention(self, num_decodes: int, prefix_tokens: int, token_bytes: int) -> bool:
        return num_decodes >= self.least_sharing

    @staticmethod
    def kv_cache_shape(num_blocks: int, *sizes: int) -> tuple[int, ...]:
        return (2, num_blocks, 1)


def make_runner(config: VllmConfig, monkeypatch: Any) -> CapturedModelRunner:
    """The runner with graphs, on a device like that."""
    monkeypatch.setattr(captured_runner, "DeviceStep", FakeStep)
    sizes = {
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "head_dim": 1,
        "num_hidden_layers": 1,
        "weights_per_layer": 1,
    }
    shape = SimpleNamespace(vocab_size=VOCAB_SIZE + 1, windows={None}, **sizes)
    model: Any = SimpleNamespace(config=shape, compute_logits=lambda hidden: hidden)
    runner = CapturedModelRunner(config, model, FakeAttention(), torch.device("cpu"), torch.float32)
    runner.sampler = Sampler()
    assert config.cache_config.num_gpu_blocks is not None
    runner.initialize_kv_cache(config.cache_config.num_gpu_blocks)
    return runner
