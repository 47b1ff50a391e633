"""Owns one step of the data plane: a plan becomes a batch, the batch logits, the logits tokens.

The step is two calls, so that the core can work while the forward pass runs:

    execute_model   update the batch, prepare its inputs, forward, logits
    sample_tokens   sample, check drafts, keep the new tokens

Upstream: vllm/v1/worker/gpu_model_runner.py::GPUModelRunner. (It runs on a CPU as well, as its namesake does there.)
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch

from minivllm.attention.backend import AttentionBackend, AttentionMetadata
from minivllm.config import VllmConfig
from minivllm.core.scheduler_output import ModelRunnerOutput, SchedulerOutput
from minivllm.models.registry import CausalLM
from minivllm.sample.device_sampler import has_kernels
from minivllm.sample.prompt_logprob import PromptLogprobsWorker
from minivllm.sample.sampler import Sampler
from minivllm.sourcemap.registry import on_map
from minivllm.worker.async_output import AsyncModelRunnerOutput
from minivllm.worker.batch_state import BatchState
from minivllm.worker.cpu_threads import StepThreads
from minivllm.worker.input_batch import InputBatch
from minivllm.worker.prepared_batch import PreparedBatch, prepare
from minivllm.worker.request_columns import RequestColumns
from minivllm.worker.request_slots import RequestSlots
from minivllm.worker.sampling_rows import logprobs_of_requests, prompt_chunks, sampling_metadata
from minivllm.worker.staging import TokenCopy

_V1 = "vllm/v1/worker/gpu_model_runner.py::GPUModelRunner"


class ExecuteModelState(NamedTuple):
    """What `execute_model` leaves for `sample_tokens`."""

    batch: PreparedBatch
    hidden_states: torch.Tensor  # (tokens, hidden_size)
    logits: torch.Tensor  # (logits rows, vocab_size)


class GPUModelRunner:
    """Runs plans, strictly in order.

    Args:
        vllm_config: Limits and block size.
        model: On the device.
        attention: What the model's attention runs on.
        device: Where the model is.
        dtype: Of the model.
        cache_dtype: Of the KV cache; None is the model's.

    Attributes:
        device: Where the model is.
        block_size: Tokens per block.
        plans_ahead: Whether a step can be launched before the tokens of the one before it are known.
        most_in_pieces: Tokens of the longest step that is recorded without attention; 0 if none is.
        last_batch: The batch of the latest plan that scheduled anything, for whoever explains it.
    """

    plans_ahead = False
    most_in_pieces = 0

    def __init__(
        self,
        vllm_config: VllmConfig,
        model: CausalLM,
        attention: AttentionBackend[Any],
        device: torch.device,
        dtype: torch.dtype,
        cache_dtype: torch.dtype | None = None,
    ) -> None:
        self.model = model
        self.attention = attention
        with_kernels = has_kernels(device) or attention.on_kernels
        self.sampler = Sampler(vllm_config.model_config.logprobs_mode, with_kernels)
        self.prompt_logprobs_worker = PromptLogprobsWorker(vllm_config.model_config.logprobs_mode)
        self.batch = _new_batch(vllm_config)
        self.last_batch: PreparedBatch | None = None
        self.kv_caches: list[torch.Tensor] = []
        self.block_size = vllm_config.cache_config.block_size
        self.device = device
        self._threads = StepThreads(model.config, device)
        self._dtype = dtype
        self._cache_dtype = cache_dtype or dtype
        self._state: Any = None

    def initialize_kv_cache(self, num_blocks: int) -> None:
        """Allocate the pages of every layer, all zeros."""
        self.kv_caches = self.make_kv_caches(num_blocks)

    def make_kv_caches(self, num_blocks: int) -> list[torch.Tensor]:
        """Pages for every layer."""
        config = self.model.config
        shape = self.attention.kv_cache_shape(num_blocks, self.block_size, config.num_key_value_heads, config.head_dim)
        return [_zeros(shape, self._cache_dtype, self.device) for _ in range(config.num_hidden_layers)]

    @on_map("run the model", vllm=f"{_V1}.execute_model", plane="data", process="worker")
    @torch.inference_mode()
    def execute_model(self, plan: SchedulerOutput) -> ModelRunnerOutput | None:
        """Compute the logits of a plan. None means that `sample_tokens` must follow."""
        if self._state is not None:
            raise RuntimeError("execute_model was called twice without sample_tokens between")
        self.update_states(plan)
        if plan.total_num_scheduled_tokens == 0:
            return ModelRunnerOutput([], {}, [])
        batch = self.prepare_inputs(plan)
        self._state = self._compute(batch)
        self.last_batch = batch
        return None

    @on_map("sample the batch", vllm=f"{_V1}.sample_tokens", plane="data", process="worker")
    @torch.inference_mode()
    def sample_tokens(self) -> ModelRunnerOutput | AsyncModelRunnerOutput:
        """Sample from the logits of the plan that `execute_model` ran last."""
        if self._state is None:
            raise RuntimeError("sample_tokens needs an execute_model before it")
        state, self._state = self._state, None
        return self._sample(state)

    # ---- the two halves of a step, for a runner that does them in another way -------------------------------------

    def _prepare(self, plan: SchedulerOutput) -> PreparedBatch:
        return prepare(plan, self.batch, self.attention.name)

    def _compute(self, batch: PreparedBatch) -> Any:
        """Forward and logits."""
        with self._threads.of(batch.num_tokens):
            hidden = self.model_forward(batch)
            logits_indices = torch.from_numpy(batch.logits_indices).to(self.device)
            return ExecuteModelState(batch, hidden, self.model.compute_logits(hidden[logits_indices]))

    def _sample(self, state: Any) -> ModelRunnerOutput | AsyncModelRunnerOutput:
        """Tokens, scores, and the new state of the batch."""
        assert isinstance(state, ExecuteModelState), "the two halves of a step belong together"
        batch, hidden, logits = state
        columns = self.batch.columns
        metadata = sampling_metadata(batch, columns)
        tokens, scores = self.sampler.forward(logits, metadata)
        chunks = prompt_chunks(batch, columns)
        prompt_logprobs = self.prompt_logprobs_worker.compute(chunks, hidden, self.model.compute_logits)
        sampled = self.bookkeeping(batch, self.to_host(tokens))
        return ModelRunnerOutput(
            batch.req_ids,
            batch.req_id_to_index,
            sampled,
            logprobs_of_requests(batch, metadata, scores, sampled),
            prompt_logprobs,
        )

    # ---- its parts ------------------------------------------------------------------------------------------------

    @on_map("update the batch", vllm=f"{_V1}._update_states", plane="data", process="worker")
    def update_states(self, plan: SchedulerOutput) -> None:
        """Apply a plan's deltas to the persistent batch."""
        self.batch.update(plan)
        self.prompt_logprobs_worker.forget(plan.finished_req_ids)

    @on_map("prepare the inputs", vllm=f"{_V1}._prepare_inputs", plane="data", process="worker")
    def prepare_inputs(self, plan: SchedulerOutput) -> PreparedBatch:
        """Lay the plan's tokens out flat."""
        return self._prepare(plan)

    @on_map("forward", vllm=f"{_V1}._model_forward", plane="data", process="worker")
    def model_forward(self, batch: PreparedBatch) -> Any:
        """Hidden states of every token of the batch: (tokens, hidden_size)."""
        return self._forward(batch)

    def _forward(self, batch: PreparedBatch) -> Any:
        metadata = AttentionMetadata(
            query_start_loc=batch.query_start_loc,
            seq_lens=batch.seq_lens,
            block_table=batch.block_table,
            slot_mapping=batch.slot_mapping,
            block_size=self.block_size,
        )
        return self.model.forward(
            torch.from_numpy(batch.input_ids).to(self.device),
            torch.from_numpy(batch.positions).to(self.device),
            self.kv_caches,
            self.attention,
            self.attention.prepare(metadata, self.device, self._dtype),
        )

    @on_map("wait for the device", vllm=f"{_V1}._to_list", plane="data", process="worker")
    def to_host(self, tokens: torch.Tensor | TokenCopy) -> list[int]:
        """Fetch the sampled tokens, (logits rows,): the one place in a step where the CPU waits for the device."""
        token_ids: list[int] = tokens.tolist()
        return token_ids

    @on_map("keep the new tokens", vllm=f"{_V1}._bookkeeping_sync", plane="data", process="worker")
    def bookkeeping(self, batch: PreparedBatch, tokens: list[int]) -> list[list[int]]:
        """Split the sampled tokens by request, and store them: the next step's inputs are read from that store."""
        return self._keep(batch, tokens)

    def _keep(self, batch: PreparedBatch, tokens: list[int]) -> list[list[int]]:
        sampled: list[list[int]] = []
        start = 0
        for place, drafts, samples in zip(batch.places.tolist(), batch.drafts, batch.samples.tolist(), strict=True):
            end = start + 1 + len(drafts)
            kept = accepted(drafts, tokens[start:end]) if samples else []
            self.batch.columns.append_tokens(place, kept)
            sampled.append(kept)
            start = end
        return sampled


