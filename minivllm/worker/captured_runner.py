"""Owns a runner whose steps are replayed as graphs where they can be, and run like any other's where they cannot.

    update the batch -> prepare -> is there a graph for it?  yes: bring the device's slots up to date, stage, replay
                                                             no:  launch by launch, the reason is in `last_dispatch`

Both ways leave the same state behind: the host's columns stay the truth, and the device's slots are a mirror of them.
What a replay samples is in the mirror at once; what the other way samples is missing there, so such a slot is written
anew before its next replay: once a request, when its prompt is done.

Upstream: vllm/v1/worker/gpu/model_runner.py::GPUModelRunner.execute_model.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from minivllm.attention.triton import TritonBackend
from minivllm.config import VllmConfig
from minivllm.core.scheduler_output import ModelRunnerOutput, SchedulerOutput
from minivllm.models.registry import CausalLM
from minivllm.worker.cuda_graphs import CudaGraphs, Dispatch, GraphDispatcher, StepShape
from minivllm.worker.device_step import DeviceStep, Draw, Limits
from minivllm.worker.gpu_model_runner import ExecuteModelState, GPUModelRunner
from minivllm.worker.prepared_batch import PreparedBatch
from minivllm.worker.request_columns import NO_LOGPROBS
from minivllm.worker.request_slots import RequestSlots
from minivllm.worker.staging import SampledTokens, TokenCopy

_UNKNOWN = -1


class ReplayedStep(NamedTuple):
    """What `execute_model` leaves for `sample_tokens` after a replay."""

    batch: PreparedBatch
    tokens: TokenCopy


class CapturedModelRunner(GPUModelRunner):
    """GPUModelRunner with graphs.

    Args:
        vllm_config: Limits and block size.
        model: On the device.
        attention: Our own kernels: they can be captured.
        device: A GPU. On a CPU, in Triton's interpreter, steps take the same way, only that nothing is recorded.
        dtype: Of the model and the cache.

    Attributes:
        last_dispatch: How the latest step ran, and why.
    """

    def __init__(
        self,
        vllm_config: VllmConfig,
        model: CausalLM,
        attention: TritonBackend,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        super().__init__(vllm_config, model, attention, device, dtype)
        limits = vllm_config.scheduler_config
        self.last_dispatch: Dispatch | None = None
        self._limits = limits
        self._dispatcher = GraphDispatcher(limits.max_num_seqs)
        self._tokens = SampledTokens(limits.max_num_seqs, device)
        self._replayed: ReplayedStep | None = None
        # How many tokens and blocks of each slot the device knows.
        self._known_tokens = np.full(limits.max_num_seqs, _UNKNOWN, dtype=np.int32)
        self._known_blocks = np.zeros(limits.max_num_seqs, dtype=np.int32)

    @torch.inference_mode()
    def initialize_kv_cache(self, num_blocks: int) -> None:
        super().initialize_kv_cache(num_blocks)
        shapes = self._dispatcher.shapes()
        most_tokens = max(shape.num_tokens for shape in shapes)
        limits = Limits(self._limits.max_num_seqs, most_tokens, self._limits.max_model_len, self._block_size)
        self._step = DeviceStep(self.model, self.kv_caches, limits)
        self._graphs: CudaGraphs | None = None
        if self._device.type == "cuda":
            self._graphs = CudaGraphs(self._step.run, shapes)
            self._graphs.capture()

    @torch.inference_mode()
    def execute_model(self, plan: SchedulerOutput) -> ModelRunnerOutput | None:
        if self._state is not None or self._replayed is not None:
            raise RuntimeError("execute_model was called twice without sample_tokens between")
        self.update_states(plan)
        self._forget(plan)
        if plan.total_num_scheduled_tokens == 0:
            return ModelRunnerOutput([], {}, [])
        batch = self.prepare_inputs(plan)
        self.last_dispatch = self._dispatch(batch)
        if self.last_dispatch.mode == "NONE":
            self._launch(batch)
        else:
            self._replay(batch, self.last_dispatch.shape)
        return None

    @torch.inference_mode()
    def sample_tokens(self) -> ModelRunnerOutput:
        if self._replayed is None:
            return super().sample_tokens()
        batch, copy = self._replayed
        self._replayed = None
        tokens = copy.tokens()[: len(batch.req_ids)]
        for index, token in enumerate(tokens):
            if batch.samples[index] and token < 0:
                raise FloatingPointError(
                    f"request {batch.req_ids[index]}: the maximum of its logits is not a finite number: "
                    "the weights or a kernel are broken"
                )
        self._known_tokens[batch.places[batch.samples]] += 1
        sampled = self.bookkeeping(batch, tokens)
        return ModelRunnerOutput(batch.req_ids, {req_id: i for i, req_id in enumerate(batch.req_ids)}, sampled)

    def _dispatch(self, batch: PreparedBatch) -> Dispatch:
        query_lens = np.diff(batch.query_start_loc).tolist()
        obstacle = self._obstacle(batch)
        if obstacle is not None:
            return Dispatch("NONE", StepShape(sum(query_lens), len(query_lens), 0), obstacle)
        return self._dispatcher.dispatch(query_lens)

    def _obstacle(self, batch: PreparedBatch) -> str | None:
        """What of a batch only the ordinary way can do; None if nothing."""
        columns, places = self.batch.columns, batch.places
        if not isinstance(self.batch, RequestSlots):
            return "rows move, and the device's slots do not"
        if any(batch.drafts):
            return "drafts are checked on the host"
        if (columns.num_logprobs[places] != NO_LOGPROBS).any() or (
            columns.num_prompt_logprobs[places] != NO_LOGPROBS
        ).any():
            return "a request asks for scores"
        if columns.has_rules[places].any():
            return "a request has rules for its logits"
        if (columns.temperature[places] > 0).any():
            # A seed must give the same tokens on both ways, and the ordinary way draws with other noise.
            return "a request draws at random, with the host's noise"
        return None

    def _launch(self, batch: PreparedBatch) -> None:
        """The ordinary way."""
        hidden = self.model_forward(batch)
        logits_indices = torch.from_numpy(batch.logits_indices).to(self._device)
        self._state = ExecuteModelState(batch, hidden, self.model.compute_logits(hidden[logits_indices]))
        self.last_batch = batch

    def _replay(self, batch: PreparedBatch, shape: StepShape) -> None:
        """The same as one call."""
        self._update_slots(batch.places)
        scheduled = np.diff(batch.query_start_loc)
        computed = batch.seq_lens - scheduled
        self._step.stage(batch.places.tolist(), computed.tolist(), scheduled.tolist(), batch.samples.tolist())
        if self._graphs is None:
            self._step.run(shape)
        else:
            self._graphs.replay(shape)
        self._replayed = ReplayedStep(batch, self._tokens.start(self._step.sampled[: shape.num_requests]))
        self.last_batch = replace(batch, graph_mode="FULL")

    def _update_slots(self, places: NDArray[np.intp]) -> None:
        """Bring the device's slots up to date with the columns."""
        columns = self.batch.columns
        tables = columns.block_table
        for place in places[self._known_tokens[places] != columns.num_tokens[places]].tolist():
            tokens = columns.token_ids[place, : columns.num_tokens[place]].tolist()
            blocks = tables.ids[place, : tables.num_blocks[place]].tolist()
            draw = Draw(float(columns.temperature[place]))
            self._step.place(place, tokens, int(columns.num_prompt_tokens[place]), blocks, draw)
            self._known_tokens[place], self._known_blocks[place] = len(tokens), len(blocks)
        for place in places[self._known_blocks[places] != tables.num_blocks[places]].tolist():
            start, end = int(self._known_blocks[place]), int(tables.num_blocks[place])
            self._step.append_blocks(place, start, tables.ids[place, start:end].tolist())
            self._known_blocks[place] = end

    def _forget(self, plan: SchedulerOutput) -> None:
        """Slots that got another request, or other blocks, must be written anew."""
        taken = [new.req_id for new in plan.scheduled_new_reqs]
        taken += plan.scheduled_cached_reqs.resumed_req_ids
        for req_id in taken:
            self._known_tokens[self.batch.place_of(req_id)] = _UNKNOWN
