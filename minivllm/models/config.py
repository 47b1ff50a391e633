"""Owns what a model *is*: its sizes and its rope, read from config.json and checked. No torch.

A feature that the code does not compute is refused by name here: a model that loads but computes something else is
the worst failure an engine can have.

Upstream: transformers' LlamaConfig, which vLLM reads in the same way.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from minivllm.models.errors import ModelError


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary position embedding. `kind` "linear" and "llama3" stretch it to longer contexts than it was trained on."""

    theta: float = 10000.0
    kind: Literal["default", "linear", "llama3"] = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 8192


@dataclass(frozen=True, slots=True)
class LlamaConfig:
    """Sizes of a Llama-shaped decoder. `dtype` is the checkpoint's own, None if it does not say."""

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope: RopeConfig
    tie_word_embeddings: bool
    eos_token_ids: tuple[int, ...]
    dtype: str | None

    def __post_init__(self) -> None:
        if self.num_attention_heads % self.num_key_value_heads:
            raise ModelError(
                f"num_attention_heads ({self.num_attention_heads}) must be a multiple of "
                f"num_key_value_heads ({self.num_key_value_heads})"
            )
        if self.head_dim % 2:
            raise ModelError(f"head_dim must be even for rotary embeddings, got {self.head_dim}")


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file. Raises ModelError if it is missing, broken, or not an object."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelError(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ModelError(f"{path}: cannot be read as JSON ({error})") from None
    if not isinstance(value, dict):
        raise ModelError(f"{path}: must hold a JSON object, got {type(value).__name__}")
    return cast(dict[str, Any], value)


def from_folder(folder: Path) -> LlamaConfig:
    """Read and check config.json (and generation_config.json, for the end-of-sequence ids) of a Hugging Face folder."""
    file = folder / "config.json"
    raw = read_json(file)
    try:
        return from_dict({**raw, "eos_token_id": _eos_token_id(folder, raw)})
    except ModelError as error:
        raise ModelError(f"{file}: {error}") from None


def from_dict(raw: dict[str, Any]) -> LlamaConfig:
    """Check a configuration under config.json's keys, wherever it comes from."""
    architectures = raw.get("architectures")
    if not isinstance(architectures, list) or not architectures:
        raise ModelError("key 'architectures' must name the model's class, e.g. [\"LlamaForCausalLM\"]")
    _refuse_unsupported(raw)
    hidden_size = _positive_int(raw, "hidden_size")
    heads = _positive_int(raw, "num_attention_heads")
    if raw.get("head_dim") is None and hidden_size % heads:
        raise ModelError(f"hidden_size ({hidden_size}) must be a multiple of num_attention_heads ({heads})")
    return LlamaConfig(
        architecture=str(architectures[0]),
        vocab_size=_positive_int(raw, "vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=_positive_int(raw, "intermediate_size"),
        num_hidden_layers=_positive_int(raw, "num_hidden_layers"),
        num_attention_heads=heads,
        num_key_value_heads=_positive_int(raw, "num_key_value_heads", heads),
        head_dim=_positive_int(raw, "head_dim", hidden_size // heads),
        max_position_embeddings=_positive_int(raw, "max_position_embeddings", 2048),
        rms_norm_eps=_positive_float(raw, "rms_norm_eps", 1e-6),
        rope=_rope(raw),
        tie_word_embeddings=bool(raw.get("tie_word_embeddings", False)),
        eos_token_ids=_token_ids(raw, "eos_token_id"),
        dtype=raw.get("dtype") or raw.get("torch_dtype"),
    )


def _refuse_unsupported(raw: dict[str, Any]) -> None:
    for key, supported in (
        ("hidden_act", "silu"),
        ("attention_bias", False),
        ("mlp_bias", False),
        ("sliding_window", None),
        ("quantization_config", None),
    ):
        value = raw.get(key, supported)
        if value != supported:
            shown = "set" if isinstance(value, dict) else repr(value)
            raise ModelError(f"{key} is {shown}, and this engine supports only {supported!r}")


def _rope(raw: dict[str, Any]) -> RopeConfig:
    """Rope from `rope_parameters` (transformers 5) or from `rope_theta` and `rope_scaling` (before)."""
    parameters = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    if not isinstance(parameters, dict):
        raise ModelError(f"rope parameters must be an object, got {parameters!r}")
    kind = parameters.get("rope_type") or parameters.get("type") or "default"
    if kind not in ("default", "linear", "llama3"):
        raise ModelError(f"rope type {kind!r} is not supported; supported are default, linear and llama3")
    if parameters.get("partial_rotary_factor", raw.get("partial_rotary_factor", 1.0)) != 1.0:
        raise ModelError("partial_rotary_factor is not supported")
    theta = _positive_float({"rope_theta": 10000.0, **raw, **parameters}, "rope_theta")
    if kind == "default":
        return RopeConfig(theta=theta)
    if kind == "linear":
        return RopeConfig(theta=theta, kind="linear", factor=_positive_float(parameters, "factor"))
    return RopeConfig(
        theta=theta,
        kind="llama3",
        factor=_positive_float(parameters, "factor"),
        low_freq_factor=_positive_float(parameters, "low_freq_factor"),
        high_freq_factor=_positive_float(parameters, "high_freq_factor"),
        original_max_position_embeddings=_positive_int(parameters, "original_max_position_embeddings"),
    )


def _eos_token_id(folder: Path, raw: dict[str, Any]) -> Any:
    """generation_config.json knows better than config.json what ends a sequence."""
    generation = folder / "generation_config.json"
    eos = read_json(generation).get("eos_token_id") if generation.exists() else None
    return raw.get("eos_token_id") if eos is None else eos


def _token_ids(raw: dict[str, Any], key: str) -> tuple[int, ...]:
    value = raw.get(key)
    ids = value if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(token_id, int) and token_id >= 0 for token_id in ids):
        raise ModelError(f"{key} must be a token id or a list of them, got {value!r}")
    return tuple(ids)


def _positive_int(raw: dict[str, Any], key: str, default: int | None = None) -> int:
    value = raw.get(key)
    value = default if value is None else value
    if value is None:
        raise ModelError(f"key {key!r} is missing")
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ModelError(f"{key} must be an integer of at least 1, got {value!r}")
    return value


def _positive_float(raw: dict[str, Any], key: str, default: float | None = None) -> float:
    value = raw.get(key)
    value = default if value is None else value
    if value is None:
        raise ModelError(f"key {key!r} is missing")
    if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0:
        raise ModelError(f"{key} must be a number above 0, got {value!r}")
    return float(value)
