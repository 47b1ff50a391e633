"""Owns timing a whole decode step on the device: inputs packed, forward, sampling, in one captured graph.

The model has a real one's sizes and random weights; the host stages each step and reads its tokens one step later, as
an engine does that plans ahead.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass

import numpy as np
import torch

from minivllm.attention.triton import TritonBackend
from minivllm.models.config import DecoderConfig, RopeConfig
from minivllm.models.qwen3 import Qwen3
from minivllm.models.registry import CausalLM
from minivllm.worker.cuda_graphs import CudaGraphs, StepShape
from minivllm.worker.device_requests import Draw, Limits
from minivllm.worker.device_step import DeviceStep
from minivllm.worker.staging import SampledTokens

BLOCK_SIZE = 16
_STEPS = 64


@dataclass(frozen=True, slots=True)
class StepResult:
    """Milliseconds a step.

    Attributes:
        batch, context: Requests, and tokens of each when timing starts.
        graph_ms: The graph alone, replayed without a host that waits.
        step_ms: With staging and the copy of the tokens, one step in flight while the next is staged.
    """

    batch: int
    context: int
    graph_ms: float
    step_ms: float


def qwen3_06b(device: torch.device, dtype: torch.dtype) -> CausalLM:
    """A Qwen3-0.6B with random weights."""
    config = DecoderConfig(
        architecture="Qwen3ForCausalLM", vocab_size=151_936, hidden_size=1024, intermediate_size=3072,
        num_hidden_layers=28, num_attention_heads=16, num_key_value_heads=8, head_dim=128,
        max_position_embeddings=40_960, rms_norm_eps=1e-6, rope=RopeConfig(theta=1e6), tie_word_embeddings=True,
        eos_token_ids=(151_645,), dtype="bfloat16",
    )  # fmt: skip
    model = Qwen3(config, device, dtype)
    for weight in model.weight_slots().values():
        weight.normal_(std=0.02) if weight.dim() > 1 else weight.fill_(1.0)
    model.use_kernels()
    return model


@torch.inference_mode()
def time_decode(model: CausalLM, batch: int, context: int, device: torch.device, dtype: torch.dtype) -> StepResult:
    """Decode `batch` requests from `context` tokens on."""
    config, longest = model.config, context + 3 * _STEPS + 1
    blocks = -(-longest // BLOCK_SIZE)
    shape = (2, 1 + batch * blocks, BLOCK_SIZE, config.num_key_value_heads, config.head_dim)
    caches = [torch.randn(shape, device=device, dtype=dtype) for _ in range(config.num_hidden_layers)]
    step = DeviceStep(model, caches, TritonBackend(), Limits(batch, batch, longest, BLOCK_SIZE))
    step_shape = StepShape(batch, batch, 1)
    graphs = CudaGraphs(step.run, device)
    graphs.capture([step_shape])
    pages = (torch.randperm(batch * blocks) + 1).view(batch, blocks).int().numpy()
    for slot in range(batch):
        tokens = torch.randint(config.vocab_size, (context + 1,)).int().numpy()
        step.requests.place(slot, tokens, len(tokens), pages[slot], Draw(temperature=0.6, seed=slot))
    step.requests.flush()
    slots, ones = np.arange(batch), np.ones(batch, dtype=np.int32)

    def stage(computed: int) -> None:
        step.stage(slots, ones * computed, ones, ones > 0)

    stage(context)
    graphs.replay(step_shape)
    torch.cuda.synchronize()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(_STEPS):
        graphs.replay(step_shape)
    end.record()
    end.synchronize()

    copies, times, pending = SampledTokens(batch, device), [], None
    for index in range(_STEPS):
        started = time.perf_counter()
        stage(context + 1 + index)
        graphs.replay(step_shape)
        copy = copies.start(step.sampled)
        if pending is not None:
            tokens_of_step = pending.tolist()
            assert min(tokens_of_step) >= 0, "every row has a token: a maximum that is no number would be -1"
        pending = copy
        times.append(time.perf_counter() - started)
    return StepResult(batch, context, start.elapsed_time(end) / _STEPS, statistics.median(times[8:]) * 1e3)
