"""Owns how much of a GPU's memory is left for the KV cache: the largest step is run once, and its peak is measured.

    total ------------------------------------------------------------------------------------------|
    share of it that we may take -------------------------------------------------------|           |
    | others | weights | largest step, at its peak | a graph's own | buffers | KV cache |           |

A formula would have to know what every library allocates on the way; a run knows.

Upstream: vllm/v1/worker/gpu_worker.py::Worker.determine_available_memory, GPUModelRunner.profile_run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from minivllm.config import SchedulerConfig
from minivllm.sample.metadata import SamplingMetadata
from minivllm.worker.gpu_model_runner import GPUModelRunner
from minivllm.worker.kv_cache_sizing import mib
from minivllm.worker.prepared_batch import PreparedBatch

# As vLLM's default.
DEFAULT_UTILIZATION = 0.9


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """What a GPU's memory is for, in bytes.

    Attributes:
        total: All of it.
        utilization: Share of it that may be taken.
        others: Taken by other processes, by libraries and by the driver.
        weights: What the model takes.
        step: What the largest step takes beyond that, at its peak.
        graphs: The same for the largest steps that are recorded, as a whole and in pieces. Their memory is never given
            back, and has room for the smaller ones.
        buffers: What a device keeps of each request.
    """

    total: int
    utilization: float
    others: int
    weights: int
    step: int
    graphs: int
    buffers: int

    @property
    def for_kv_cache(self) -> int:
        taken = self.others + self.weights + self.step + self.graphs + self.buffers
        return max(0, int(self.total * self.utilization) - taken)

    def __str__(self) -> str:
        return (
            f"gpu_memory_utilization is {self.utilization:g}: {mib(int(self.total * self.utilization))} of "
            f"{mib(self.total)}, less {mib(self.weights)} of weights, {mib(self.step)} at the peak of the largest "
            f"step, {mib(self.graphs)} for graphs, {mib(self.buffers)} of buffers, {mib(self.others)} of others"
        )


def plan_memory(runner: GPUModelRunner, limits: SchedulerConfig, utilization: float | None) -> MemoryPlan:
    """Run the largest steps on a GPU, with weights but without a KV cache, and measure."""
    device = runner.device
    weights = torch.cuda.memory_allocated(device)
    requests = limits.max_num_seqs
    step = _peak(lambda: run_step(runner, limits.max_num_batched_tokens, requests, limits.max_model_len), device)
    graphs = buffers = 0
    if runner.plans_ahead:
        graphs = _peak(lambda: run_step(runner, requests, requests, limits.max_model_len), device)
        longest = runner.most_in_pieces
        if longest == limits.max_num_batched_tokens:
            graphs += step
        elif longest:
            graphs += _peak(lambda: run_step(runner, longest, requests, limits.max_model_len), device)
        buffers = 4 * (requests + 1) * (limits.max_model_len + 1)  # tokens; what else there is, is small beside them
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(device)
    others = max(0, total - free - torch.cuda.memory_reserved(device))
    return MemoryPlan(total, utilization or DEFAULT_UTILIZATION, others, weights, step, graphs, buffers)


def _peak(run: Callable[[], None], device: torch.device) -> int:
    """Bytes that PyTorch takes while something runs, beyond those before."""
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    run()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before


@torch.inference_mode()
def run_step(runner: GPUModelRunner, num_tokens: int, num_requests: int, max_model_len: int) -> None:
    """Compute and sample a step of new prompts that are never written to a cache.

    Args:
        runner: Before its cache is there.
        num_tokens: Tokens of the step, or fewer where the requests cannot have so many.
        num_requests: Requests that share them.
        max_model_len: The most tokens of one.
    """
    requests = min(num_requests, num_tokens)
    lengths = np.full(requests, num_tokens // requests, dtype=np.int32)
    lengths[: num_tokens % requests] += 1
    lengths = np.minimum(lengths, max_model_len).astype(np.int32)
    caches, runner.kv_caches = runner.kv_caches, runner.make_kv_caches(1)
    try:
        batch = _batch_of(lengths, runner)
        hidden = GPUModelRunner._forward(runner, batch)
        logits = runner.model.compute_logits(hidden[torch.from_numpy(batch.logits_indices).to(runner.device)])
        runner.sampler.forward(logits, drawn(requests))
    finally:
        runner.kv_caches = caches


def _batch_of(lengths: np.ndarray, runner: GPUModelRunner) -> PreparedBatch:
    requests, total, longest = len(lengths), int(lengths.sum()), int(lengths.max())
    batch = PreparedBatch(
        req_ids=[""] * requests,
        req_id_to_index={},
        places=np.arange(requests),
        num_scheduled=lengths,
        seq_lens=lengths,
        samples=np.ones(requests, dtype=np.bool_),
        num_tokens=total,
        longest=longest,
        all_sample=True,
        drafts=[[]] * requests,
        has_drafts=False,
        columns=runner.batch.columns,
        attention_backend=runner.attention.name,
    )
    # Nobody has these tokens and blocks. Our kernels skip a slot of -1; other backends write all over the first slot.
    batch.input_ids = np.zeros(total, dtype=np.int64)
    batch.slot_mapping = np.full(total, -1 if runner.attention.on_kernels else 0, dtype=np.int64)
    batch.block_table = np.zeros((requests, -(-longest // runner.block_size)), dtype=np.int32)
    return batch


def drawn(requests: int) -> SamplingMetadata:
    """Every row is drawn, with every filter: what takes most memory."""
    return SamplingMetadata(
        req_ids=[""] * requests,
        temperature=np.ones(requests, dtype=np.float32),
        top_k=np.full(requests, 50, dtype=np.int32),
        top_p=np.full(requests, 0.9, dtype=np.float32),
        min_p=np.full(requests, 0.01, dtype=np.float32),
        seed=np.zeros(requests, dtype=np.uint64),
        position=np.ones(requests, dtype=np.int64),
    )
