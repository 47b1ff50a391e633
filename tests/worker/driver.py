"""Drives a worker by hand-made plans, with a scheduler's bookkeeping and none of its decisions."""

from __future__ import annotations

from pathlib import Path

from minivllm.config import BatchKind, CacheConfig, ModelConfig, SchedulerConfig, VllmConfig
from minivllm.core.scheduler_output import (
    CachedRequestData,
    LogprobsLists,
    ModelRunnerOutput,
    NewRequestData,
    SchedulerOutput,
)
from minivllm.sampling_params import SamplingParams
from minivllm.worker.prepared_batch import BatchFacts
from minivllm.worker.worker import Worker

GREEDY = SamplingParams(temperature=0.0)


def make_worker(
    model: Path | str,
    batch: BatchKind = "slots",
    *,
    block_size: int = 4,
    max_num_seqs: int = 8,
    blocks: int = 200,
    max_model_len: int = 128,
    seed: int = 0,
) -> Worker:
    config = VllmConfig(
        model_config=ModelConfig(model=str(model), device="cpu", seed=seed),
        cache_config=CacheConfig(block_size=block_size, num_gpu_blocks=blocks),
        scheduler_config=SchedulerConfig(max_num_seqs=max_num_seqs, max_model_len=max_model_len),
        batch=batch,
    )
    worker = Worker(config)
    worker.load_model()
    worker.initialize_cache(worker.determine_num_gpu_blocks())
    return worker


class PlanDriver:
    """Keeps, per request, what a scheduler would: tokens, blocks, computed count."""

    def __init__(self, worker: Worker, block_size: int = 4) -> None:
        self.worker = worker
        self.block_size = block_size
        self.tokens: dict[str, list[int]] = {}
        self.prompt_len: dict[str, int] = {}
        self.computed: dict[str, int] = {}
        self.blocks: dict[str, list[int]] = {}
        self.logprobs: dict[str, list[list[float]]] = {}
        self.ranks: dict[str, list[int]] = {}
        self.prompt_logprobs: dict[str, LogprobsLists] = {}
        self._params: dict[str, SamplingParams] = {}
        self._seen: set[str] = set()
        self._preempted: set[str] = set()
        self._finished: set[str] = set()
        self._next_block = 1

    def add(self, req_id: str, prompt: list[int], params: SamplingParams = GREEDY) -> None:
        self.tokens[req_id] = list(prompt)
        self.prompt_len[req_id] = len(prompt)
        self.computed[req_id] = 0
        self.blocks[req_id] = []
        self._params[req_id] = params

    def share_prefix(self, req_id: str, other: str, num_tokens: int) -> None:
        """Let a request begin with another one's first blocks, as a prefix hit does."""
        assert num_tokens % self.block_size == 0
        self.blocks[req_id] = self.blocks[other][: num_tokens // self.block_size]
        self.computed[req_id] = num_tokens

    def finish(self, req_id: str) -> None:
        self._finished.add(req_id)

    def output(self, req_id: str) -> list[int]:
        return self.tokens[req_id][self.prompt_len[req_id] :]

    def debt(self, req_id: str) -> int:
        return len(self.tokens[req_id]) - self.computed[req_id]

    def step(
        self,
        scheduled: dict[str, int],
        *,
        drafts: dict[str, list[int]] | None = None,
        preempt: set[str] | None = None,
    ) -> ModelRunnerOutput:
        """Run one plan and take its output in."""
        plan = self.plan(scheduled, drafts or {}, preempt or set())
        output = self.worker.execute_model(plan)
        if output is None:
            output = self.worker.sample_tokens()
        for req_id, new_tokens in zip(output.req_ids, output.sampled_token_ids, strict=True):
            self.tokens[req_id] += new_tokens
            self.computed[req_id] -= len((drafts or {}).get(req_id, [])) - max(len(new_tokens) - 1, 0)
        for req_id, scores in (output.logprobs or {}).items():
            self.logprobs.setdefault(req_id, []).extend(scores.logprobs)
            self.ranks.setdefault(req_id, []).extend(scores.sampled_token_ranks)
        for req_id, scores in (output.prompt_logprobs_dict or {}).items():
            self.prompt_logprobs.setdefault(req_id, scores)
        return output

    def plan(self, scheduled: dict[str, int], drafts: dict[str, list[int]], preempt: set[str]) -> SchedulerOutput:
        for req_id in preempt:
            self.computed[req_id], self.blocks[req_id] = 0, []
        new_blocks = {req_id: self._grow(req_id, n) for req_id, n in scheduled.items()}
        new = [req_id for req_id in scheduled if req_id not in self._seen]
        cached = [req_id for req_id in scheduled if req_id in self._seen]
        resumed = self._preempted & set(cached)
        plan = SchedulerOutput(
            scheduled_new_reqs=[
                NewRequestData(r, self.tokens[r], self._params[r], list(self.blocks[r]), self.computed[r]) for r in new
            ],
            scheduled_cached_reqs=CachedRequestData(
                req_ids=cached,
                resumed_req_ids=resumed,
                all_token_ids={r: list(self.tokens[r]) for r in resumed},
                new_block_ids=[list(self.blocks[r]) if r in resumed else new_blocks[r] or None for r in cached],
                num_computed_tokens=[self.computed[r] for r in cached],
                num_output_tokens=[len(self.output(r)) for r in cached],
            ),
            num_scheduled_tokens=scheduled,
            total_num_scheduled_tokens=sum(scheduled.values()),
            scheduled_spec_decode_tokens=drafts,
            num_common_prefix_blocks=0,
            finished_req_ids=self._finished,
            preempted_req_ids=preempt,
        )
        for req_id, n in scheduled.items():
            self.computed[req_id] += n
        self._seen |= set(new)
        self._preempted = (self._preempted | preempt) - resumed
        self._finished = set()
        return plan

    def prefill(self, *req_ids: str) -> ModelRunnerOutput:
        """Compute everything known of some requests, in one step."""
        return self.step({req_id: self.debt(req_id) for req_id in req_ids})

    def decode(self, req_id: str, steps: int) -> list[int]:
        for _ in range(steps):
            self.step({req_id: 1})
        return self.output(req_id)

    @property
    def facts(self) -> BatchFacts:
        batch = self.worker.runner.last_batch
        assert batch is not None
        return batch.describe()

    def _grow(self, req_id: str, num_tokens: int) -> list[int]:
        needed = -(-(self.computed[req_id] + num_tokens) // self.block_size) - len(self.blocks[req_id])
        new = list(range(self._next_block, self._next_block + max(needed, 0)))
        self._next_block += len(new)
        self.blocks[req_id] += new
        return new
