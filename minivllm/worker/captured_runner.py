"""Owns a runner whose steps stay on the device: replayed as graphs where they can be, and never waited for.

    update the batch -> prepare -> bring the device's slots up to date -> stage ->   replay
                                                                                or   forward, sample on the device
                                                                                or   forward, sample with the host
    later, when somebody asks for the output:  wait for the tokens, note them in the columns

The host's columns stay the truth about requests, and the device's slots mirror them, with one exception: a token that
was just sampled is on the device first. Until it arrives the columns hold a placeholder for it, so that the next step
can be prepared; on the device that step reads the token itself. Only rules that look at the output need the host to
wait, and only for the steps before.

Upstream: vllm/v1/worker/gpu/model_runner.py::GPUModelRunner.execute_model.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, cast

import numpy as np
import torch

from minivllm.attention.backend import AttentionMetadata
from minivllm.attention.paged import PagedBackend, parts_of
from minivllm.config import VllmConfig
from minivllm.core.scheduler_output import LogprobsLists, ModelRunnerOutput, SchedulerOutput
from minivllm.models.registry import CausalLM
from minivllm.sample.metadata import SamplingMetadata
from minivllm.worker.cuda_graphs import CudaGraphs, Dispatch, GraphDispatcher, StepShape, most_in_pieces
from minivllm.worker.device_mirror import DeviceMirror
from minivllm.worker.device_requests import Limits
from minivllm.worker.device_step import DeviceStep, ForwardOutput, Layout
from minivllm.worker.gpu_model_runner import ExecuteModelState, GPUModelRunner
from minivllm.worker.piecewise_graphs import CudaRecorder, PiecewiseGraphs
from minivllm.worker.prepared_batch import PreparedBatch, prepare
from minivllm.worker.request_slots import RequestSlots
from minivllm.worker.sampling_rows import logprobs_of_requests, prompt_chunks, sampling_metadata
from minivllm.worker.staging import SampledTokens, TokenCopy

# In the columns: a token that is sampled, and still on its way.
UNKNOWN_TOKEN = -1
# How long recording may hold up the start; what is left is recorded when it is needed, pieces when again.
_CAPTURE_SECONDS = 3.0
# How much of that may go to pieces where decodes are whole: for those of the longest steps, which are met first.
_PIECES_SECONDS = 0.5

# Replayed; launched (in pieces or not) and sampled on the device; sampled with the host; all as a runner without graphs
# does it.
Way = Literal["graph", "device", "host", "checked"]


class DeviceState(NamedTuple):
    """What `execute_model` leaves for `sample_tokens`."""

    batch: PreparedBatch
    output: ForwardOutput | None  # None: its tokens are sampled already


class LatestDecodes(NamedTuple):
    """A step of decodes that was replayed, if it is the latest step: the next one may be the same, a token further."""

    batch: PreparedBatch
    req_ids: list[str]  # of it, in the order of the plan; without those that the plan brought


@dataclass(slots=True, eq=False)
class StepInFlight:
    """A step whose tokens are on their way: an `AsyncModelRunnerOutput`."""

    runner: CapturedModelRunner
    batch: PreparedBatch
    copy: TokenCopy
    metadata: SamplingMetadata | None = None
    scores: LogprobsLists | None = None
    prompt_logprobs: dict[str, LogprobsLists] | None = None
    output: ModelRunnerOutput | None = None

    @property
    def req_ids(self) -> list[str]:
        return self.batch.req_ids

    def get_output(self) -> ModelRunnerOutput:
        if self.output is None:
            self.output = self.runner.finish(self)
        return self.output


class CapturedModelRunner(GPUModelRunner):
    """GPUModelRunner with graphs, for a batch in slots.

    Args:
        vllm_config: Limits and block size.
        model: On the device.
        attention: On our kernels; which steps are captured as a whole is for the mode to say.
        device: A GPU. On a CPU, in Triton's interpreter, steps take the same ways, only that nothing is recorded.
        dtype: Of the model.
        cache_dtype: Of the KV cache.

    Attributes:
        last_dispatch: How the latest step ran, and why.
    """

    plans_ahead = True

    def __init__(
        self,
        vllm_config: VllmConfig,
        model: CausalLM,
        attention: Any,
        device: torch.device,
        dtype: torch.dtype,
        cache_dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(vllm_config, model, attention, device, dtype, cache_dtype)
        assert isinstance(self.batch, RequestSlots), "what a graph reads stays in its slot"
        self.batch.is_for_kernels = True
        limits = vllm_config.scheduler_config
        self.last_dispatch: Dispatch | None = None
        self._limits = Limits.of(limits, self.block_size)
        mode = vllm_config.cudagraph_mode or "FULL_AND_PIECEWISE"
        is_for_cascade = None in model.config.windows and not vllm_config.model_config.disable_cascade_attn
        self._may_share_prefix = is_for_cascade
        longest = most_in_pieces(limits.max_num_batched_tokens, model.config.weights_per_layer)
        self._dispatcher = GraphDispatcher.for_mode(mode, limits.max_num_seqs, longest)
        self.most_in_pieces = self._dispatcher.largest_pieces
        self._tokens = SampledTokens(limits.max_num_seqs, device)
        self._in_flight: list[StepInFlight] = []
        self._way: Way = "device"
        self._planned: list[str] = []
        # A new or resumed request of the step begins behind blocks, which others of the step may be about to fill.
        self._brings_hits = False
        self._latest: LatestDecodes | None = None

    @torch.inference_mode()
    def initialize_kv_cache(self, num_blocks: int) -> None:
        super().initialize_kv_cache(num_blocks)
        attention = cast("PagedBackend[Any]", self.attention)
        self._step = DeviceStep(self.model, self.kv_caches, attention, self._limits)
        self._mirror = DeviceMirror(self.batch.columns, self._step)
        self._graphs = CudaGraphs(self._step.run, self.device)
        is_gpu = self.device.type == "cuda"
        recorder = CudaRecorder(self.device) if is_gpu else None
        inputs = self._step.model_forward, self._step.slot_mapping
        self._pieces = PiecewiseGraphs(*inputs, attention, recorder, self.most_in_pieces)
        if is_gpu:  # whole graphs first: they serve most steps; pieces have of the time that is left
            end, shapes = time.monotonic() + _CAPTURE_SECONDS, self._dispatcher.first_shapes()
            self._graphs.capture(shapes, _CAPTURE_SECONDS)
            seconds = min(end - time.monotonic(), _PIECES_SECONDS if shapes else _CAPTURE_SECONDS)
            self._pieces.capture(self._dispatcher.first_pieces(), seconds)

    # ---- execute --------------------------------------------------------------------------------------------------

    def _prepare(self, plan: SchedulerOutput) -> PreparedBatch:
        latest, self._latest = self._latest, None
        self._planned = plan.scheduled_cached_reqs.req_ids
        hits = (new.num_computed_tokens for new in plan.scheduled_new_reqs)
        self._brings_hits = any(hits) or bool(plan.scheduled_cached_reqs.resumed_req_ids)
        if latest is not None and (batch := self._next_of(latest, plan)):
            return batch
        if plan.scheduled_spec_decode_tokens:
            self._finish_all()  # drafts are checked on the host, against tokens that it must know
        taken = [new.req_id for new in plan.scheduled_new_reqs]
        taken += plan.scheduled_cached_reqs.resumed_req_ids
        for req_id in taken:
            self._mirror.take(self.batch.place_of(req_id))
        batch = prepare(plan, self.batch, self.attention.name)
        batch.prefix_tokens = self._shared_prefix(plan, batch)
        self._way, self.last_dispatch = self._dispatch(batch)
        batch.graph_mode = self.last_dispatch.mode
        batch.num_tokens_padded = self.last_dispatch.shape.num_tokens
        batch.generations, batch.takes = self._mirror.generation[batch.places], self._mirror.takes
        return batch

    def _next_of(self, latest: LatestDecodes, plan: SchedulerOutput) -> PreparedBatch | None:
        """The batch of a plan that lets the decodes of the step before decode on; None of any other plan.

        Nothing is to be found out again then. The same requests have the same places; all contexts grew by one token,
        so that their order stays; they run as the same graph; and what the host need not sample now it need not later.
        """
        cached, before = plan.scheduled_cached_reqs, latest.batch
        is_next = (
            plan.total_num_scheduled_tokens == before.num_tokens
            and cached.req_ids == latest.req_ids
            and len(cached.req_ids) == before.num_tokens
            and not cached.resumed_req_ids
            and not plan.scheduled_spec_decode_tokens
        )
        if not is_next:
            return None
        batch = before.one_further(has_new_blocks=any(cached.new_block_ids))
        return batch if self._shared_prefix(plan, batch) == before.prefix_tokens else None

    def _shared_prefix(self, plan: SchedulerOutput, batch: PreparedBatch) -> int:
        """To how many leading tokens all decodes of a step attend together; 0 if each reads its own context."""
        if plan.num_common_prefix_blocks == 0 or not self._may_share_prefix or batch.has_drafts:
            return 0
        lengths, seq_lens = batch.num_scheduled, batch.seq_lens
        num_decodes = len(lengths)
        if not batch.is_one_token_each:
            num_decodes = parts_of(lengths, seq_lens).num_decodes
        if num_decodes < 2:
            return 0
        tokens = min(plan.num_common_prefix_blocks * self.block_size, int(seq_lens[:num_decodes].min()))
        config = self.model.config
        token_bytes = 2 * config.num_key_value_heads * config.head_dim * self._cache_dtype.itemsize
        return tokens if self.attention.use_cascade_attention(num_decodes, tokens, token_bytes) else 0

    def _dispatch(self, batch: PreparedBatch) -> tuple[Way, Dispatch]:
        way, found = self._find_way(batch)
        if batch.prefix_tokens:
            found = replace(found, reason=f"{found.reason}; decodes share a prefix of {batch.prefix_tokens} tokens")
        return way, found

    def _find_way(self, batch: PreparedBatch) -> tuple[Way, Dispatch]:
        lengths = batch.num_scheduled
        if batch.has_drafts:
            own = StepShape(batch.num_tokens, len(lengths), 0)
            return "checked", Dispatch("NONE", own, "drafts are checked on the host")
        found = self._dispatcher.dispatch(lengths)
        if found.mode == "FULL" and found.shape.query_len != 1:
            batch.prefix_tokens = 0  # a graph of prompts and decodes does not tell them apart
        elif found.mode == "FULL" and batch.prefix_tokens:
            found = replace(found, shape=replace(found.shape, with_prefix=True))
        obstacle = self._mirror.why_host(batch.places, batch.seq_lens - lengths, batch.seq_lens)
        if obstacle is None and self._mirror.has_penalties(batch.places):
            found = replace(found, shape=replace(found.shape, with_penalties=True))
        if found.mode == "PIECEWISE":  # sampling comes after the pieces, wherever it is done
            why = self._pieces.why_not(found.shape.num_tokens)
            reasons = "; ".join(filter(None, (found.reason, obstacle, why)))
            return "device" if obstacle is None else "host", replace(found, reason=reasons)
        if obstacle is not None:
            own = StepShape(batch.num_tokens, len(lengths), 0)
            return "host", Dispatch("NONE", own, obstacle)
        if found.mode == "NONE":
            return "device", found
        if self._brings_hits and found.shape.query_len == 1 and self._can_read_ahead(found.shape.num_requests):
            own = StepShape(batch.num_tokens, len(lengths), 1, with_penalties=found.shape.with_penalties)
            return "device", Dispatch(
                "NONE", own, "graphs of decodes read ahead, and a block may be filled in this step"
            )
        if self.device.type == "cuda" and (why := self._graphs.why_not(found.shape)):
            found = replace(found, mode="NONE", reason=f"{found.reason}; {why}")
        return "graph", found

    def _can_read_ahead(self, num_decodes: int) -> bool:
        heads = self.model.config.num_attention_heads
        return self.attention.can_read_ahead(num_decodes, heads, self.kv_caches[0])

    def _compute(self, batch: PreparedBatch) -> DeviceState | ExecuteModelState:
        if self._way == "checked":
            return super()._compute(batch)
        self._mirror.update(batch)
        assert self.last_dispatch is not None, "a batch is prepared before it is computed"
        shape = self.last_dispatch.shape
        if self._way == "graph":
            self.replay(shape)
            return DeviceState(batch, None)
        output = self.model_forward(batch)
        if self._way == "host":
            return DeviceState(batch, output)
        self._step.sample(output, shape.with_penalties)
        return DeviceState(batch, None)

    def replay(self, shape: StepShape) -> None:
        """Forward and sampling as one graph."""
        self._graphs.replay(shape)

    def _forward(self, batch: PreparedBatch) -> Any:
        if self._way == "checked":
            return super()._forward(batch)
        lengths, found = batch.num_scheduled, self.last_dispatch
        assert found is not None, "a batch is prepared before it is computed"
        parts, with_prefix = parts_of(lengths, batch.seq_lens), batch.prefix_tokens > 0
        layout = Layout(
            found.shape.num_tokens, len(lengths), parts, with_prefix, not self._brings_hits, self._way == "host"
        )
        host = AttentionMetadata(
            batch.query_start_loc, batch.seq_lens, batch.block_table, batch.slot_mapping, self.block_size
        )
        return self._step.forward(layout, host, self._pieces.run if found.mode == "PIECEWISE" else None)

    # ---- sample ---------------------------------------------------------------------------------------------------

    def _sample(self, state: Any) -> Any:
        if isinstance(state, ExecuteModelState):
            return super()._sample(state)
        batch, output = state
        if output is None:
            step = StepInFlight(self, batch, self._tokens.start(self._step.sampled[: len(batch.req_ids)]))
        else:
            step = self._sample_with_host(batch, output)
        self._mirror.note_sampled(batch, UNKNOWN_TOKEN)
        self._in_flight.append(step)
        is_replayed = self._way == "graph" and batch.graph_mode == "FULL"
        if is_replayed and batch.is_one_token_each and batch.all_sample:
            self._latest = LatestDecodes(batch, self._planned)
        return step

    def _sample_with_host(self, batch: PreparedBatch, output: ForwardOutput) -> StepInFlight:
        logits = self.model.compute_logits(output.last_hidden)
        self._finish_all()  # rules look at the output, so the host must know it; the forward pass runs meanwhile
        columns = self.batch.columns
        metadata = sampling_metadata(batch, columns)
        tokens, scores = self.sampler.forward(logits, metadata)
        chunks = prompt_chunks(batch, columns)
        assert output.hidden is not None, "a step that samples with the host keeps them"
        prompt_logprobs = self.prompt_logprobs_worker.compute(chunks, output.hidden, self.model.compute_logits)
        self._step.requests.keep(output.rows.slot, output.rows.position, tokens)
        return StepInFlight(self, batch, self._tokens.start(tokens), metadata, scores, prompt_logprobs)

    def _finish_all(self) -> None:
        """Wait for all tokens that are on their way."""
        for step in list(self._in_flight):
            step.get_output()

    def finish(self, step: StepInFlight) -> ModelRunnerOutput:
        """Wait for the tokens of a step, and note them."""
        batch = step.batch
        if step in self._in_flight:  # not if it has failed before
            self._in_flight.remove(step)
        sampled = self.bookkeeping(batch, self.to_host(step.copy))
        scores = None if step.metadata is None else logprobs_of_requests(batch, step.metadata, step.scores, sampled)
        return ModelRunnerOutput(batch.req_ids, batch.req_id_to_index, sampled, scores, step.prompt_logprobs)

    def _keep(self, batch: PreparedBatch, tokens: list[int]) -> list[list[int]]:
        if batch.generations is None or batch.has_drafts:
            return super()._keep(batch, tokens)
        samples = batch.samples.tolist()
        if min(tokens) < 0:
            for req_id, token, is_sampled in zip(batch.req_ids, tokens, samples, strict=True):
                if is_sampled and token < 0:
                    raise FloatingPointError(
                        f"request {req_id}: the maximum of its logits is not a finite number: "
                        "the weights or a kernel are broken"
                    )
        self._mirror.note_arrived(batch, np.array(tokens, dtype=np.int32))
        return [[token] if is_sampled else [] for token, is_sampled in zip(tokens, samples, strict=True)]
