"""Owns every setting of the engine, checked as a whole before anything is loaded. No torch.

Upstream: vllm/config/ (VllmConfig, ModelConfig, CacheConfig, SchedulerConfig).
"""

from __future__ import annotations

from typing import Literal, get_args

import msgspec

# Which rules the scheduler follows where vLLM 0.27.1 has a known bug: docs/differences.md lists every difference.
Semantics = Literal["fixed", "vllm-0.27.1"]
SchedulerPolicy = Literal["fcfs", "priority"]
BatchKind = Literal["slots", "rows"]
# Which steps run as recorded graphs on a GPU: none, those of decodes only, or those with prompts in them, too; and
# whether as one graph, or in pieces between the calls of attention.
CUDAGraphMode = Literal["NONE", "PIECEWISE", "FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE"]
# What the KV cache stores: the model's own numbers, or 8 bits each.
CacheDType = Literal["auto", "fp8", "fp8_e4m3", "fp8_e5m2"]
# What logprobs tell: log probabilities or logits, as the model gave them or as they were drawn from.
LogprobsMode = Literal["raw_logprobs", "processed_logprobs", "raw_logits", "processed_logits"]


def _at_least(name: str, value: float, minimum: float) -> None:
    if value < minimum:
        raise ValueError(f"{name} must be at least {minimum}, got {value}")


# The worker counts requests and tokens in 32 bits.
_MAX_COUNT = 2**31 - 1


class SchedulerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What the scheduler may do in one step.

    Attributes:
        max_num_seqs: Most requests that run at once.
        max_num_batched_tokens: Token budget of one step.
        max_model_len: Longest sequence, prompt and output together, in tokens.
        long_prefill_token_threshold: Most tokens of one request in one step; 0 is no limit.
        enable_chunked_prefill: Whether a prompt may be spread over several steps.
        policy: "fcfs" (arrival order) or "priority" (lower number first).
        scheduler_reserve_full_isl: Admit a request only if its whole known sequence fits, not just its first chunk.
        watermark: Share of all blocks kept free when a request is admitted beside running ones, in [0, 1).
        num_lookahead_tokens: Slots reserved after the scheduled tokens, for drafts.
        max_loras: Most different adapters in one step; 0 means that adapters are off.
        async_scheduling: Plan step N+1 while step N runs; None lets the worker choose: on where its steps never wait
            for the host, else off.
        semantics: "fixed", or "vllm-0.27.1" to repeat that version's known bugs for a comparison.
    """

    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    max_model_len: int = 2048
    long_prefill_token_threshold: int = 0
    enable_chunked_prefill: bool = True
    policy: SchedulerPolicy = "fcfs"
    scheduler_reserve_full_isl: bool = True
    watermark: float = 0.0
    num_lookahead_tokens: int = 0
    max_loras: int = 0
    async_scheduling: bool | None = False
    semantics: Semantics = "fixed"

    def __post_init__(self) -> None:
        _at_least("max_num_seqs", self.max_num_seqs, 1)
        _at_least("max_num_batched_tokens", self.max_num_batched_tokens, 1)
        _at_least("max_model_len", self.max_model_len, 1)
        _at_least("long_prefill_token_threshold", self.long_prefill_token_threshold, 0)
        _at_least("num_lookahead_tokens", self.num_lookahead_tokens, 0)
        _at_least("max_loras", self.max_loras, 0)
        for name in ("max_num_seqs", "max_num_batched_tokens", "max_model_len"):
            if (count := getattr(self, name)) > _MAX_COUNT:
                raise ValueError(f"{name} must be at most {_MAX_COUNT}, got {count}")
        if not 0.0 <= self.watermark < 1.0:
            raise ValueError(f"watermark must be in [0, 1), got {self.watermark}")
        if self.policy not in get_args(SchedulerPolicy):
            raise ValueError(f"policy must be 'fcfs' or 'priority', got {self.policy!r}")
        if self.semantics not in get_args(Semantics):
            raise ValueError(f"semantics must be 'fixed' or 'vllm-0.27.1', got {self.semantics!r}")
        if self.max_num_batched_tokens < self.max_num_seqs and self.semantics == "fixed":
            raise ValueError(
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) must be at least max_num_seqs "
                f"({self.max_num_seqs}): otherwise some running requests can never decode in the same step. "
                "Raise the first or lower the second."
            )
        if (
            not self.enable_chunked_prefill
            and self.semantics == "fixed"
            and self.max_num_batched_tokens < self.max_model_len
            and not 0 < self.long_prefill_token_threshold <= self.max_num_batched_tokens
        ):
            raise ValueError(
                f"without chunked prefill max_num_batched_tokens ({self.max_num_batched_tokens}) must be at least "
                f"max_model_len ({self.max_model_len}): a longer prompt could never run. "
                "Raise the first, lower the second, or enable chunked prefill."
            )


class CacheConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How the KV cache is cut into blocks.

    Attributes:
        block_size: Tokens per block.
        num_gpu_blocks: Blocks in the pool, the null block included; None lets the worker size it from memory.
        enable_prefix_caching: Whether full blocks are published for reuse by equal prefixes.
        kv_cache_memory_bytes: Memory for the KV cache when num_gpu_blocks is None; None is the worker's default.
        hash_seed: Start of every hash chain; None draws one at random, so that equal prefixes of two engines do not
            share hashes and a stranger cannot craft a collision.
        gpu_memory_utilization: Share of the device's whole memory, in (0, 1], that everything on it may take together
            with the KV cache, when neither of the above says how large that is; None leaves more to others.
        cache_dtype: "auto" (the model's), "fp8" (the best format that the GPU reads), "fp8_e4m3" or "fp8_e5m2".
    """

    block_size: int = 16
    num_gpu_blocks: int | None = None
    enable_prefix_caching: bool = True
    kv_cache_memory_bytes: int | None = None
    hash_seed: bytes | None = None
    gpu_memory_utilization: float | None = None
    cache_dtype: CacheDType = "auto"

    def __post_init__(self) -> None:
        _at_least("block_size", self.block_size, 1)
        if self.num_gpu_blocks is not None:
            _at_least("num_gpu_blocks", self.num_gpu_blocks, 2)
        if self.kv_cache_memory_bytes is not None:
            _at_least("kv_cache_memory_bytes", self.kv_cache_memory_bytes, 1)
        if self.cache_dtype not in get_args(CacheDType):
            raise ValueError(f"cache_dtype must be one of {', '.join(get_args(CacheDType))}, got {self.cache_dtype!r}")
        if self.gpu_memory_utilization is not None and not 0.0 < self.gpu_memory_utilization <= 1.0:
            raise ValueError(f"gpu_memory_utilization must be in (0, 1], got {self.gpu_memory_utilization}")


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Which model, where from, in which precision.

    Attributes:
        model: Name of a model at hand (`minivllm model list`), a folder in Hugging Face layout, or a .gguf file.
        tokenizer: Folder or tokenizer.json; None takes the model's own.
        skip_tokenizer_init: Load no tokenizer: prompts are token ids, and outputs have no text.
        dtype: "auto" (float32 on a CPU, the checkpoint's own on a GPU), "float32", "bfloat16" or "float16".
        device: "auto" (a GPU if there is one), "cpu" or "cuda".
        load_format: "auto" (by file type) or "dummy" (random weights, seeded; needs only config.json).
        seed: Seed of the draws of requests that bring none, and of dummy weights.
        max_logprobs: Most tokens whose logprobs a request may ask for at each position; -1 is no limit.
        logprobs_mode: "raw_logprobs", "processed_logprobs" (after penalties, temperature and filters), or the logits
            themselves, "raw_logits" and "processed_logits". Prompt tokens are never processed.
        disable_cascade_attn: Each decode reads its whole context, though all of them begin with the same blocks.
    """

    model: str
    tokenizer: str | None = None
    skip_tokenizer_init: bool = False
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    load_format: Literal["auto", "dummy"] = "auto"
    seed: int = 0
    max_logprobs: int = 20
    logprobs_mode: LogprobsMode = "raw_logprobs"
    disable_cascade_attn: bool = False

    def __post_init__(self) -> None:
        _at_least("max_logprobs", self.max_logprobs, -1)
        if self.logprobs_mode not in get_args(LogprobsMode):
            raise ValueError(
                f"logprobs_mode must be one of {', '.join(get_args(LogprobsMode))}, got {self.logprobs_mode!r}"
            )
        if self.dtype not in ("auto", "float32", "bfloat16", "float16"):
            raise ValueError(f"dtype must be auto, float32, bfloat16 or float16, got {self.dtype!r}")
        if self.device not in ("auto", "cpu", "cuda"):
            raise ValueError(f"device must be auto, cpu or cuda, got {self.device!r}")
        if self.load_format not in ("auto", "dummy"):
            raise ValueError(f"load_format must be auto or dummy, got {self.load_format!r}")


class VllmConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Every setting of one engine. Upstream: vllm/config/vllm.py::VllmConfig.

    Attributes:
        batch: How the worker keeps its batch: "slots" (a request never moves) or "rows" (compacted every step).
        stream_interval: Tokens from one output of a request to the next; its first and last output always come.
        attention_backend: Its name, to have that one or an error; None takes the best that can run.
        cudagraph_mode: Which steps run as graphs; None is FULL_AND_PIECEWISE on a GPU whose attention can be recorded,
            PIECEWISE where it cannot, and NONE elsewhere.
    """

    model_config: ModelConfig
    cache_config: CacheConfig = CacheConfig()
    scheduler_config: SchedulerConfig = SchedulerConfig()
    batch: BatchKind = "slots"
    stream_interval: int = 1
    attention_backend: str | None = None
    cudagraph_mode: CUDAGraphMode | None = None

    def __post_init__(self) -> None:
        if self.cudagraph_mode is not None and self.cudagraph_mode not in get_args(CUDAGraphMode):
            raise ValueError(
                f"cudagraph_mode must be one of {', '.join(get_args(CUDAGraphMode))}, got {self.cudagraph_mode!r}"
            )
        _at_least("stream_interval", self.stream_interval, 1)
        if self.batch not in get_args(BatchKind):
            raise ValueError(f"batch must be 'slots' or 'rows', got {self.batch!r}")
