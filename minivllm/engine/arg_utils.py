"""Owns turning a caller's flat arguments into checked settings. Upstream: vllm/engine/arg_utils.py::EngineArgs."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal

import msgspec

from minivllm.config import (
    BatchKind,
    CacheConfig,
    LogprobsMode,
    ModelConfig,
    SchedulerConfig,
    SchedulerPolicy,
    VllmConfig,
)

DEFAULT_MODEL = "stories-5m"
_DEFAULT_BATCHED_TOKENS = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineArgs:
    """Everything that `LLM(...)` accepts, with vLLM's names. What each means stands in minivllm/config.py.

    None means: derived from the model or from other settings. `multiprocess` gives the engine core its own process.
    `disable_log_stats` keeps no metrics.
    """

    model: str = DEFAULT_MODEL
    tokenizer: str | None = None
    skip_tokenizer_init: bool = False
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    load_format: Literal["auto", "dummy"] = "auto"
    seed: int = 0
    max_logprobs: int = 20
    logprobs_mode: LogprobsMode = "raw_logprobs"
    max_model_len: int | None = None
    block_size: int = 16
    num_gpu_blocks_override: int | None = None
    kv_cache_memory_bytes: int | None = None
    enable_prefix_caching: bool = True
    prefix_caching_hash_seed: bytes | None = None
    max_num_seqs: int = 64
    max_num_batched_tokens: int | None = None
    long_prefill_token_threshold: int = 0
    enable_chunked_prefill: bool = True
    scheduling_policy: SchedulerPolicy = "fcfs"
    scheduler_reserve_full_isl: bool = True
    watermark: float = 0.0
    async_scheduling: bool = False
    batch: BatchKind = "slots"
    attention_backend: str | None = None
    stream_interval: int = 1
    disable_log_stats: bool = False
    enforce_eager: bool = True
    multiprocess: bool = False

    @classmethod
    def from_kwargs(cls, **kwargs: Any) -> EngineArgs:
        """Like the constructor, but an unknown name or a value of a wrong type is told with what would be right."""
        known = {f.name for f in fields(cls)}
        if unknown := sorted(set(kwargs) - known):
            raise TypeError(f"unknown engine argument {unknown[0]!r}; known are {', '.join(sorted(known))}")
        try:
            return msgspec.convert(kwargs, cls)
        except msgspec.ValidationError as error:
            what, _, place = str(error).partition(" - at `$.")
            if what.startswith("Expected"):
                raise TypeError(f"engine argument {place.rstrip('`')}: {what[0].lower()}{what[1:]}") from None
            return cls(**kwargs)  # a wrong word: config.py lists the right ones

    def resolve_engine_config(self) -> VllmConfig:
        """Read from the model's files what it was made for, and check everything together. No weights are read.

        Raises:
            ModelError: There is no such model, or its configuration is damaged or not supported.
            ValueError: Settings that contradict each other or the model.
        """
        from minivllm.models.config import from_folder
        from minivllm.models.model_zoo import find_model

        files = find_model(self.model)
        if files.kind == "folder":
            return self.create_engine_config(from_folder(files.path).max_position_embeddings)
        # A header tells names and types of tensors, and needs torch for them.
        from minivllm.models.gguf_file import GGUFFile

        return self.create_engine_config(GGUFFile(files.path).config.max_position_embeddings)

    def create_engine_config(self, max_position_embeddings: int) -> VllmConfig:
        """Check everything together.

        Args:
            max_position_embeddings: Longest sequence that the model was made for.

        Raises:
            ValueError: Settings that contradict each other or the model.
        """
        if not self.enforce_eager:
            raise ValueError("enforce_eager=False asks for CUDA graphs, which are not here yet: leave it out")
        max_model_len = self.max_model_len if self.max_model_len is not None else max_position_embeddings
        if max_model_len > max_position_embeddings:
            raise ValueError(
                f"max_model_len ({max_model_len}) must not exceed what the model was made for "
                f"({max_position_embeddings} tokens)"
            )
        batched_tokens = self.max_num_batched_tokens
        if batched_tokens is None:
            needed = self.max_num_seqs if self.enable_chunked_prefill else max(self.max_num_seqs, max_model_len)
            batched_tokens = max(_DEFAULT_BATCHED_TOKENS, needed)
        return VllmConfig(
            model_config=ModelConfig(
                model=self.model,
                tokenizer=self.tokenizer,
                skip_tokenizer_init=self.skip_tokenizer_init,
                dtype=self.dtype,
                device=self.device,
                load_format=self.load_format,
                seed=self.seed,
                max_logprobs=self.max_logprobs,
                logprobs_mode=self.logprobs_mode,
            ),
            cache_config=CacheConfig(
                block_size=self.block_size,
                num_gpu_blocks=self.num_gpu_blocks_override,
                enable_prefix_caching=self.enable_prefix_caching,
                kv_cache_memory_bytes=self.kv_cache_memory_bytes,
                hash_seed=self.prefix_caching_hash_seed,
            ),
            scheduler_config=SchedulerConfig(
                max_num_seqs=self.max_num_seqs,
                max_num_batched_tokens=batched_tokens,
                max_model_len=max_model_len,
                long_prefill_token_threshold=self.long_prefill_token_threshold,
                enable_chunked_prefill=self.enable_chunked_prefill,
                policy=self.scheduling_policy,
                scheduler_reserve_full_isl=self.scheduler_reserve_full_isl,
                watermark=self.watermark,
                async_scheduling=self.async_scheduling,
            ),
            batch=self.batch,
            attention_backend=self.attention_backend,
            stream_interval=self.stream_interval,
        )


# vLLM has a class of its own for its asynchronous engine; here both engines take the same.
AsyncEngineArgs = EngineArgs
