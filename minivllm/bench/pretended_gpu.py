"""Owns a GPU that is none: an engine plans ahead of it as of a real one, and its steps take as long as they shall.

    host      plan 2, launch | wait for 1 | commit 1, plan 3, launch | wait for 2 | ...
    device            1      |            2            |           3            | ...

Frontend, core, runner, slots and copies are the real ones; a step of the device is a moment at which it will be over.
Time is what this thread has spent of its core, and waiting puts the clock forward: what the host does, and what of that
the device has to wait for, is the same on a machine that is busy with other things.
"""

from __future__ import annotations

import random
import time
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch

from minivllm.config import CacheConfig, ModelConfig, SchedulerConfig, VllmConfig
from minivllm.engine.core import EngineCore
from minivllm.engine.core_client import InprocClient
from minivllm.engine.llm_engine import LLMEngine
from minivllm.executor.uniproc import UniProcExecutor
from minivllm.kernels.scores import SamplingRows
from minivllm.sampling_params import RequestOutputKind, SamplingParams
from minivllm.trace.device_clock import DeviceClock
from minivllm.worker import captured_runner
from minivllm.worker.captured_runner import CapturedModelRunner
from minivllm.worker.device_step import DeviceStep, ForwardOutput
from minivllm.worker.staging import SampledTokens, TokenCopy

VOCAB = 1000
BLOCK_SIZE = 16


class Moment:
    """When the device will have done all that was launched up to now: a mark, as `device_clock` has it."""

    def __init__(self, gpu: PretendedGPU, at: float) -> None:
        self._gpu, self._at = gpu, at

    def query(self) -> bool:
        return self._gpu.now() >= self._at

    def synchronize(self) -> None:
        self._gpu.skipped += max(0.0, self._at - self._gpu.now())

    def elapsed_time(self, end: Moment) -> float:
        return (end._at - self._at) * 1e3


class PretendedGPU(DeviceClock):
    """A queue of steps.

    Args:
        step_seconds: How long each takes; it can be changed.

    Attributes:
        skipped: Seconds that the host has waited.
    """

    is_there = True

    def __init__(self, step_seconds: float) -> None:
        self.step_seconds = step_seconds
        self.skipped = 0.0
        self._busy_until = 0.0

    def now(self) -> float:
        """Seconds on the clock of both."""
        return time.thread_time() + self.skipped

    def launch(self) -> None:
        """One more step, behind those that were launched before."""
        self._busy_until = max(self.now(), self._busy_until) + self.step_seconds

    def mark(self) -> Any:
        return Moment(self, self._busy_until)


class _Step(DeviceStep):
    def __init__(self, gpu: PretendedGPU, *args: Any) -> None:
        super().__init__(*args)
        self._gpu = gpu

    def forward(self, layout: Any, host: Any = None, model_forward: Any = None) -> ForwardOutput:
        slot, computed = self._staged.on_device[:2, : layout.num_requests]
        nothing = torch.zeros(1)
        return ForwardOutput(nothing, nothing, SamplingRows(slot, computed))

    def sample(self, step: ForwardOutput, with_penalties: bool) -> None:
        self.sampled.fill_(7)
        self._gpu.launch()


class _Tokens(SampledTokens):
    def __init__(self, gpu: PretendedGPU, *args: Any) -> None:
        super().__init__(*args)
        self._gpu = gpu

    def start(self, tokens: torch.Tensor) -> TokenCopy:
        copy = super().start(tokens)
        copy._done = self._gpu.mark()
        return copy


class _Executor(UniProcExecutor):
    def __init__(self, runner: CapturedModelRunner, num_gpu_blocks: int) -> None:
        worker: Any = runner
        self.worker, self.num_gpu_blocks = worker, num_gpu_blocks


def make_engine(gpu: PretendedGPU, max_num_seqs: int, max_model_len: int) -> LLMEngine:
    """An engine that plans ahead of such a device, with room for all."""
    num_blocks = 8 * max_num_seqs * (max_model_len // BLOCK_SIZE + 2)  # enough for all that is cached, too
    config = VllmConfig(
        model_config=ModelConfig(model="pretended"),
        scheduler_config=SchedulerConfig(
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=16384,
            max_model_len=max_model_len,
            async_scheduling=True,
        ),
        cache_config=CacheConfig(block_size=BLOCK_SIZE, num_gpu_blocks=num_blocks, hash_seed=b"bench"),
    )
    sizes = {
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "head_dim": 1,
        "num_hidden_layers": 1,
        "weights_per_layer": 1,
    }
    model: Any = SimpleNamespace(config=SimpleNamespace(vocab_size=VOCAB, windows={None}, **sizes))
    attention: Any = SimpleNamespace(
        name="pretended",
        on_kernels=True,
        use_cascade_attention=lambda *of: False,
        can_read_ahead=lambda *of: True,
        kv_cache_shape=lambda num_blocks, *sizes: (2, num_blocks, 1),
    )
    device = torch.device("cpu")
    runner = CapturedModelRunner(config, model, attention, device, torch.float32)
    runner._tokens = _Tokens(gpu, max_num_seqs, device)
    with mock.patch.object(captured_runner, "DeviceStep", partial(_Step, gpu)):
        runner.initialize_kv_cache(num_blocks)
    core = EngineCore(config, _Executor(runner, num_blocks))
    return LLMEngine(config, InprocClient(core), None, VOCAB, ())


def add_requests(engine: LLMEngine, name: str, count: int, prompt_len: int, output_len: int) -> None:
    """Requests that arrive at once, drawn at a temperature, whose callers want tokens at their end.

    Their prompts differ by up to a block, so that a step brings a new block to some of them.
    """
    rng = random.Random(name)
    params = SamplingParams(
        temperature=0.6, max_tokens=output_len, ignore_eos=True, output_kind=RequestOutputKind.FINAL_ONLY
    )
    for index in range(count):
        tokens = [rng.randrange(VOCAB) for _ in range(prompt_len + index % BLOCK_SIZE)]
        prompt: Any = {"prompt_token_ids": tokens}
        engine.add_request(f"{name}-{index}", prompt, params)
