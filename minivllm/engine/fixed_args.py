"""Owns vLLM's engine arguments that have one value here: a script that sets that value runs, any other is told why not.

An argument that is accepted and does nothing would be worse than an error. So every argument of vLLM is honoured
(`EngineArgs`), stands here with the values that mean the same to this engine, or is refused as unknown.
"""

# ruff: noqa: RUF009 (every field calls for a value of its own)
from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any


def _only(value: Any, why: str, *same: Any) -> Any:
    """A field with one value.

    Args:
        value: It, vLLM's default.
        why: Why there is no other.
        same: Further values that mean the same to this engine.
    """
    return field(default=value, metadata={"values": (value, *same), "why": why})


_ONE_DEVICE = "the model runs on one device"
_NO_DRAFTS = "there is no drafting of tokens"
_TEXT_ONLY = "models here read text only"
_TRANSFERS = "there are no KV connectors"


@dataclass(frozen=True, kw_only=True)
class FixedArgs:
    """Arguments of vLLM with one value here."""

    tensor_parallel_size: int = _only(1, _ONE_DEVICE)
    pipeline_parallel_size: int = _only(1, _ONE_DEVICE)
    data_parallel_size: int = _only(1, _ONE_DEVICE)
    enable_expert_parallel: bool = _only(False, _ONE_DEVICE)
    distributed_executor_backend: Any = _only(None, "one worker runs beside the core", "uni", "mp")
    disable_custom_all_reduce: bool = _only(False, _ONE_DEVICE, True)
    trust_remote_code: bool = _only(False, "code that comes with a model is never run", True)
    runner: str = _only("auto", "models here generate text", "generate")
    convert: str = _only("auto", "models here generate text", "none")
    quantization: Any = _only(None, "the only quantised weights that can be read are those of a .gguf file", "gguf")
    calculate_kv_scales: bool = _only(False, "an 8-bit KV cache has scale 1")
    revision: Any = _only(None, "a model is taken as it is in the local cache", "main")
    code_revision: Any = _only(None, "code that comes with a model is never run", "main")
    tokenizer_revision: Any = _only(None, "a tokenizer is taken as it is in the local cache", "main")
    tokenizer_mode: str = _only("auto", "a tokenizer is a tokenizer.json or in a .gguf file", "hf")
    config_format: str = _only("auto", "a configuration is a config.json or in a .gguf file", "hf")
    download_dir: Any = _only(None, "nothing is downloaded: run hf download")
    hf_overrides: Any = _only(None, "a model is computed as its config.json says: edit a copy of it", {})
    model_impl: str = _only("auto", "models are minivllm's own", "vllm")
    cpu_offload_gb: float = _only(0.0, "weights stay where they are computed with")
    enable_lora: bool = _only(False, "there are no adapters")
    speculative_config: Any = _only(None, _NO_DRAFTS)
    spec_method: Any = _only(None, _NO_DRAFTS)
    spec_model: Any = _only(None, _NO_DRAFTS)
    spec_tokens: Any = _only(None, _NO_DRAFTS)
    logits_processors: Any = _only(None, "there are no plugins of the sampler", [])
    structured_outputs_config: Any = _only(None, "there is no structured output", {})
    pooler_config: Any = _only(None, "models here generate text")
    kv_transfer_config: Any = _only(None, _TRANSFERS)
    kv_events_config: Any = _only(None, _TRANSFERS)
    kv_cache_metrics: bool = _only(False, "there are no metrics of single blocks")
    enable_prompt_embeds: bool = _only(False, "a prompt is text or tokens")
    enable_sleep_mode: bool = _only(False, "the engine does not sleep")
    compilation_config: Any = _only(None, "nothing is compiled", 0, {})
    profiler_config: Any = _only(None, "there is no profiler: see minivllm trace")
    limit_mm_per_prompt: Any = _only(None, _TEXT_ONLY, {})
    mm_processor_kwargs: Any = _only(None, _TEXT_ONLY, {})
    allowed_local_media_path: str = _only("", _TEXT_ONLY)
    disable_chunked_mm_input: bool = _only(False, _TEXT_ONLY, True)
    disable_sliding_window: bool = _only(False, "a model is computed as its config.json says")
    prefix_caching_hash_algo: str = _only("sha256", "blocks are hashed with SHA-256", "sha256_cbor")
    use_tqdm_on_load: bool = _only(True, "loading draws nothing", False)

    def check_fixed(self) -> None:
        """Refuse what is not here.

        Raises:
            ValueError: With the name, the value and the reason.
        """
        for argument in fields(FixedArgs):
            value, values = getattr(self, argument.name), argument.metadata["values"]
            if value not in values:
                known = " or ".join(repr(v) for v in values)
                raise ValueError(f"{argument.name} must be {known}, got {value!r:.60}: {argument.metadata['why']}")
