"""Owns turning a caller's flat arguments into checked settings. Upstream: vllm/engine/arg_utils.py::EngineArgs."""

from __future__ import annotations

import argparse
import difflib
from dataclasses import dataclass, fields
from typing import Any, Literal, TypeVar, get_type_hints

import msgspec

from minivllm.config import (
    BatchKind,
    CacheConfig,
    CacheDType,
    CUDAGraphMode,
    LogprobsMode,
    ModelConfig,
    SchedulerConfig,
    SchedulerPolicy,
    VllmConfig,
)
from minivllm.engine.fixed_args import FixedArgs

DEFAULT_MODEL = "stories-5m"
_DEFAULT_BATCHED_TOKENS = 2048
# vLLM's other names of number formats.
_DTYPES = {"float": "float32", "half": "float16"}

_Parser = TypeVar("_Parser", bound=argparse._ActionsContainer)


@dataclass(frozen=True, kw_only=True)
class EngineArgs(FixedArgs):
    """Everything that `LLM(...)` accepts, with vLLM's names. What each means stands in minivllm/config.py.

    None means: derived from the model or from other settings. `multiprocess` gives the engine core its own process.
    `disable_log_stats` keeps no metrics. `enforce_eager` launches every step kernel by kernel; without it steps run as
    CUDA graphs where a device has them (`cudagraph_mode` says which). `generation_config="vllm"` leaves out what the
    model's files recommend of sampling, and `override_generation_config` goes before it. `served_model_name` is the
    model's name in metrics.
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
    async_scheduling: bool | None = None
    batch: BatchKind = "slots"
    attention_backend: str | None = None
    stream_interval: int = 1
    disable_log_stats: bool = False
    enforce_eager: bool = False
    cudagraph_mode: CUDAGraphMode | None = None
    kv_cache_dtype: CacheDType = "auto"
    disable_cascade_attn: bool = False
    multiprocess: bool = False
    gpu_memory_utilization: float | None = None
    generation_config: Literal["auto", "vllm"] = "auto"
    override_generation_config: dict[str, Any] | None = None
    served_model_name: str | None = None

    def __post_init__(self) -> None:
        if self.generation_config not in ("auto", "vllm"):
            raise ValueError(
                "generation_config must be 'auto' (sample as the model's files recommend) or 'vllm' (leave that out), "
                f"got {self.generation_config!r:.80}"
            )
        self.check_fixed()

    @classmethod
    def from_kwargs(cls, **kwargs: Any) -> EngineArgs:
        """Like the constructor, but None means the default for every argument, as in vLLM, and an unknown name or a
        value of a wrong type is told with what would be right."""
        known = {f.name for f in fields(cls)}
        if unknown := sorted(set(kwargs) - known):
            close = difflib.get_close_matches(unknown[0], known, 1)
            raise TypeError(
                f"unknown engine argument {unknown[0]!r}; "
                + (f"did you mean {close[0]!r}?" if close else f"known are {', '.join(sorted(_own_names()))}")
            )
        kwargs = {name: value for name, value in kwargs.items() if value is not None}
        compilation = kwargs.get("compilation_config")
        if isinstance(compilation, dict) and set(compilation) == {"cudagraph_mode"}:  # where vLLM has it
            kwargs["cudagraph_mode"] = kwargs.pop("compilation_config")["cudagraph_mode"]
        if "dtype" in kwargs:
            name = str(kwargs["dtype"]).removeprefix("torch.")  # torch's own objects, too
            kwargs["dtype"] = _DTYPES.get(name, name)
        try:
            return msgspec.convert(kwargs, cls)
        except msgspec.ValidationError as error:
            what, _, place = str(error).partition(" - at `$.")
            if what.startswith("Expected"):
                raise TypeError(f"engine argument {place.rstrip('`')}: {what[0].lower()}{what[1:]}") from None
            return cls(**kwargs)  # a wrong word: config.py lists the right ones

    @staticmethod
    def add_cli_args(parser: _Parser) -> _Parser:
        """Give a parser (or a group of one) an option for every argument, with vLLM's names."""
        from minivllm.utils.argparse_utils import add_option

        hints = get_type_hints(EngineArgs)
        for argument in fields(EngineArgs):
            add_option(parser, argument, hints[argument.name])
        return parser

    @classmethod
    def from_cli_args(cls, args: argparse.Namespace) -> EngineArgs:
        """The arguments among what a parser read; what else it read is left alone.

        Raises:
            TypeError, ValueError: See `from_kwargs`.
        """
        names = [argument.name for argument in fields(cls) if hasattr(args, argument.name)]
        return cls.from_kwargs(**{name: getattr(args, name) for name in names})

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
        if self.enforce_eager and self.cudagraph_mode not in (None, "NONE"):
            raise ValueError(
                f"enforce_eager asks for no CUDA graphs, cudagraph_mode {self.cudagraph_mode} for some; leave one out"
            )
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
                disable_cascade_attn=self.disable_cascade_attn,
            ),
            cache_config=CacheConfig(
                block_size=self.block_size,
                num_gpu_blocks=self.num_gpu_blocks_override,
                enable_prefix_caching=self.enable_prefix_caching,
                kv_cache_memory_bytes=self.kv_cache_memory_bytes,
                hash_seed=self.prefix_caching_hash_seed,
                gpu_memory_utilization=self.gpu_memory_utilization,
                cache_dtype=self.kv_cache_dtype,
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
            cudagraph_mode="NONE" if self.enforce_eager else self.cudagraph_mode,
            stream_interval=self.stream_interval,
        )


def _own_names() -> set[str]:
    return {argument.name for argument in fields(EngineArgs)} - {argument.name for argument in fields(FixedArgs)}


# vLLM has a class of its own for its asynchronous engine; here both engines take the same.
AsyncEngineArgs = EngineArgs
