"""Owns one device: the model's weights, the KV cache, and the runner that uses both.

Upstream: vllm/v1/worker/gpu_worker.py::Worker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from minivllm.attention.backend import AttentionBackend
from minivllm.attention.selector import select_backend
from minivllm.config import VllmConfig
from minivllm.core.scheduler_output import ModelRunnerOutput, SchedulerOutput
from minivllm.layers.linear import pack_weights
from minivllm.models.errors import ModelError, TooLittleMemoryError
from minivllm.models.loader import ModelLoader
from minivllm.models.model_zoo import find_model
from minivllm.sourcemap.registry import on_map
from minivllm.worker.async_output import AsyncModelRunnerOutput
from minivllm.worker.gpu_model_runner import GPUModelRunner
from minivllm.worker.kv_cache_sizing import (
    KVCacheSizing,
    bytes_per_kv_block,
    free_memory,
    mib,
    size_kv_cache,
    total_memory,
)
from minivllm.worker.memory_profile import MemoryPlan, plan_memory
from minivllm.worker.runner_choice import choose_runner

if TYPE_CHECKING:
    import subprocess

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class Worker:
    """Brought up in order: `load_model`, `determine_num_gpu_blocks`, `initialize_cache`; then it runs plans.

    Attributes:
        attention_reasons: Why each attention backend was taken or left.
        runner_reason: Which runner was taken, and why.
        cache_dtype: Of the KV cache.
        memory_plan: What a GPU's memory is for, where that was measured.
        kv_cache_sizing: The arithmetic behind the number of blocks, once it is known.
    """

    def __init__(self, vllm_config: VllmConfig) -> None:
        self._config = vllm_config
        self._loader = ModelLoader(find_model(vllm_config.model_config.model))
        self.device = _device(vllm_config.model_config.device)
        self.dtype = resolve_dtype(vllm_config.model_config.dtype, self.device, self._loader.config.dtype)
        self.attention_reasons: dict[str, str] = {}
        self.runner_reason = ""
        self.memory_plan: MemoryPlan | None = None
        self.cache_dtype = self.dtype
        self.kv_cache_sizing: KVCacheSizing | None = None
        self._runner: GPUModelRunner | None = None
        self._helper: subprocess.Popen[bytes] | None = None
        longest, limit = vllm_config.scheduler_config.max_model_len, self.max_position_embeddings
        if longest > limit:
            raise ModelError(f"max_model_len ({longest}) must not exceed what the model was made for ({limit} tokens)")

    @property
    def vocab_size(self) -> int:
        return self._loader.config.vocab_size

    @property
    def max_position_embeddings(self) -> int:
        return self._loader.config.max_position_embeddings

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        return self._loader.config.eos_token_ids

    @property
    def plans_ahead(self) -> bool:
        """Whether a step can be planned and launched before the one before it is done."""
        return self.runner.plans_ahead

    @property
    def runner(self) -> GPUModelRunner:
        assert self._runner is not None, "load_model comes before anything that needs the model"
        return self._runner

    @on_map("load the model", vllm="vllm/v1/worker/gpu_worker.py::Worker.load_model", plane="data", process="worker")
    def load_model(self) -> None:
        """Read the weights (or make random ones) and build the runner."""
        model_config, config = self._config.model_config, self._loader.config
        self._check_memory(model_config.model)
        attention, self.attention_reasons = select_backend(
            self.device,
            config.head_dim,
            self.dtype,
            config.windows,
            self._config.attention_backend,
            num_heads=config.num_attention_heads,
            num_kv_heads=config.num_key_value_heads,
            block_size=self._config.cache_config.block_size,
            kv_cache_dtype=self._config.cache_config.cache_dtype,
        )
        self.cache_dtype = resolve_cache_dtype(
            self._config.cache_config.cache_dtype, self.dtype, self.device, attention.name
        )
        self._compile_ahead(attention)
        if model_config.load_format == "dummy":
            model = self._loader.dummy(self.device, self.dtype, model_config.seed)
        else:
            model = self._loader.load(self.device, self.dtype)
        if attention.on_kernels:
            model.use_kernels()
        else:
            pack_weights(model, most_copied_bytes=free_memory(self.device) // 4)
        try:
            self._runner, self.runner_reason = choose_runner(
                self._config, model, attention, self.device, self.dtype, self.cache_dtype
            )
        except MemoryError:
            limits = self._config.scheduler_config
            raise MemoryError(
                f"the tokens of max_num_seqs ({limits.max_num_seqs}) sequences of max_model_len "
                f"({limits.max_model_len}) take more memory than there is; lower one of them"
            ) from None

    def _compile_ahead(self, attention: AttentionBackend[Any]) -> None:
        """Let a GPU's kernels be compiled beside what is done here."""
        if self.device.type == "cuda" and attention.on_kernels:
            from minivllm.worker.compile_ahead import compile_ahead
            from minivllm.worker.device_requests import Limits

            limits = Limits.of(self._config.scheduler_config, self._config.cache_config.block_size)
            self._helper = compile_ahead(self.device, self._loader.config, self.dtype, self.cache_dtype, limits)

    def _check_memory(self, model: str) -> None:
        needed, free = self._loader.weight_bytes(self.dtype), free_memory(self.device)
        if needed > free:
            raise TooLittleMemoryError(
                f"the weights of {model} take {mib(needed)} in {str(self.dtype).removeprefix('torch.')}, and "
                f"{mib(free)} of memory are free: {mib(needed - free)} are missing; take a smaller model or dtype"
            )

    @on_map(
        "size the KV cache",
        vllm="vllm/v1/worker/gpu_worker.py::Worker.determine_available_memory",
        plane="data",
        process="worker",
    )
    def determine_num_gpu_blocks(self) -> int:
        """How many KV blocks there will be. Raises ValueError if not even one longest sequence fits."""
        cache, measured = self._config.cache_config, None
        if self.device.type == "cuda" and cache.num_gpu_blocks is None and cache.kv_cache_memory_bytes is None:
            plan = plan_memory(self.runner, self._config.scheduler_config, cache.gpu_memory_utilization)
            self.memory_plan, measured = plan, (plan.for_kv_cache, str(plan))
        self.kv_cache_sizing = size_kv_cache(self._config, self._loader.config, self.cache_dtype, self.device, measured)
        return self.kv_cache_sizing.num_blocks

    def initialize_cache(self, num_gpu_blocks: int) -> None:
        """Allocate the KV cache. Raises ValueError if it is larger than the device's memory."""
        cache = self._config.cache_config
        per_block = bytes_per_kv_block(self._loader.config, cache.block_size, self.cache_dtype)
        needed, total = num_gpu_blocks * per_block, total_memory(self.device)
        if needed > total:
            raise ValueError(
                f"{num_gpu_blocks} KV blocks take {mib(needed)}, and there are {mib(total)} of memory: "
                f"{mib(needed - total)} are missing; lower num_gpu_blocks_override or kv_cache_memory_bytes"
            )
        self.runner.initialize_kv_cache(num_gpu_blocks)

    @on_map(
        "worker: execute", vllm="vllm/v1/worker/gpu_worker.py::Worker.execute_model", plane="data", process="worker"
    )
    def execute_model(self, plan: SchedulerOutput) -> ModelRunnerOutput | None:
        """Run a plan up to its logits. None means that `sample_tokens` must follow."""
        return self.runner.execute_model(plan)

    def sample_tokens(self) -> ModelRunnerOutput | AsyncModelRunnerOutput:
        """Sample from the logits of the plan that ran last."""
        return self.runner.sample_tokens()


def _device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("device 'cuda' was asked for, and PyTorch sees no GPU here; use 'cpu' or 'auto'")
    return torch.device(name)


def resolve_dtype(name: str, device: torch.device, checkpoint: str | None) -> torch.dtype:
    """The precision that a name means: of "auto", what suits the device and the checkpoint."""
    if name == "auto":
        name = "float32" if device.type == "cpu" or checkpoint not in _DTYPES else checkpoint
    return _DTYPES[name]


def resolve_cache_dtype(name: str, dtype: torch.dtype, device: torch.device, attention_backend: str) -> torch.dtype:
    """What a KV cache stores. Raises ValueError if it cannot be had."""
    if name == "auto":
        return dtype
    if attention_backend != "triton":
        raise ValueError(
            f"kv_cache_dtype {name!r} cannot be had: attention backend {attention_backend} on a {device.type.upper()} "
            "reads the model's own numbers, only our kernels on a GPU read 8 bits; leave it at auto"
        )
    from minivllm.kernels.fp8 import fp8_kv_dtype
    from minivllm.kernels.launch import gpu_of

    return fp8_kv_dtype(name, gpu_of(device).capability)