def accepted(drafts: list[int], tokens: list[int]) -> list[int]:
    """The tokens that stand: up to and including the first that differs from its draft, or all of them.

    `tokens[i]` was sampled as if the drafts before it were right. A draft that equals it is what would have been
    sampled anyway, so the output is the same with and without drafts, greedy or not.
    """
    matches = 0
    while matches < len(drafts) and drafts[matches] == tokens[matches]:
        matches += 1
    return tokens[: matches + 1]


def _new_batch(vllm_config: VllmConfig) -> BatchState:
    limits = vllm_config.scheduler_config
    columns = RequestColumns(
        limits.max_num_seqs,
        limits.max_model_len,
        vllm_config.cache_config.block_size,
        vllm_config.model_config.seed,
    )
    if vllm_config.batch == "rows":
        return InputBatch(columns, limits.max_num_seqs)
    return RequestSlots(columns, limits.max_num_seqs)


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Zeros, as vLLM's pages are at the start: whoever reads a slot too early reads a number, the same in every run.

    On a CPU the memory comes from the operating system already cleared, so that an untouched page costs nothing.
    """
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    size, alignment = math.prod(shape) * dtype.itemsize, 64
    memory = np.zeros(size + alignment, dtype=np.uint8)
    start = -memory.ctypes.data % alignment
    return torch.from_numpy(memory[start : start + size]).view(dtype).view(shape)
